"""Cursor paging in the shape OpenAI's clients know: ``limit``, ``after``, ``before`` in; ``data``, ``has_more`` out.

Keyset paging over the primary key: UUIDv7 sorts by creation, so pages do not shift while rows are added.
"""

import uuid
from typing import Any

from rest_framework import pagination
from rest_framework.request import Request
from rest_framework.response import Response

from kernel import errors

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


class CursorPages(pagination.BasePagination):
    """Pages newest first by primary key (``order=asc`` reverses)."""

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        """Return at most ``limit`` rows; remembers whether there are more."""
        query = request.query_params
        limit = _number(query.get("limit"))
        after, before = _cursor(query.get("after"), "after"), _cursor(query.get("before"), "before")
        if after and before:
            raise errors.InvalidInput("Give after or before, not both.", data={"field": "before"})
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise errors.InvalidInput("order is asc or desc.", data={"field": "order"})
        descending = (order == "desc") != (before is not None)
        if cursor := after or before:
            queryset = queryset.filter(**{"pk__lt" if descending else "pk__gt": cursor})
        rows = list(queryset.order_by("-pk" if descending else "pk")[: limit + 1])
        self.has_more = len(rows) > limit
        rows = rows[:limit]
        if before is not None:
            rows.reverse()
        self.first_id = str(rows[0].pk) if rows else None
        self.last_id = str(rows[-1].pk) if rows else None
        return rows

    def get_paginated_response(self, data: Any) -> Response:
        """The list with its cursors."""
        return Response(
            {
                "object": "list",
                "data": data,
                "has_more": self.has_more,
                "first_id": self.first_id,
                "last_id": self.last_id,
            }
        )

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """OpenAPI of the list."""
        cursor = {"type": "string", "format": "uuid", "nullable": True}
        return {
            "type": "object",
            "required": ["object", "data", "has_more", "first_id", "last_id"],
            "properties": {
                "object": {"type": "string", "enum": ["list"]},
                "data": schema,
                "has_more": {"type": "boolean"},
                "first_id": cursor,
                "last_id": cursor,
            },
        }

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        """OpenAPI of the query."""
        text = {"type": "string"}
        return [
            {
                "name": "limit",
                "in": "query",
                "required": False,
                "schema": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
                "description": "Rows per page.",
            },
            {"name": "after", "in": "query", "required": False, "schema": text, "description": "Rows after this id."},
            {"name": "before", "in": "query", "required": False, "schema": text, "description": "Rows before this id."},
            {
                "name": "order",
                "in": "query",
                "required": False,
                "schema": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
                "description": "By time of creation.",
            },
        ]


def _number(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MAX_LIMIT:
        raise errors.InvalidInput(f"limit is a number from 1 to {MAX_LIMIT}.", data={"field": "limit"})
    return int(text)


def _cursor(text: str | None, field: str) -> uuid.UUID | None:
    if not text:
        return None
    try:
        return uuid.UUID(text)
    except ValueError:
        raise errors.InvalidInput(f"{field} is an id from an earlier page.", data={"field": field}) from None
