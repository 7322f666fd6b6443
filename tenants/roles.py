"""Roles and what each may do: one table, checked by one function everywhere (pure)."""

import enum
from collections.abc import Mapping
from typing import Final


class Role(enum.StrEnum):
    """A member's role in a tenant, weakest first."""

    VIEWER = "viewer"
    DEVELOPER = "developer"
    ADMIN = "admin"
    OWNER = "owner"


# What a service account can be: an owner is somebody who can be asked.
SERVICE_ROLES: Final = (Role.VIEWER, Role.DEVELOPER, Role.ADMIN)
# For the OpenAPI document, which names the two lists apart.
ROLE_CHOICES: Final = [(role.value, role.value) for role in Role]
SERVICE_ROLE_CHOICES: Final = [(role.value, role.value) for role in SERVICE_ROLES]


class Permission(enum.StrEnum):
    """What can be done in a tenant."""

    VIEW = "view"  # read everything of the tenant but secrets
    INFER = "infer"  # use the playground
    PUBLISH = "publish"  # upload models, make versions, move aliases
    DEPLOY = "deploy"  # endpoints, deployments, scaling
    PRIORITIZE = "prioritize"  # let a deployment take the places of others
    MANAGE_KEYS = "manage_keys"
    GRANT = "grant"  # let another tenant call an endpoint
    MANAGE_MEMBERS = "manage_members"
    MANAGE_TENANT = "manage_tenant"


_VIEWER = frozenset({Permission.VIEW})
_DEVELOPER = _VIEWER | {Permission.INFER, Permission.PUBLISH, Permission.DEPLOY, Permission.MANAGE_KEYS}
_ADMIN = _DEVELOPER | {Permission.PRIORITIZE, Permission.GRANT, Permission.MANAGE_MEMBERS}
_OWNER = _ADMIN | {Permission.MANAGE_TENANT}

PERMISSIONS: Final[Mapping[Role, frozenset[Permission]]] = {
    Role.VIEWER: _VIEWER,
    Role.DEVELOPER: _DEVELOPER,
    Role.ADMIN: _ADMIN,
    Role.OWNER: _OWNER,
}


def permits(role: str | None, permission: Permission) -> bool:
    """True when ``role`` (``None`` for a stranger) carries ``permission``."""
    return role is not None and permission in PERMISSIONS.get(Role(role), frozenset())


def weakest_role_with(permission: Permission) -> Role:
    """The role to ask for when ``permission`` is missing."""
    return next(role for role in Role if permission in PERMISSIONS[role])
