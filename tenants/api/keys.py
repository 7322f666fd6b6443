"""REST of API keys. Revoking one is dispatch's: its answer names the gateways that know of it."""

import dataclasses
import datetime
import uuid
from collections.abc import Mapping
from typing import Any, Final

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from tenants import access, selectors, services, terms
from tenants.api import serializers as shapes
from tenants.api.base import TenantView
from tenants.api.limits import changes
from tenants.models import ApiKey
from tenants.roles import Permission

_PLAIN: Final = ("expires_at", "allowed_endpoints", "allowed_addresses", "criticalities")


class Keys(TenantView):
    """API keys of a tenant. The key itself is in the answer to ``POST`` and nowhere else."""

    permissions = {"GET": Permission.VIEW, "POST": Permission.MANAGE_KEYS}
    serializer_class = shapes.KeyOut
    queryset = ApiKey._base_manager.none()

    @extend_schema(responses=shapes.KeyOut(many=True), operation_id="keys_list")
    def get(self, request: Request, tenant: str) -> Response:
        page = self.paginate_queryset(selectors.keys_of(self.tenant))
        return self.get_paginated_response(shapes.KeyOut(page, many=True).data)

    @extend_schema(request=shapes.KeyIn, responses={201: shapes.KeyCreated}, operation_id="keys_create")
    def post(self, request: Request, tenant: str) -> Response:
        """An ``Idempotency-Key`` is not taken here: the answer holds a secret, which is never stored."""
        self.confirm_recent()
        given = shapes.KeyIn(data=request.data)
        given.is_valid(raise_exception=True)
        data = given.validated_data
        key, text = services.create_api_key(
            actor=self.actor, tenant=self.tenant, name=data["name"], scopes=data["scopes"], **key_terms(data)
        )
        return Response({**shapes.KeyOut(key).data, "key": text}, status=201)


def key_terms(data: Mapping[str, Any], before: ApiKey | None = None) -> dict[str, Any]:
    """The fields of :class:`tenants.terms.Terms` that were given."""
    given = {name: data[name] for name in _PLAIN if name in data}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()} | changes(
        data, before
    )


class KeyDetail(TenantView):
    """One API key."""

    permissions = {"GET": Permission.VIEW, "PATCH": Permission.MANAGE_KEYS}
    serializer_class = shapes.KeyOut

    @extend_schema(responses=shapes.KeyOut, operation_id="keys_retrieve")
    def get(self, request: Request, tenant: str, key_id: uuid.UUID) -> Response:
        return Response(shapes.KeyOut(access.access_key(self.actor, self.tenant, key_id)).data)

    @extend_schema(request=shapes.KeyPatch, responses=shapes.KeyOut, operation_id="keys_update")
    def patch(self, request: Request, tenant: str, key_id: uuid.UUID) -> Response:
        """Change what the key may; its secret stays."""
        key = access.access_key(self.actor, self.tenant, key_id, Permission.MANAGE_KEYS)
        given = shapes.KeyPatch(data=request.data)
        given.is_valid(raise_exception=True)
        data = given.validated_data
        asked = dataclasses.replace(terms.terms_of(key), **key_terms(data, key))
        done = services.set_key_terms(
            actor=self.actor, tenant=self.tenant, key=key, name=data.get("name", key.name), asked=asked
        )
        return Response(shapes.KeyOut(done).data)


class KeyRotate(TenantView):
    """A new secret for a key; the old one is accepted beside it for a while."""

    permissions = {"POST": Permission.MANAGE_KEYS}
    serializer_class = shapes.KeyCreated

    @extend_schema(request=shapes.KeyRotateIn, responses=shapes.KeyCreated, operation_id="keys_rotate")
    def post(self, request: Request, tenant: str, key_id: uuid.UUID) -> Response:
        """An ``Idempotency-Key`` is not taken here: the answer holds a secret, which is never stored."""
        self.confirm_recent()
        key = access.access_key(self.actor, self.tenant, key_id, Permission.MANAGE_KEYS)
        given = shapes.KeyRotateIn(data=request.data)
        given.is_valid(raise_exception=True)
        overlap = datetime.timedelta(seconds=given.validated_data["overlap_seconds"])
        row, text = services.rotate_api_key(actor=self.actor, tenant=self.tenant, key=key, overlap=overlap)
        return Response({**shapes.KeyOut(row).data, "key": text})
