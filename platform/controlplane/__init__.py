"""Composition root of the control plane: settings, urls, ASGI, Celery, checks, management commands."""
