"""REST of prices: platform admins set them, members read what they pay."""

from decimal import Decimal
from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from metering import prices
from metering.api import serializers as shapes
from metering.prices import MILLION, TokenPrices, money
from serving.selectors import callable_endpoints
from tenants.api.base import PlatformView, TenantView


class Prices(PlatformView):
    """What a million tokens costs: the price for all endpoints, and those of single ones."""

    who = "platform_admin"
    serializer_class = shapes.PriceListOut

    @extend_schema(responses=shapes.PriceListOut, operation_id="prices_retrieve")
    def get(self, request: Request) -> Response:
        return Response(_list())

    @extend_schema(request=shapes.PriceIn, responses=shapes.PriceListOut, operation_id="prices_default_set")
    def put(self, request: Request) -> Response:
        """Charge this from now on for every endpoint without a price of its own; what is booked keeps its cost."""
        prices.set_price(actor=self.actor, endpoint=None, price=_given(request))
        return Response(_list())


class EndpointPrice(PlatformView):
    """The price of one endpoint, instead of the one for all."""

    who = "platform_admin"
    serializer_class = shapes.PriceListOut

    @extend_schema(request=shapes.PriceIn, responses=shapes.PriceListOut, operation_id="prices_endpoint_set")
    def put(self, request: Request, tenant: str, endpoint: str) -> Response:
        found = prices.endpoint_for_pricing(self.actor, tenant, endpoint)
        prices.set_price(actor=self.actor, endpoint=found, price=_given(request))
        return Response(_list())

    @extend_schema(responses={204: None}, operation_id="prices_endpoint_remove")
    def delete(self, request: Request, tenant: str, endpoint: str) -> Response:
        found = prices.endpoint_for_pricing(self.actor, tenant, endpoint)
        prices.remove_price(actor=self.actor, endpoint=found)
        return Response(status=204)


class TenantPrices(TenantView):
    """What this tenant pays for what it may call."""

    serializer_class = shapes.TenantPricesOut

    @extend_schema(responses=shapes.TenantPricesOut, operation_id="tenant_prices_retrieve")
    def get(self, request: Request, tenant: str) -> Response:
        known = prices.current()
        rows = [
            {
                "endpoint": row.model,
                "own": row.endpoint.id in known.by_endpoint,
                **_amounts(known.of(row.endpoint.id)),
            }
            for row in callable_endpoints(self.tenant)
        ]
        return Response(shapes.TenantPricesOut({"currency": settings.CURRENCY, "endpoints": rows}).data)


def _given(request: Request) -> TokenPrices:
    body = shapes.PriceIn(data=request.data)
    body.is_valid(raise_exception=True)
    data: dict[str, Decimal | None] = body.validated_data
    if data["cached"] is None:
        data["cached"] = data["prompt"]
    return TokenPrices(**{name: int(value * MILLION) for name, value in data.items() if value is not None})


def _list() -> Any:
    body = {
        "currency": settings.CURRENCY,
        "default": _amounts(prices.current().default),
        "endpoints": [
            {"tenant": row.tenant.slug, "endpoint": row.name, **_amounts(price)}
            for row, price in prices.priced_endpoints()
        ],
    }
    return shapes.PriceListOut(body).data


def _amounts(price: TokenPrices) -> dict[str, Decimal]:
    return {
        "prompt": money(price.prompt),
        "cached": money(price.cached),
        "completion": money(price.completion),
    }
