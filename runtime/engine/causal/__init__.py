"""Continuous batching for decoder models: scheduler, sequences and blocks without torch; runner and model with it."""
