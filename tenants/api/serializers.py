"""Shapes of this room's REST."""

from typing import Any

from rest_framework import serializers

from kernel.api.bodies import Body
from ledger.models import AuditEvent
from tenants.api.limits import LimitsIn, LimitsOut
from tenants.keys import DEFAULT_OVERLAP, MAX_OVERLAP
from tenants.models import ApiKey, Criticality, Invitation, KeyScope, Member, ServiceAccount, Tenant
from tenants.roles import SERVICE_ROLES, Role
from tenants.services import MAX_WEIGHT, MIN_WEIGHT
from tenants.terms import MAX_ADDRESSES, MAX_ENDPOINTS


class LoginIn(Body):
    email = serializers.EmailField()
    password = serializers.CharField(max_length=256, trim_whitespace=False)
    code = serializers.CharField(
        max_length=64, required=False, default="", allow_blank=True,
        help_text="Of the authenticator app, or a recovery code, where a second factor is set up.",
    )  # fmt: skip
    name = serializers.CharField(max_length=120, required=False, default="command line")


class UserOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    email = serializers.EmailField()
    name = serializers.CharField()
    is_platform_admin = serializers.BooleanField()


class LoginOut(serializers.Serializer[Any]):
    token = serializers.CharField(help_text="Shown once. Send it as a bearer token.")
    expires_at = serializers.DateTimeField()
    user = UserOut()


class MembershipOut(serializers.Serializer[Any]):
    slug = serializers.CharField()
    name = serializers.CharField()
    role = serializers.CharField(allow_null=True)


class MeOut(serializers.Serializer[Any]):
    kind = serializers.CharField()
    label = serializers.CharField()  # type: ignore[assignment]  # a field of the answer, not the field's label
    is_platform_admin = serializers.BooleanField()
    tenants = MembershipOut(many=True)


class TenantOut(LimitsOut, serializers.ModelSerializer[Tenant]):
    class Meta:
        model = Tenant
        fields = [
            "id", "slug", "name", "suspended_at", "rpm_limit", "tpm_limit", "max_parallel_requests", "max_budget",
            "budget_unit", "budget_duration", "budget_blocks", "weight", "created_at",
        ]  # fmt: skip
        read_only_fields = fields


class TenantIn(Body):
    slug = serializers.CharField(max_length=40)
    name = serializers.CharField(max_length=120, required=False, default="")
    owner_email = serializers.EmailField(required=False)


class TenantLimitsIn(LimitsIn):
    weight = serializers.FloatField(
        required=False, min_value=MIN_WEIGHT, max_value=MAX_WEIGHT,
        help_text="Share of an engine's work beside others who wait; 1 is usual.",
    )  # fmt: skip


class SuspendIn(Body):
    reason = serializers.CharField(max_length=2000, help_text="A sentence for the tenant's audit log.")


class MemberOut(serializers.ModelSerializer[Member]):
    email = serializers.EmailField(source="user.email", read_only=True)
    name = serializers.CharField(source="user.name", read_only=True)

    class Meta:
        model = Member
        fields = ["id", "email", "name", "role", "created_at"]
        read_only_fields = fields


class MemberIn(Body):
    email = serializers.EmailField()
    role = serializers.ChoiceField(choices=[role.value for role in Role])


class KeyOut(LimitsOut, serializers.ModelSerializer[ApiKey]):
    masked = serializers.CharField(read_only=True)
    created_by = serializers.CharField(source="created_by.email", read_only=True, default=None, allow_null=True)
    service_account = serializers.CharField(
        source="service_account.name", read_only=True, default=None, allow_null=True
    )

    class Meta:
        model = ApiKey
        fields = [
            "id", "name", "masked", "service_account", "scopes", "allowed_endpoints", "allowed_addresses",
            "criticalities", "rpm_limit", "tpm_limit", "max_parallel_requests", "max_budget", "budget_unit",
            "budget_duration",
            "budget_blocks", "created_by", "created_at", "expires_at", "rotated_at", "previous_expires_at",
            "revoked_at", "last_used_at",
        ]  # fmt: skip
        read_only_fields = fields


