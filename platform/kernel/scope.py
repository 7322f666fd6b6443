"""Tenant scope that fails closed.

A row that belongs to a tenant is fetched through ``Model.objects``, a manager that raises unless a tenant scope is
open: forgetting the tenant is an error, never "everything". Code that is above tenants (loops, admins) says so with
:func:`all_tenants`.
"""

import contextlib
import contextvars
import uuid
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

from django.db import models

_ALL = object()
_active: contextvars.ContextVar[object] = contextvars.ContextVar("tenant_scope", default=None)

M = TypeVar("M", bound=models.Model)


class ScopeError(RuntimeError):
    """A tenant's rows were asked for outside any tenant scope: a bug in the calling code."""


@contextlib.contextmanager
def tenant(tenant_id: uuid.UUID) -> Iterator[None]:
    """Rows of ``tenant_id`` only, within the block."""
    token = _active.set(tenant_id)
    try:
        yield
    finally:
        _active.reset(token)


@contextlib.contextmanager
def all_tenants() -> Iterator[None]:
    """Rows of every tenant, within the block: for loops and platform admins."""
    token = _active.set(_ALL)
    try:
        yield
    finally:
        _active.reset(token)


def active_tenant() -> uuid.UUID | None:
    """The tenant of the open scope; ``None`` when all tenants are in view.

    Raises:
        ScopeError: no scope is open.
    """
    active = _active.get()
    if active is None:
        raise ScopeError("no tenant scope is open; use kernel.scope.tenant(...) or all_tenants()")
    return None if active is _ALL else cast(uuid.UUID, active)


class ScopedManager(models.Manager[M], Generic[M]):
    """Default manager of every tenant-owned model. The model names its tenant column in ``TENANT_FIELD``."""

    use_in_migrations = False

    def get_queryset(self) -> "models.QuerySet[M]":
        queryset = super().get_queryset()
        tenant_id = active_tenant()
        if tenant_id is None:
            return queryset
        field: Any = getattr(self.model, "TENANT_FIELD", "tenant_id")
        return queryset.filter(**{field: tenant_id})


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """A block that starts without a scope and forgets whatever :func:`enter` opened in it (one request)."""
    token = _active.set(None)
    try:
        yield
    finally:
        _active.reset(token)


def enter(tenant_id: uuid.UUID) -> None:
    """Open the scope of ``tenant_id`` until the surrounding :func:`isolated` block ends."""
    _active.set(tenant_id)
