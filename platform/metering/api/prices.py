"""REST of prices: platform admins set them, members read what they pay."""

from decimal import Decimal
from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from kernel.actors import Actor
from metering import prices
from metering.api import serializers as shapes
from metering.prices import MILLION, TokenPrices, money
from serving.models import Endpoint
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
        """Charge this, from now or a later time on, for every endpoint without a price of its own."""
        _set(self.actor, None, request)
        return Response(_list())


class EndpointPrice(PlatformView):
    """The price of one endpoint, instead of the one for all."""

    who = "platform_admin"
    serializer_class = shapes.PriceListOut

    @extend_schema(request=shapes.PriceIn, responses=shapes.PriceListOut, operation_id="prices_endpoint_set")
    def put(self, request: Request, tenant: str, endpoint: str) -> Response:
        found = prices.endpoint_for_pricing(self.actor, tenant, endpoint)
        _set(self.actor, found, request)
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


class PriceToCome(PlatformView):
    """A price that is set for later."""

    who = "platform_admin"
    serializer_class = shapes.PriceListOut

    @extend_schema(responses={204: None}, operation_id="prices_withdraw")
    def delete(self, request: Request, price_id: int) -> Response:
        prices.withdraw(actor=self.actor, price_id=price_id)
        return Response(status=204)


def _set(actor: Actor, endpoint: Endpoint | None, request: Request) -> None:
    body = shapes.PriceIn(data=request.data)
    body.is_valid(raise_exception=True)
    data: dict[str, Any] = dict(body.validated_data)
    start = data.pop("valid_from")
    if data["cached"] is None:
        data["cached"] = data["prompt"]
    price = TokenPrices(**{name: int(value * MILLION) for name, value in data.items()})
    prices.set_price(actor=actor, endpoint=endpoint, price=price, valid_from=start)


def _list() -> Any:
    body = {
        "currency": settings.CURRENCY,
        "default": _amounts(prices.current().default),
        "endpoints": [
            {"tenant": row.tenant.slug, "endpoint": row.name, **_amounts(price)}
            for row, price in prices.priced_endpoints()
        ],
        "to_come": [
            {
                "id": row.id,
                "tenant": endpoint.tenant.slug if endpoint else None,
                "endpoint": endpoint.name if endpoint else None,
                "valid_from": row.valid_from,
                **_amounts(TokenPrices(prompt=row.prompt, cached=row.cached, completion=row.completion)),
            }
            for endpoint, row in prices.to_come()
        ],
    }
    return shapes.PriceListOut(body).data


def _amounts(price: TokenPrices) -> dict[str, Decimal]:
    return {
        "prompt": money(price.prompt),
        "cached": money(price.cached),
        "completion": money(price.completion),
    }
