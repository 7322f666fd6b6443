"""Prices, for platform admins: what a million tokens costs, for all endpoints and for single ones."""

import dataclasses
import uuid
from decimal import Decimal

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console import problems
from console.forms import styled
from console.web import Place, done, platform_page, refused
from kernel import errors
from metering import prices
from metering.prices import MAX_PRICE, MILLION, TokenPrices
from serving.models import Endpoint

_MOST = MAX_PRICE / MILLION


class PriceForm(forms.Form):
    """Amounts of the currency for a million tokens."""

    endpoint = forms.ModelChoiceField(
        label=gettext_lazy("Endpoint"),
        queryset=Endpoint._base_manager.none(),
        required=False,
        empty_label=gettext_lazy("all that have no price of their own"),
    )
    prompt = forms.DecimalField(label=gettext_lazy("Prompt"), min_value=0, max_value=_MOST, decimal_places=6)
    cached = forms.DecimalField(
        label=gettext_lazy("Cached prompt"), min_value=0, max_value=_MOST, decimal_places=6, required=False,
        help_text=gettext_lazy("Empty: as prompt."),
    )  # fmt: skip
    completion = forms.DecimalField(label=gettext_lazy("Output"), min_value=0, max_value=_MOST, decimal_places=6)

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        chosen = self.fields["endpoint"]
        chosen.queryset = Endpoint.objects.select_related("tenant").order_by("tenant__slug", "name")  # type: ignore[attr-defined]
        chosen.label_from_instance = lambda row: f"{row.tenant.slug}/{row.name}"  # type: ignore[attr-defined]
        styled(self)

    def price(self) -> TokenPrices:
        """What was filled in."""
        data = self.cleaned_data
        data["cached"] = data["prompt"] if data["cached"] is None else data["cached"]
        return TokenPrices(**{name: int(data[name] * MILLION) for name in ("prompt", "cached", "completion")})


@platform_page
def index(request: HttpRequest, place: Place) -> HttpResponse:
    """The list."""
    context = {"default": prices.current().default, "rows": prices.priced_endpoints()}
    return render(request, "console/pages/prices.html", context)


@platform_page
def change(request: HttpRequest, place: Place) -> HttpResponse:
    """The dialog and the act; ``?endpoint=<id>`` begins with that one."""
    form = PriceForm(request.POST if request.method == "POST" else None, initial=_initial(request))
    if request.method == "POST" and form.is_valid():
        try:
            prices.set_price(actor=place.actor, endpoint=form.cleaned_data["endpoint"], price=form.price())
        except errors.PlatformError as exc:
            form.add_error(None, problems.describe(exc).text)
        else:
            return done(request, _("The price is changed. What is booked keeps its cost."), _list())
    status = 422 if request.method == "POST" else 200
    return render(request, "console/pages/price_form.html", {"form": form}, status=status)


def _initial(request: HttpRequest) -> dict[str, object]:
    known = prices.current()
    text = request.GET.get("endpoint", "")
    try:
        chosen = uuid.UUID(text) if text else None
    except ValueError:
        chosen = None
    price = known.default if chosen is None else known.of(chosen)
    amounts = {name: f"{Decimal(value) / MILLION:f}" for name, value in dataclasses.asdict(price).items()}
    return {**amounts, "endpoint": chosen}


@platform_page
def remove(request: HttpRequest, place: Place, endpoint_id: uuid.UUID) -> HttpResponse:
    """Let the endpoint cost what all cost again."""
    found = Endpoint.objects.filter(id=endpoint_id).first()
    if found is None or request.method != "POST":
        raise errors.NotFound("There is no such price.", code="price_not_found")
    try:
        prices.remove_price(actor=place.actor, endpoint=found)
    except errors.PlatformError as exc:
        return refused(request, exc, _list())
    return done(request, _("%(name)s costs what all cost again.") % {"name": found.name}, _list())


def _list() -> str:
    return reverse("console:platform-prices")
