"""Prices, for platform admins: a million tokens, by endpoint; an hour of a device, by its type; each from a date on."""

import dataclasses
import datetime
import uuid
from decimal import Decimal

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from console import problems
from console.forms import ExactField, styled
from console.web import Place, done, platform_page, refused
from kernel import clock, errors
from metering import deviceprices, prices
from metering.prices import MAX_PRICE, MILLION, TokenPrices
from serving.models import Endpoint

_MOST = MAX_PRICE / MILLION


class UtcField(forms.CharField):
    """A time as the browser's field writes it, read as UTC: hours of the books are in UTC."""

    widget = forms.TextInput(attrs={"type": "datetime-local"})

    def clean(self, value: str) -> datetime.datetime | None:
        text = super().clean(value)
        if not text:
            return None
        try:
            found = datetime.datetime.fromisoformat(text)
        except ValueError:
            raise forms.ValidationError(_("Enter a date and a time, as 2026-12-01T00:00.")) from None
        return found.replace(tzinfo=datetime.UTC) if found.tzinfo is None else found.astimezone(datetime.UTC)


class PriceForm(forms.Form):
    """Amounts of the currency for a million tokens."""

    endpoint = forms.ModelChoiceField(
        label=gettext_lazy("Endpoint"),
        queryset=Endpoint._base_manager.none(),
        required=False,
        empty_label=gettext_lazy("all that have no price of their own"),
    )
    prompt = ExactField(label=gettext_lazy("Prompt"), min_value=0, max_value=_MOST, decimal_places=6)
    cached = ExactField(
        label=gettext_lazy("Cached prompt"), min_value=0, max_value=_MOST, decimal_places=6, required=False,
        help_text=gettext_lazy("Empty: as prompt."),
    )  # fmt: skip
    completion = ExactField(label=gettext_lazy("Output"), min_value=0, max_value=_MOST, decimal_places=6)
    valid_from = UtcField(
        label=gettext_lazy("From (UTC)"), required=False, help_text=gettext_lazy("Empty: from now on.")
    )

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


class DevicePriceForm(forms.Form):
    """An amount of the currency for one whole device and one hour; empty: what all cost."""

    product = forms.ChoiceField(label=gettext_lazy("Device type"), required=False)
    per_hour = ExactField(
        label=gettext_lazy("Per hour"), min_value=0, max_value=_MOST, decimal_places=6, required=False,
        help_text=gettext_lazy("Empty: what all devices cost."),
    )  # fmt: skip
    valid_from = UtcField(
        label=gettext_lazy("From (UTC)"), required=False,
        help_text=gettext_lazy("A whole hour to come; empty: the next one."),
    )  # fmt: skip

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        choices = [("", gettext_lazy("all that have no price of their own"))]
        self.fields["product"].choices = choices + [(name, name) for name in deviceprices.products()]  # type: ignore[attr-defined]
        styled(self)

    def clean(self) -> dict[str, object] | None:
        """The price of all devices is a price: it cannot be what all cost."""
        data = super().clean()
        if data is not None and not data.get("product") and data.get("per_hour") is None:
            self.add_error("per_hour", _("Say what all devices cost; 0 for nothing."))
        return data


@platform_page
def index(request: HttpRequest, place: Place) -> HttpResponse:
    """What holds now, and what is set for later."""
    now = clock.now()
    book = deviceprices.book()
    known = book.at(now)
    context = {
        "default": prices.current().default,
        "rows": prices.priced_endpoints(),
        "later": prices.to_come(),
        "device_default": known.default,
        "devices": [(name, known.of(name), name in known.by_product) for name in deviceprices.products()],
        "devices_later": book.after(now),
    }
    return render(request, "console/pages/prices.html", context)


@platform_page
def change(request: HttpRequest, place: Place) -> HttpResponse:
    """The dialog and the act; ``?endpoint=<id>`` begins with that one."""
    form = PriceForm(request.POST if request.method == "POST" else None, initial=_initial(request))
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            prices.set_price(
                actor=place.actor, endpoint=data["endpoint"], price=form.price(), valid_from=data["valid_from"]
            )
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
def change_device(request: HttpRequest, place: Place) -> HttpResponse:
    """The dialog and the act for an hour of a device; ``?product=`` begins with that one."""
    product = request.GET.get("product", "")
    known = deviceprices.book().at(clock.now())
    initial = {"product": product, "per_hour": f"{Decimal(known.of(product)) / MILLION:f}"}
    form = DevicePriceForm(request.POST if request.method == "POST" else None, initial=initial)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        amount = data["per_hour"]
        try:
            deviceprices.set_price(
                actor=place.actor,
                product=data["product"],
                per_hour=None if amount is None else int(amount * MILLION),
                valid_from=data["valid_from"],
            )
        except errors.PlatformError as exc:
            form.add_error(None, problems.describe(exc).text)
        else:
            return done(request, _("The price is set. Hours before it keep their cost."), _list())
    status = 422 if request.method == "POST" else 200
    return render(request, "console/pages/device_price_form.html", {"form": form}, status=status)


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


@platform_page
def withdraw(request: HttpRequest, place: Place) -> HttpResponse:
    """Take back what is set for later: a token price by its id, a device's by its type and time."""
    if request.method != "POST":
        raise errors.NotFound("There is no such price.", code="price_not_found")
    try:
        if text := request.POST.get("price", ""):
            prices.withdraw(actor=place.actor, price_id=_number(text))
        else:
            start = _moment(request.POST.get("valid_from", ""))
            deviceprices.withdraw(actor=place.actor, product=request.POST.get("product", ""), valid_from=start)
    except errors.PlatformError as exc:
        return refused(request, exc, _list())
    return done(request, _("The later price is taken back."), _list())


def _number(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    raise errors.NotFound("There is no such price.", code="price_not_found")


def _moment(text: str) -> datetime.datetime:
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise errors.NotFound("There is no such price.", code="price_not_found")
    return found


def _list() -> str:
    return reverse("console:platform-prices")
