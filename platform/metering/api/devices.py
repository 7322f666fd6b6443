"""REST of device-hours and what they cost."""

import dataclasses
from typing import Any

from django.conf import settings
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from kernel import clock
from metering import deviceprices, held
from metering.api import serializers as shapes
from metering.api.csvs import HeldCsv
from metering.periods import HeldBy, whole_hours
from metering.prices import MILLION, money
from tenants.api.base import PlatformView, TenantView
from tenants.models import Tenant

_FORMAT = OpenApiParameter("format", str, enum=["json", "csv"], description="Instead of the Accept header.")


class TenantHeld(TenantView):
    """GPU-hours that the tenant's deployments held, and those of them in which no request was in flight."""

    serializer_class = shapes.DeviceUsageOut
    renderer_classes = [JSONRenderer, HeldCsv]

    @extend_schema(
        parameters=[shapes.HeldQuery, _FORMAT], responses=shapes.DeviceUsageOut, operation_id="usage_devices_retrieve"
    )
    def get(self, request: Request, tenant: str) -> Response:
        return _answer(self.tenant, shapes.HeldQuery(data=request.query_params))


class AllHeld(PlatformView):
    """GPU-hours of every tenant."""

    who = "platform_admin"
    serializer_class = shapes.DeviceUsageOut
    renderer_classes = [JSONRenderer, HeldCsv]

    @extend_schema(
        parameters=[shapes.AllHeldQuery, _FORMAT],
        responses=shapes.DeviceUsageOut,
        operation_id="admin_usage_devices_retrieve",
    )
    def get(self, request: Request) -> Response:
        return _answer(None, shapes.AllHeldQuery(data=request.query_params))


class DevicePrices(PlatformView):
    """What a whole device costs for an hour, by its type."""

    who = "platform_admin"
    serializer_class = shapes.DevicePriceListOut

    @extend_schema(responses=shapes.DevicePriceListOut, operation_id="device_prices_retrieve")
    def get(self, request: Request) -> Response:
        return Response(_list())

    @extend_schema(request=shapes.DevicePriceIn, responses=shapes.DevicePriceListOut, operation_id="device_prices_set")
    def put(self, request: Request) -> Response:
        """Charge this from a whole hour to come on."""
        body = shapes.DevicePriceIn(data=request.data)
        body.is_valid(raise_exception=True)
        given = body.validated_data
        amount = given["per_hour"]
        deviceprices.set_price(
            actor=self.actor,
            product=given["product"],
            per_hour=None if amount is None else int(amount * MILLION),
            valid_from=given["valid_from"],
        )
        return Response(_list())

    @extend_schema(parameters=[shapes.DevicePriceStart], responses={204: None}, operation_id="device_prices_withdraw")
    def delete(self, request: Request) -> Response:
        """Take back what is set for later."""
        query = shapes.DevicePriceStart(data=request.query_params)
        query.is_valid(raise_exception=True)
        deviceprices.withdraw(actor=self.actor, **query.validated_data)
        return Response(status=204)


def _answer(tenant: Tenant | None, query: shapes.UsageQuery) -> Response:
    query.is_valid(raise_exception=True)
    given = query.validated_data
    group_by = HeldBy(given["group_by"])
    start, end = whole_hours(given.get("from"), given.get("to"), group_by=group_by, now=clock.now())
    rows = held.held_by(tenant, group_by, start, end)
    body = {
        "from": start,
        "to": end,
        "group_by": group_by.value,
        "currency": settings.CURRENCY,
        "rows": [{"id": row.id, "label": row.label, **_plain(row.sums)} for row in rows],
        "totals": _plain(held.totals(rows)),
    }
    return Response(shapes.DeviceUsageOut(body).data)


def _plain(sums: held.HeldSums) -> dict[str, Any]:
    hours = {name: round(value, 6) for name, value in dataclasses.asdict(sums).items() if name != "cost"}
    return {**hours, "cost": money(sums.cost)}


def _list() -> Any:
    now = clock.now()
    book = deviceprices.book()
    known = book.at(now)
    body = {
        "currency": settings.CURRENCY,
        "default": money(known.default),
        "devices": [
            {"product": product, "own": product in known.by_product, "per_hour": money(known.of(product))}
            for product in deviceprices.products()
        ],
        "to_come": [
            {
                "product": change.product,
                "per_hour": None if change.per_hour is None else money(change.per_hour),
                "valid_from": change.valid_from,
            }
            for change in book.after(now)
        ],
    }
    return shapes.DevicePriceListOut(body).data
