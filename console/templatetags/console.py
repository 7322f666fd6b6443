"""Icons, states, bars, charts and amounts for templates. SVG comes with attributes only: no inline style, ever."""

import datetime
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from django import template
from django.contrib.messages.storage.base import Message
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, ngettext, pgettext
from django.utils.translation import gettext as _

from console.presenters import amounts, charts, codewords, glyphs, hbm, icons, limits, reasons, sentences
from console.presenters import isolation as isolations
from console.presenters import quotas as quota_amounts
from console.web import UNDO_TAG
from kernel import clock
from quotas.amount import Amount, Kind

register = template.Library()
_HIDDEN = SafeString(' class="sr"')
_LEGEND = ("other", "weights", "workspace", "used", "cached", "free")


@register.simple_tag
def icon(name: str, extra: str = "") -> SafeString:
    """A line icon; decorative, so it needs a word or a label beside it."""
    markup = mark_safe(icons.ICONS[name])  # noqa: S308  (our own constants)
    return format_html(
        '<svg class="icon{}" viewBox="0 0 16 16" aria-hidden="true">{}</svg>', extra and f" {extra}", markup
    )


@register.simple_tag
def mark(size: int = 22) -> SafeString:
    """The mark of the product."""
    markup = mark_safe(icons.MARK)  # noqa: S308  (our own constant)
    return format_html(
        '<svg width="{}" height="{}" viewBox="0 0 18 18" aria-hidden="true">{}</svg>', size, size, markup
    )


@register.simple_tag
def state(kind: str, name: object, word: str = "", title: str = "", only_icon: bool = False) -> SafeString:
    """Icon, word and colour of a state; ``title`` is what hovering says (reason, sentence, since when)."""
    glyph = glyphs.of(kind, str(name))
    markup = mark_safe(glyph.markup)  # noqa: S308  (our own constants)
    text = word or str(glyph.word)
    hint = codewords.coded(sentences.said(title).text).text or (text if only_icon else "")
    said = format_html(' title="{}"', hint) if hint else ""
    return format_html(
        '<span class="state {}"{}><svg viewBox="0 0 14 14" aria-hidden="true">{}</svg><span{}>{}</span></span>',
        glyph.tone, said, markup, _HIDDEN if only_icon else "", text,
    )  # fmt: skip


@register.simple_tag
def said(sentence: str) -> str | SafeString:
    """A room's sentence in the visitor's language; where it cannot be, marked as English."""
    found = sentences.said(sentence or "")
    if found.is_translated or not found.text:
        return found.text
    return format_html('<span lang="en">{}</span>', found.text)


@register.simple_tag
def plan_refusal(sentence: str, code: str = "") -> str | SafeString:
    """Why a way over several devices is not taken: the sentence, or where it is not known the code in words with it."""
    found = sentences.said(sentence or "")
    if found.is_translated or not code or (get_language() or "en").startswith("en"):
        return said(sentence)
    return format_html('{} (<span lang="en">{}</span>)', reasons.word(code), found.text)


@register.simple_tag
def code(name: str, classes: str = "", *, tag: str = "span", title: str = "") -> SafeString | str:
    """A code of a room: as it is in English, else in words with the code (or ``title``, a sentence) behind them."""
    if not name:
        return ""
    found = codewords.coded(name)
    hint = sentences.said(title).text or ("" if found.is_code else name)
    looks = " ".join(part for part in ("mono" if found.is_code else "", classes) if part)
    attributes = format_html(' class="{}"', looks) if looks else ""
    said = format_html(' title="{}"', hint) if hint else ""
    wrapped = mark_safe(tag)  # noqa: S308  (a word of ours in a template)
    return format_html("<{}{}{}>{}</{}>", wrapped, attributes, said, found.text, wrapped)


@register.filter
def code_text(name: str) -> str:
    """The same as text alone; what is no code of a room stays as it is."""
    return codewords.coded(name).text


@register.simple_tag
def said_plain(sentence: str) -> str:
    """The same for an attribute, which cannot be marked."""
    return sentences.said(sentence or "").text


@register.simple_tag
def glyph(kind: str, name: object, title: str = "") -> SafeString:
    """The bare shape of a state with its top left corner moved by half, to stand inside another SVG."""
    found = glyphs.of(kind, str(name))
    markup = mark_safe(found.markup)  # noqa: S308  (our own constants)
    return format_html('<g class="{}" transform="translate(-7 0)"><title>{}</title>{}</g>', found.tone, title, markup)


@register.inclusion_tag("console/parts/hbm.html")
def hbm_bar(memory: hbm.Memory | None, height: int = 8, label: str = "", ticks: bool = True) -> dict[str, Any]:
    """The HBM bar. ``memory`` ``None`` draws the empty track."""
    known = memory or hbm.Memory(total=0)
    parts = hbm.segments(known)
    return {
        "memory": known,
        "height": height,
        "box": height + 8 if ticks else height,
        "segments": parts,
        "ticks": [(tick, height + 2, height + (6 if tick.name == "low" else 8)) for tick in hbm.ticks(known)]
        if ticks
        else [],
        "gaps": [part.end for part in parts],
        "level": None if not known.level else round(min(known.level, 1.0) * 100, 2),
        "level_end": height + 2,
        "peak": None if known.peak is None else round(min(known.peak, 1.0) * 100, 2),
        "text": _bar_text(known, label),
    }


