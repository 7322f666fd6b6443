"""REST of usage."""

import dataclasses
from typing import Any

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from kernel import clock
from metering import selectors
from metering.api import serializers as shapes
from metering.api.csvs import UsageCsv
from metering.periods import GroupBy, whole_hours
from metering.prices import money
from tenants.api.base import TenantView


class Usage(TenantView):
    """What the tenant used, summed up; with ``group_by=caller``, who called its endpoints."""

    serializer_class = shapes.UsageOut
    renderer_classes = [JSONRenderer, UsageCsv]

    @extend_schema(
        parameters=[
            shapes.UsageQuery,
            OpenApiParameter("format", str, enum=["json", "csv"], description="Instead of the Accept header."),
        ],
        responses=shapes.UsageOut,
        operation_id="usage_retrieve",
    )
    def get(self, request: Request, tenant: str) -> Response:
        query = shapes.UsageQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        given = query.validated_data
        group_by = GroupBy(given["group_by"])
        start, end = whole_hours(given.get("from"), given.get("to"), group_by=group_by, now=clock.now())
        rows = selectors.usage_by(self.tenant, group_by, start, end)
        body = {
            "from": start,
            "to": end,
            "group_by": group_by.value,
            "currency": settings.CURRENCY,
            "rows": [{"id": row.id, "label": row.label, **_plain(row.sums)} for row in rows],
            "totals": _plain(selectors.totals(rows)),
        }
        return Response(shapes.UsageOut(body).data)


def _plain(sums: selectors.Sums) -> dict[str, Any]:
    return {**dataclasses.asdict(sums), "cost": money(sums.cost)}
