"""Builders of control-plane rows: each returns something real, made by the same services that people use."""

import itertools
from typing import Any

from rest_framework.test import APIClient

from kernel import actors, scope
from kernel.actors import Actor, Way
from tenants import identity, services
from tenants.models import Member, Tenant, User
from tenants.roles import Role

_count = itertools.count(1)
PASSWORD = "correct horse battery"


def make_user(email: str = "", *, admin: bool = False, name: str = "") -> User:
    """A user with :data:`PASSWORD`."""
    email = email or f"user{next(_count)}@example.org"
    if admin:
        return User.objects.create_superuser(email, PASSWORD, name=name)
    return User.objects.create_user(email, PASSWORD, name=name)


def make_tenant(slug: str = "", *, owner: User | None = None, name: str = "") -> Tenant:
    """A tenant with an owner."""
    slug = slug or f"tenant-{next(_count)}"
    return services.create_tenant(
        actor=actors.system("tests"), slug=slug, name=name or slug.title(), owner=owner or make_user()
    )


def make_member(tenant: Tenant, role: Role = Role.DEVELOPER, user: User | None = None) -> User:
    """A user with ``role`` in ``tenant``."""
    user = user or make_user()
    services.set_member(actor=actors.system("tests"), tenant=tenant, user=user, role=role)
    return user


def owner_of(tenant: Tenant) -> User:
    """The tenant's first owner."""
    with scope.tenant(tenant.id):
        return Member.objects.select_related("user").filter(role=Role.OWNER).order_by("id")[0].user


def actor_for(user: User, way: Way = Way.API) -> Actor:
    """The actor that ``user`` is now."""
    return identity.actor_of_user(user, way=way)


def client_for(user: User) -> APIClient:
    """A REST client with a token of ``user``."""
    _token, text = services.create_user_token(actor=actor_for(user), user=user, name="tests")
    return bearer(text)


def key_client(tenant: Tenant, scopes: list[str] | None = None, **fields: Any) -> APIClient:
    """A REST client with an API key of ``tenant``."""
    _key, text = services.create_api_key(
        actor=actors.system("tests"), tenant=tenant, name="tests", scopes=scopes or ["manage"], **fields
    )
    return bearer(text)


def bearer(text: str) -> APIClient:
    """A REST client with this bearer token."""
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {text}")
    return client
