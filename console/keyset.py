"""Keyset pages: newest first, by id, so that they do not shift while rows are added, and cost the same everywhere."""

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Generic, TypeVar

from django.db import models
from django.http import HttpRequest
from django.utils.http import urlencode

M = TypeVar("M", bound=models.Model)


@dataclasses.dataclass(frozen=True)
class Keyset(Generic[M]):
    """``newer`` and ``older`` are the queries of the pages beside this one, "" where there is none."""

    rows: list[M]
    newer: str
    older: str


def page(
    request: HttpRequest, rows: "models.QuerySet[M]", size: int, kept: Mapping[str, str] | None = None
) -> Keyset[M]:
    """The page that ``?after=`` or ``?before=`` (an id) asks for; ``kept`` is what else belongs into the address."""
    after, before = _id(request.GET.get("after")), _id(request.GET.get("before"))
    if before:
        found = list(rows.filter(id__gt=before).order_by("id")[: size + 1])
        has_newer, has_older, found = len(found) > size, True, found[:size][::-1]
    else:
        found = list((rows.filter(id__lt=after) if after else rows).order_by("-id")[: size + 1])
        has_newer, has_older, found = after is not None, len(found) > size, found[:size]
    stays = {name: value for name, value in (kept or {}).items() if value}
    return Keyset(
        found,
        urlencode({**stays, "before": str(found[0].pk)}) if found and has_newer else "",
        urlencode({**stays, "after": str(found[-1].pk)}) if found and has_older else "",
    )


def at(request: HttpRequest) -> dict[str, str]:
    """What of the address says which page it is, for links that stay on it."""
    found = {name: _id(request.GET.get(name)) for name in ("after", "before")}
    return {name: str(value) for name, value in found.items() if value}


def _id(text: str | None) -> uuid.UUID | None:
    try:
        return uuid.UUID(text or "")
    except ValueError:
        return None
