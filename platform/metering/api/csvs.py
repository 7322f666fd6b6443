"""Usage as CSV: ``Accept: text/csv`` or ``?format=csv``."""

import csv
import io
from collections.abc import Mapping
from typing import Any

from rest_framework import renderers

from metering.held import HELD_SUMS
from metering.selectors import SUMS

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class UsageCsv(renderers.BaseRenderer):
    """One line per row of the answer, after a header line."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"
    columns: tuple[str, ...] = ("id", "label", *SUMS)

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> str:
        text = io.StringIO()
        lines = csv.writer(text)
        lines.writerow(self.columns)
        for row in data["rows"]:
            lines.writerow([_harmless(row[name]) for name in self.columns])
        return text.getvalue()


class HeldCsv(UsageCsv):
    """The same of device-hours."""

    columns = ("id", "label", *HELD_SUMS)


def _harmless(value: Any) -> Any:
    """A name that a spreadsheet would take for a formula is marked as text."""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return "'" + value
    return value
