"""Whether what is guaranteed can be kept: within the tenant's own limit, and by its group for all of its tenants."""

from kernel import errors as platform_errors
from quotas import errors, selectors
from quotas.amount import Amount, Kind
from quotas.models import QuotaGroup, TenantQuota


def check(quota: TenantQuota) -> None:
    """Raise unless every guarantee of ``quota`` (saved or not) is within its limit, and its group can keep them all."""
    for kind in selectors.GUARANTEED:
        firm = Amount.limit(getattr(quota, f"guaranteed_{kind.value}"))
        limit = Amount.limit(getattr(quota, kind.value))
        if not firm.unlimited and not limit.covers(firm):
            raise platform_errors.InvalidInput(
                f"{errors.counted(kind, firm)} cannot be guaranteed: the limit is {errors.describe(kind, limit)}.",
                data={"field": f"guaranteed_{kind.value}"},
            )
        _check_room(quota, kind, firm)


def _check_room(quota: TenantQuota, kind: Kind, firm: Amount) -> None:
    if quota.group is None:
        return
    limit = Amount.limit(getattr(quota.group, kind.value))
    if firm.unlimited and not limit.unlimited:
        raise platform_errors.InvalidInput(
            f"The group {quota.group.name} may hold {errors.counted(kind, limit)}, so no tenant in it can be "
            "guaranteed all that its own limit allows. Name a number as the guarantee; 0 guarantees nothing.",
            data={"field": f"guaranteed_{kind.value}"},
        )
    promised = selectors.promised_in(quota.group, kind, but=quota).plus(firm)
    if not limit.covers(promised):
        raise platform_errors.InvalidInput(
            f"{errors.counted(kind, promised)} would be guaranteed in the group {quota.group.name}; "
            f"it may hold {errors.describe(kind, limit)}.",
            data={"field": f"guaranteed_{kind.value}"},
        )


def check_group(group: QuotaGroup) -> None:
    """Raise unless ``group`` (saved or not) can keep what its tenants are guaranteed."""
    for kind in selectors.GUARANTEED:
        limit, promised = Amount.limit(getattr(group, kind.value)), selectors.promised_in(group, kind)
        endless = [] if limit.unlimited else selectors.endless_in(group, kind)
        if endless:
            raise platform_errors.InvalidInput(
                f"Tenants of the group {group.name} are guaranteed all that their own limit allows: "
                f"{errors.named(endless)}. Name a number as the guarantee of each before the group gets a limit of "
                f"{errors.what(kind)}.",
                data={"field": kind.value, "members": endless},
            )
        if not limit.covers(promised):
            raise platform_errors.InvalidInput(
                f"Guaranteed to tenants of the group {group.name}: {errors.counted(kind, promised)}. "
                f"A limit of {errors.describe(kind, limit)} could not keep that.",
                data={"field": kind.value},
            )