def _bar_text(memory: hbm.Memory, label: str) -> str:
    if not memory.total:
        return _("%(what)s: no memory in use") % {"what": label or "HBM"}
    return _(
        "%(what)s: level %(level)s %%; other %(other)s, weights %(weights)s, workspace %(workspace)s, "
        "KV used %(used)s, KV cached %(cached)s of %(total)s GiB"
    ) % {
        "what": label or "HBM",
        "level": f"{(memory.level or 0) * 100:.0f}",
        **{name: amounts.gib(getattr(memory, name)) for name in (*hbm.SEGMENTS, "total")},
    }


@register.inclusion_tag("console/parts/legend.html")
def hbm_legend() -> dict[str, Any]:
    """What the colours of the bar mean."""
    return {"segments": _LEGEND}


@register.inclusion_tag("console/parts/vessel.html")
def vessel(cells: list[hbm.Cell], height: int = 50, is_shut: bool = False, label: str = "") -> dict[str, Any]:
    """A GPU as an open vessel, filled from the bottom."""
    scaled = [
        {
            "x": cell.x,
            "width": cell.width,
            "end": round(cell.x + cell.width, 2),
            "wall": cell.wall,
            "mood": cell.mood,
            "level": None if cell.level is None else round(cell.level * height / 100, 1),
            "rows": [
                (row.name, round(row.x * height / 100, 1), round(row.width * height / 100, 1)) for row in cell.rows
            ],
        }
        for cell in cells
    ]
    return {
        "cells": scaled,
        "height": height,
        "fill_line": round(height * (1 - hbm.HIGH), 1),
        "is_shut": is_shut,
        "label": label,
    }


@register.inclusion_tag("console/parts/meter.html")
def meter(
    used: float, limit: float | None, reserved: float = 0, height: int = 6, warns: bool = True, is_limit: bool = False
) -> dict[str, Any]:
    """A quiet meter of ``used`` against ``limit``, empty without one. Decorative: the numbers stand beside it."""
    share = 0.0 if not limit or limit < 0 else min(100.0, used / limit * 100)
    more = 0.0 if not limit or limit < 0 else min(100.0 - share, reserved / limit * 100)
    is_over = bool(warns and limit and limit > 0 and used >= limit)
    return {"share": round(share, 2), "more": round(more, 2), "height": height, "is_over": is_over or is_limit}


@register.simple_tag
def spark(values: list[float | None], tone: str = "") -> SafeString:
    """A sparkline without scale; decorative."""
    path = charts.spark(values or [])
    if not path:
        return SafeString("")
    return format_html(
        '<svg class="spark {}" width="48" height="14" viewBox="0 0 48 14" aria-hidden="true"><path d="{}"/></svg>',
        tone,
        path,
    )


@register.inclusion_tag("console/parts/chart.html")
def chart(value: charts.Chart) -> dict[str, Any]:
    """A line chart with its table, whose cells the page's script sets when it is opened: ``time TAB value ...``."""
    table = "\n".join("\t".join([_row_time(at, value), *map(digits, values)]) for at, values in value.rows)
    return {"chart": value, "table": table}


def _row_time(at: datetime.datetime, shown: charts.Chart) -> str:
    local = timezone.localtime(at)
    day_first = f"{date_format(local, shown.time_format)} " if shown.is_long else ""
    return f"{day_first}{local:%H:%M:%S}"


@register.filter
def undo(message: Message) -> dict[str, Any] | None:
    """Where a toast's change is taken back and with which fields; ``None`` where it cannot be."""
    tags = message.extra_tags or ""
    found: dict[str, Any] | None = json.loads(tags.removeprefix(UNDO_TAG)) if tags.startswith(UNDO_TAG) else None
    return found


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
def quota_word(kind: Kind) -> str:
    """What a quota counts, as the head of a column."""
    return str(quota_amounts.WORDS[kind])


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
def period_text(value: str) -> str:
    """When a budget begins anew."""
    return str(limits.PERIODS[value])


@register.filter
def sticky_text(value: str) -> str:
    """What keeps a caller on one variant of an endpoint."""
    return str(limits.STICKY[value])


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


@register.filter
def isolation(value: str) -> str:
    """What a part of a device is, in words."""
    return str(isolations.CLASSES.get(value, value))


@register.filter
def required_isolation(value: str) -> str:
    """The least isolation that is accepted, in words."""
    return str(isolations.REQUIRED.get(value, value))


@register.filter
def wall(value: str) -> str:
    """A kind of isolation that a host may offer, in words."""
    return str(isolations.WALLS.get(value, value))


@register.filter
def item(mapping: Mapping[str, Any] | None, key: str) -> Any:
    """``mapping[key]``, or nothing."""
    return (mapping or {}).get(key)


@register.filter
def initials(label: str) -> str:
    """At most two letters for the round badge of a person."""
    words = label.replace("@", " ").replace(".", " ").split()
    return "".join(word[0] for word in words[:2]).upper() or "?"
