"""Reads."""

from kernel import scope
from quotas import services, usage
from quotas.amount import Amount, Kind, Line
from quotas.models import TenantQuota
from tenants.models import Tenant


def lines_of(tenant: Tenant) -> list[Line]:
    """Every quota of ``tenant`` with what is used of it, in the order of :class:`Kind`."""
    with scope.tenant(tenant.id):
        quota = TenantQuota.objects.filter(tenant_id=tenant.id).first()
    limits = services.defaults() if quota is None else {kind.value: getattr(quota, kind.value) for kind in Kind}
    return [Line(kind, usage.used(tenant, kind), Amount.limit(limits[kind.value])) for kind in Kind]