class KeyCreated(KeyOut):
    key = serializers.CharField(read_only=True, help_text="The key itself: shown only in this answer.")

    class Meta(KeyOut.Meta):
        fields = [*KeyOut.Meta.fields, "key"]
        read_only_fields = fields


class KeyPatch(LimitsIn):
    name = serializers.CharField(max_length=120, required=False)
    expires_at = serializers.DateTimeField(required=False, allow_null=True)
    allowed_endpoints = serializers.ListField(
        child=serializers.CharField(max_length=128),
        required=False,
        max_length=MAX_ENDPOINTS,
        help_text="Names as the tenant calls them; empty means all.",
    )
    allowed_addresses = serializers.ListField(
        child=serializers.CharField(max_length=60),
        required=False,
        max_length=MAX_ADDRESSES,
        help_text="Networks like 10.0.0.0/8 that the key may be used from; empty means any.",
    )
    criticalities = serializers.ListField(
        child=serializers.ChoiceField(choices=Criticality.values),
        required=False,
        max_length=len(Criticality.values),
        help_text="Priority classes above the usual one that requests may ask for.",
    )


class KeyIn(KeyPatch):
    name = serializers.CharField(max_length=120)
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=KeyScope.values), required=False, default=[KeyScope.INFERENCE.value]
    )


class InvitationOut(serializers.ModelSerializer[Invitation]):
    created_by = serializers.CharField(source="created_by.email", read_only=True, default=None, allow_null=True)

    class Meta:
        model = Invitation
        fields = ["id", "email", "role", "by_mail", "created_by", "created_at", "sent_at", "sends", "expires_at"]
        read_only_fields = fields


class InvitationSent(InvitationOut):
    link = serializers.CharField(
        read_only=True, allow_null=True, help_text="Only where it did not go out by mail; shown only in this answer."
    )

    class Meta(InvitationOut.Meta):
        fields = [*InvitationOut.Meta.fields, "link"]
        read_only_fields = fields


class InvitationAccept(Body):
    token = serializers.CharField(max_length=200, help_text="The last part of the link.")


class ServiceAccountOut(serializers.ModelSerializer[ServiceAccount]):
    created_by = serializers.CharField(source="created_by.email", read_only=True, default=None, allow_null=True)
    live_keys = serializers.IntegerField(read_only=True, default=0)

    class Meta:
        model = ServiceAccount
        fields = ["id", "name", "role", "live_keys", "created_by", "created_at", "disabled_at"]
        read_only_fields = fields


class ServiceAccountEnded(ServiceAccountOut):
    keys_revoked = serializers.IntegerField(read_only=True)

    class Meta(ServiceAccountOut.Meta):
        fields = [*ServiceAccountOut.Meta.fields, "keys_revoked"]
        read_only_fields = fields


class ServiceAccountPatch(Body):
    role = serializers.ChoiceField(choices=[role.value for role in SERVICE_ROLES])


class ServiceAccountIn(ServiceAccountPatch):
    name = serializers.CharField(max_length=80)


class KeyRotateIn(Body):
    overlap_seconds = serializers.IntegerField(
        required=False,
        default=int(DEFAULT_OVERLAP.total_seconds()),
        min_value=0,
        max_value=int(MAX_OVERLAP.total_seconds()),
        help_text="How long the old key is still accepted beside the new one.",
    )


class EventOut(serializers.ModelSerializer[AuditEvent]):
    class Meta:
        model = AuditEvent
        fields = [
            "id", "at", "actor_kind", "actor_label", "way", "address", "request_id", "action", "subject_kind",
            "subject_id", "subject_label", "reason", "message", "data",
        ]  # fmt: skip
        read_only_fields = fields
