"""Verbs of this room, by noun."""

from serving.services.deployments import (
    delete_deployment,
    deploy,
    deploy_version,
    scale,
    start,
    stop,
)
from serving.services.endpoints import (
    change_endpoint,
    create_endpoint,
    delete_endpoint,
    fill_in_grants,
    grant,
    revoke_grant,
)
from serving.services.traffic import set_weights

__all__ = [
    "change_endpoint",
    "create_endpoint",
    "delete_deployment",
    "delete_endpoint",
    "deploy",
    "deploy_version",
    "fill_in_grants",
    "grant",
    "revoke_grant",
    "scale",
    "set_weights",
    "start",
    "stop",
]
