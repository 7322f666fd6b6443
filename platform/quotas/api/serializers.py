"""Shapes of this room's REST."""

from collections.abc import Mapping, Sequence
from typing import Any

from rest_framework import serializers

from kernel.api.bodies import Body
from quotas.amount import UNLIMITED_NUMBER, Amount, Kind, Line
from quotas.models import TenantQuota
from quotas.preview import Change, Preview
from quotas.selectors import GUARANTEED, Together
from quotas.tree import MAX_WEIGHT

_MAX_BYTES = 2**63 - 1
_MAX_COUNT = 2**31 - 1
_GUARANTEE = "guaranteed_"


class QuotaItemOut(serializers.Serializer[Any]):
    quota = serializers.ChoiceField(choices=[kind.value for kind in Kind])
    used = serializers.IntegerField(help_text="Bytes, a count of replicas, or thousandths of a GPU.")
    limit = serializers.IntegerField(help_text="-1 is unlimited.")
    left = serializers.IntegerField(help_text="What may still be taken, by the tenant's limit and its group's.")
    guaranteed = serializers.IntegerField(help_text="What nobody may take back; -1: all that the limit allows.")
    borrowed = serializers.IntegerField(help_text="What is held above that.")


class QuotaOut(serializers.Serializer[Any]):
    items = QuotaItemOut(many=True)
    over_quota_weight = serializers.IntegerField()
    group = serializers.CharField(allow_blank=True)


class LimitsIn(Body):
    """Only the limits that are named change. -1 is unlimited."""

    gpu_millis = serializers.IntegerField(
        required=False, min_value=UNLIMITED_NUMBER, max_value=_MAX_BYTES, help_text="Thousandths of a GPU, by slice."
    )
    hbm_bytes = serializers.IntegerField(required=False, min_value=UNLIMITED_NUMBER, max_value=_MAX_BYTES)
    replicas = serializers.IntegerField(required=False, min_value=UNLIMITED_NUMBER, max_value=_MAX_COUNT)
    storage_bytes = serializers.IntegerField(required=False, min_value=UNLIMITED_NUMBER, max_value=_MAX_BYTES)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise serializers.ValidationError(f"Name at least one of {', '.join(self.fields)}.")
        return attrs


class GroupIn(LimitsIn):
    """The limits of a group; an empty body makes one without any."""

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        return attrs


