"""Bars, vessels, meters and charts for templates."""

import datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from console.presenters import amounts, charts, hbm
from console.tags.figures import digits

register = template.Library()
_LEGEND = ("other", "weights", "workspace", "used", "cached", "free")


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
