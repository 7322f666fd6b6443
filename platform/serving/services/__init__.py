"""Verbs of this room, by noun."""

from serving.services.deployments import (
    delete_deployment,
    deploy,
    deploy_version,
    scale,
    start,
    stop,
)
from serving.services.endpoints import create_endpoint, delete_endpoint, grant, revoke_grant, set_slo

__all__ = [
    "create_endpoint",
    "delete_deployment",
    "delete_endpoint",
    "deploy",
    "deploy_version",
    "grant",
    "revoke_grant",
    "scale",
    "set_slo",
    "start",
    "stop",
]
