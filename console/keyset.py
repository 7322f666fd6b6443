"""Keyset pages: newest first by id, or by name, so that they do not shift while rows are added, and cost the same
everywhere."""

import dataclasses
import uuid
from collections.abc import Mapping
from typing import Generic, TypeVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower
from django.http import HttpRequest
from django.utils.http import urlencode

M = TypeVar("M", bound=models.Model)


@dataclasses.dataclass(frozen=True)
class Keyset(Generic[M]):
    """``newer`` and ``older`` are the queries of the pages beside this one (those before and after it where
    ``is_named``), "" where there is none."""

    rows: list[M]
    newer: str
    older: str
    is_named: bool = False


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
    return Keyset(found, *_beside(found, has_newer, has_older, kept or {}))


def page_by_name(
    request: HttpRequest,
    rows: "models.QuerySet[M]",
    size: int,
    kept: Mapping[str, str] | None = None,
    *,
    by: str = "name",
) -> Keyset[M]:
    """The same in the order of the text column ``by``, whatever its case; the address still says the id of the row at
    the edge."""
    after, before = _id(request.GET.get("after")), _id(request.GET.get("before"))
    edge = before or after
    sorted_rows = rows.annotate(sorted_by=Lower(by)).order_by("sorted_by", "id")
    name = sorted_rows.model._base_manager.filter(id=edge).values_list(Lower(by), flat=True).first()
    if edge is None or name is None:
        after, before, found = None, None, sorted_rows
    elif before:
        found = sorted_rows.filter(Q(sorted_by__lt=name) | Q(sorted_by=name, id__lt=edge)).reverse()
    else:
        found = sorted_rows.filter(Q(sorted_by__gt=name) | Q(sorted_by=name, id__gt=edge))
    taken = list(found[: size + 1])
    has_more, taken = len(taken) > size, taken[:size]
    if before:
        return Keyset(taken[::-1], *_beside(taken[::-1], has_more, True, kept or {}), is_named=True)
    return Keyset(taken, *_beside(taken, after is not None, has_more, kept or {}), is_named=True)


def _beside(found: "list[M]", has_newer: bool, has_older: bool, kept: Mapping[str, str]) -> tuple[str, str]:
    stays = {name: value for name, value in kept.items() if value}
    return (
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
