"""Times and spans as filters of templates."""

import datetime

from django import template
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from console.presenters import amounts
from kernel import clock

register = template.Library()


@register.filter
def ago(at: datetime.datetime | None) -> SafeString:
    """How long ago, with the exact time on hover."""
    if not at:
        return SafeString(amounts.ABSENT)
    text = pgettext("age of something", "%(span)s") % {"span": span((clock.now() - at).total_seconds())}
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(timespec="seconds"), exact(at), text)


@register.filter
def since(at: datetime.datetime | None) -> SafeString:
    """The span since ``at``, for a sentence that says the rest."""
    if not at:
        return SafeString(amounts.ABSENT)
    text = span((clock.now() - at).total_seconds())
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(timespec="seconds"), exact(at), text)


@register.filter
def until(at: datetime.datetime | None) -> SafeString:
    """How long until ``at``."""
    if not at:
        return SafeString(amounts.ABSENT)
    left = (at - clock.now()).total_seconds()
    text = _("past") if left <= 0 else pgettext("time from now", "in %(span)s") % {"span": span(left)}
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(timespec="seconds"), exact(at), text)


@register.filter
def seconds(value: float | None) -> str:
    """A span of time given in seconds."""
    return amounts.ABSENT if value is None else span(value)


@register.filter
def clock_time(at: datetime.datetime | None) -> SafeString:
    """The time of day in the visitor's zone (with the date when it was another day)."""
    if not at:
        return SafeString(amounts.ABSENT)
    local = timezone.localtime(at)
    same_day = local.date() == timezone.localtime(clock.now()).date()
    text = local.strftime("%H:%M:%S") if same_day else date_format(local, "MONTH_DAY_FORMAT")
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(timespec="seconds"), exact(at), text)


@register.filter
def exact(at: datetime.datetime | None) -> str:
    """Date, time and zone."""
    return "" if not at else timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S %Z")


@register.filter
def day(at: datetime.datetime | datetime.date | None) -> str:
    """A calendar day in the visitor's language."""
    return amounts.ABSENT if not at else date_format(at, "DATE_FORMAT")


def span(seconds: float) -> str:
    """A span of time in its largest unit: ``5 s``, ``3 min``, ``2 h``, ``6 d``."""
    whole = max(0, int(seconds))
    if whole < 60:
        return _("%(count)s s") % {"count": whole}
    if whole < 3600:
        return _("%(count)s min") % {"count": whole // 60}
    if whole < 2 * 86400:
        return _("%(count)s h") % {"count": whole // 3600}
    return ngettext("%(count)s d", "%(count)s d", whole // 86400) % {"count": whole // 86400}


@register.filter
def bucket(label: str, unit: str) -> str:
    """The label of a row: a time as short as its unit (``hour``, ``day``, ``month``) allows, any other as it is."""
    lengths = {"hour": 16, "day": 10, "month": 7}
    return label[: lengths[unit]].replace("T", " ") if unit in lengths else label
