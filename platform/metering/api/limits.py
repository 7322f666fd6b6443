"""REST of limits with their use beside them."""

import dataclasses
from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from metering import limits
from metering.api import serializers as shapes
from tenants.api.base import TenantView
from tenants.api.limits import LimitsOut, amount
from tenants.models import ApiKey, Tenant


class TenantLimitsUse(TenantView):
    """What the tenant and its keys may use, and what they used."""

    serializer_class = shapes.TenantUseOut

    @extend_schema(responses=shapes.TenantUseOut, operation_id="limits_retrieve")
    def get(self, request: Request, tenant: str) -> Response:
        keys = limits.limited_keys(self.tenant)
        uses = limits.of_keys(self.tenant, keys)
        body = {
            **LimitsOut(self.tenant).data,
            "currency": settings.CURRENCY,
            "weight": self.tenant.weight,
            "use": _use(self.tenant, limits.of_tenant(self.tenant)),
            "keys": [
                {"id": str(key.id), "name": key.name, **LimitsOut(key).data, "use": _use(key, uses[key.id])}
                for key in keys
            ],
        }
        return Response(body)


def _use(row: Tenant | ApiKey, use: limits.Use) -> Any:
    body = dataclasses.asdict(use) | {"budget_used": amount(use.budget_used, row.budget_unit)}
    return shapes.UseOut(body).data