class GroupPreviewIn(GroupIn):
    """The limits that a group would get, or ``delete``: what its deletion would mean."""

    delete = serializers.BooleanField(required=False, default=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs["delete"] and len(attrs) > 1:
            raise serializers.ValidationError("Name limits or delete, not both.")
        return attrs


class QuotaIn(LimitsIn):
    """Only what is named changes. -1 is unlimited; a guarantee of -1 promises all that the limit allows.

    In a group that has a limit a guarantee is a number.
    """

    guaranteed_gpu_millis = serializers.IntegerField(required=False, min_value=UNLIMITED_NUMBER, max_value=_MAX_BYTES)
    guaranteed_hbm_bytes = serializers.IntegerField(required=False, min_value=UNLIMITED_NUMBER, max_value=_MAX_BYTES)
    over_quota_weight = serializers.IntegerField(
        required=False, min_value=0, max_value=MAX_WEIGHT, help_text="Share in what is left above all guarantees."
    )
    group = serializers.CharField(required=False, allow_blank=True, max_length=40, help_text='"" leaves the group.')


class ChangeOut(serializers.Serializer[Any]):
    quota = serializers.CharField()
    used = serializers.IntegerField()
    limit_before = serializers.IntegerField()
    limit_after = serializers.IntegerField()
    left_before = serializers.IntegerField(help_text="What may be taken now, by this limit and the group's.")
    left_after = serializers.IntegerField()
    over = serializers.IntegerField(help_text="Held above the new limit: kept, but nothing more is given.")
    newly_borrowed = serializers.IntegerField(help_text="Held above the new guarantee: others may claim it back.")


class HeldOut(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    endpoint = serializers.CharField()
    gpu_millis = serializers.IntegerField()
    hbm_bytes = serializers.IntegerField()


class BorrowerOut(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    gpu_millis = serializers.IntegerField()
    hbm_bytes = serializers.IntegerField()


class RoofOut(serializers.Serializer[Any]):
    name = serializers.CharField()
    changes = ChangeOut(many=True)


class SqueezedOut(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    changes = ChangeOut(many=True, help_text="The kinds of which it could take no more, or holds what is above.")


class PreviewOut(serializers.Serializer[Any]):
    """Whom the change would hurt."""

    hurts = serializers.BooleanField()
    changes = ChangeOut(many=True, help_text="The limits of the tenant or the group that is changed.")
    reclaimable = HeldOut(many=True, help_text="Deployments that could lose replicas, first first.")
    may_lose = BorrowerOut(many=True, help_text="Tenants that hold more than their guarantee.")
    group = RoofOut(allow_null=True, help_text="The group that the tenant would come into, with all that it holds.")
    members = SqueezedOut(many=True, help_text="Tenants of the group that would be worse off.")


class GroupMemberOut(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    items = QuotaItemOut(many=True)


class GroupOut(serializers.Serializer[Any]):
    name = serializers.CharField()
    members = serializers.ListField(child=serializers.CharField())
    items = QuotaItemOut(many=True, help_text="What the members hold together.")
    held_by = GroupMemberOut(many=True, help_text="What each member holds.")


class GroupsOut(serializers.Serializer[Any]):
    items = GroupOut(many=True)


def arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """A :class:`QuotaIn` as ``set_quota`` and ``preview`` take it."""
    return {
        "changes": {kind: Amount.limit(given[kind.value]) for kind in Kind if kind.value in given},
        "guaranteed": {
            kind: Amount.limit(given[_GUARANTEE + kind.value])
            for kind in GUARANTEED
            if _GUARANTEE + kind.value in given
        },
        "weight": given.get("over_quota_weight"),
        "group": given.get("group"),
    }


def plain(lines: Sequence[Line], terms: TenantQuota) -> dict[str, Any]:
    """The answer for ``lines``."""
    return {
        "items": [item(line) for line in lines],
        "over_quota_weight": terms.over_quota_weight,
        "group": terms.group.name if terms.group is not None else "",
    }


def item(line: Line) -> dict[str, Any]:
    """One line."""
    return {
        "quota": line.kind.value, "used": line.used.as_number(), "limit": line.limit.as_number(),
        "left": line.left.as_number(), "guaranteed": line.guaranteed.as_number(),
        "borrowed": line.borrowed.as_number(),
    }  # fmt: skip


def group(found: Together) -> dict[str, Any]:
    """The answer for one group."""
    return {
        "name": found.group.name,
        "members": [member.tenant.slug for member in found.members],
        "items": [item(line) for line in found.lines],
        "held_by": [
            {"tenant": member.tenant.slug, "items": [item(line) for line in member.lines]} for member in found.members
        ],
    }


def preview_body(found: Preview) -> dict[str, Any]:
    """The answer for a preview."""
    return {
        "hurts": found.hurts,
        "changes": _changes(found.changes),
        "reclaimable": [
            {
                "tenant": held.tenant, "endpoint": held.label,
                **{kind.value: held.amounts[kind].as_number() for kind in GUARANTEED},
            }
            for held in found.reclaimable
        ],
        "may_lose": [
            {
                "tenant": borrower.slug, "gpu_millis": borrower.gpu_millis.as_number(),
                "hbm_bytes": borrower.hbm_bytes.as_number(),
            }
            for borrower in found.may_lose
        ],
        "group": {"name": found.group.name, "changes": _changes(found.group.changes)} if found.group else None,
        "members": [{"tenant": one.slug, "changes": _changes(one.changes)} for one in found.members],
    }  # fmt: skip


def _changes(changes: Sequence[Change]) -> list[dict[str, Any]]:
    return [
        {
            "quota": change.after.kind.value, "used": change.after.used.as_number(),
            "limit_before": change.before.limit.as_number(), "limit_after": change.after.limit.as_number(),
            "left_before": change.before.left.as_number(), "left_after": change.after.left.as_number(),
            "over": change.over.as_number(), "newly_borrowed": change.newly_borrowed.as_number(),
        }
        for change in changes
    ]  # fmt: skip
