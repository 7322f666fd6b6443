"""Amounts as filters of templates: bytes, counts, money, fractions, milliseconds."""

from decimal import Decimal

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import pgettext

from console.presenters import amounts
from console.presenters import quotas as quota_amounts
from quotas.amount import Amount, Kind

register = template.Library()


@register.filter
def memory(value: float | None) -> SafeString:
    """Bytes with a quiet unit."""
    return _quiet(amounts.memory(_known(value)))


@register.filter
def gpus(value: float | None) -> str:
    """Thousandths of a GPU as GPUs: 2500 is 2.5."""
    return "" if value is None else f"{value / 1000:g}"


@register.filter
def quota_number(kind: Kind, amount: Amount) -> str:
    """An amount of a quota without its kind: 2.5, 1.5 GiB, no limit."""
    return quota_amounts.number(kind, amount)


@register.filter
def gib(value: float | None) -> str:
    """Bytes as GiB, the unit standing elsewhere."""
    return amounts.gib(_known(value))


@register.filter
def count(value: float | None) -> SafeString:
    """A count with a quiet suffix."""
    return _quiet(amounts.count(_known(value)))


@register.filter
def money(value: object) -> str:
    """Millionths of the currency as an amount of it."""
    return amounts.money(float(value) if isinstance(value, int | float | Decimal) else None)


@register.filter
def in_unit(value: float | None, unit: str) -> SafeString | str:
    """A budget's number in its own unit: tokens, or an amount of the currency."""
    return money(value) if unit == "cost" else count(value)


@register.filter
def percent(value: float | None, digits: int = 0) -> str:
    """A fraction as percent, spaced as the language wants."""
    text = amounts.percent(_known(value), digits)
    if not text.unit:
        return text.number
    return pgettext("percent, with the space the language wants", "%(number)s %%") % {"number": text.number}


@register.filter
def hundredths(value: float | str) -> str:
    """A number that is percent already, spaced as the language wants."""
    return pgettext("percent, with the space the language wants", "%(number)s %%") % {"number": value}


@register.filter
def milliseconds(value: float | None) -> SafeString:
    """Milliseconds with a quiet unit."""
    return _quiet(amounts.milliseconds(_known(value)))


@register.filter
def digits(value: float | None) -> str:
    """Three significant digits; a dash for nothing."""
    return str(amounts.count(_known(value)))


@register.filter
def or_dash(value: object) -> object:
    """A dash for nothing; zero stays zero."""
    return amounts.ABSENT if value is None or value == "" else value


def _known(value: object) -> float | None:
    """A number, or ``None`` for nothing; a template hands on "" for what is missing."""
    return float(value) if isinstance(value, int | float) else None


def _quiet(amount: amounts.Amount) -> SafeString:
    if not amount.unit:
        return format_html("{}", amount.number)
    return format_html('{}&nbsp;<span class="unit">{}</span>', amount.number, amount.unit)
