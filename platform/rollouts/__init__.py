"""Rollouts and experiments: planned moves of traffic between two revisions behind one endpoint, judged as they go."""
