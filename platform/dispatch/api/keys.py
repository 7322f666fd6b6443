"""REST of revoking keys: the answer names the gateways that refuse the key already."""

import uuid
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from dispatch import revocation
from dispatch.revocation import Acknowledgement
from tenants import access
from tenants.api.base import TenantView
from tenants.api.serializers import KeyOut
from tenants.models import ApiKey
from tenants.roles import Permission


class AcknowledgementOut(serializers.Serializer[Any]):
    generation = serializers.IntegerField(help_text="Of the first route table without the key.")
    complete = serializers.BooleanField(help_text="Every live gateway refuses the key.")
    acknowledged = serializers.ListField(
        child=serializers.CharField(), source="by", help_text="Gateways that refuse the key."
    )
    silent = serializers.ListField(
        child=serializers.CharField(),
        help_text="Gateways that have not reported lately: one that still runs serves from its last table.",
    )
    waiting = serializers.ListField(
        child=serializers.CharField(),
        help_text="Live gateways that have not said so yet; each re-reads within 10 s even without a push.",
    )


class KeyRevoked(KeyOut):
    revocation = AcknowledgementOut(read_only=True, allow_null=True)

    class Meta(KeyOut.Meta):
        fields = [*KeyOut.Meta.fields, "revocation"]
        read_only_fields = fields


class KeyRevoke(TenantView):
    """Refuse a key from now on, everywhere. ``GET`` says who knows of it."""

    permissions = {"GET": Permission.VIEW, "POST": Permission.MANAGE_KEYS}
    serializer_class = KeyRevoked

    @extend_schema(request=None, responses=KeyRevoked, operation_id="keys_revoke")
    def post(self, request: Request, tenant: str, key_id: uuid.UUID) -> Response:
        """Answers within 2 s, when all live gateways have acknowledged or that time is over."""
        key = access.access_key(self.actor, self.tenant, key_id, Permission.MANAGE_KEYS)
        done, known = revocation.revoke(actor=self.actor, tenant=self.tenant, key=key)
        return Response(_body(done, known))

    @extend_schema(responses=KeyRevoked, operation_id="keys_revocation")
    def get(self, request: Request, tenant: str, key_id: uuid.UUID) -> Response:
        """Who knows of it now; ``revocation`` is null while the key is not revoked."""
        key = access.access_key(self.actor, self.tenant, key_id)
        return Response(_body(key, revocation.of_key(key)))


def _body(key: ApiKey, known: Acknowledgement | None) -> dict[str, Any]:
    return {**KeyOut(key).data, "revocation": AcknowledgementOut(known).data if known else None}
