"""Endpoints, deployments and replicas: what should serve, what does, and the loop between the two."""
