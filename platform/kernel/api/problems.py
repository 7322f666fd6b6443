"""Errors as ``application/problem+json`` (RFC 9457) with a stable ``code``."""

import logging
from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404
from rest_framework import exceptions as drf
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response

from kernel.errors import PlatformError, Unavailable

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
# What DRF says of these is a template for the detail, with a name in braces.
_TITLES: Final[dict[type[drf.APIException], str]] = {
    drf.MethodNotAllowed: "Method not allowed",
    drf.UnsupportedMediaType: "Unsupported media type",
}


class ProblemRenderer(JSONRenderer):
    """Renders problem documents; chosen by the exception handler, never negotiated."""

    media_type = CONTENT_TYPE


def problem(
    *, status: int, code: str, title: str, detail: str, request_id: str, data: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A problem document. ``data`` carries machine-readable facts (field, limit, reasons)."""
    return {
        "type": f"urn:millpond:problem:{code}",
        "title": title,
        "status": status,
        "code": code,
        "detail": detail,
        "request_id": request_id,
        **({"data": data} if data else {}),
    }


def handle(exc: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler: our tree, DRF's own, Django's 404 and 403, a database that is away.

    Anything else is a bug and stays a 500.
    """
    if isinstance(exc, OperationalError | InterfaceError):
        logger.warning("the database did not answer", exc_info=exc)
        exc = Unavailable("The platform's database does not answer now; try again.", data={"retry_after": 2})
    request = context.get("request")
    request_id = getattr(getattr(request, "_request", None), "request_id", "")
    body, status, headers = _describe(exc, request_id)
    if body is None:
        return None
    response = Response(body, status=status, headers=headers, content_type=CONTENT_TYPE)
    if request is not None:
        request.accepted_renderer = ProblemRenderer()
        request.accepted_media_type = CONTENT_TYPE
    return response


def _describe(exc: Exception, request_id: str) -> tuple[dict[str, Any] | None, int, dict[str, str]]:
    if isinstance(exc, PlatformError):
        headers = {"Retry-After": str(exc.data["retry_after"])} if "retry_after" in exc.data else {}
        if exc.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        body = problem(
            status=exc.status, code=exc.code, title=exc.title, detail=exc.detail, request_id=request_id, data=exc.data
        )
        return body, exc.status, headers
    if isinstance(exc, drf.ValidationError):
        fields = _flatten(exc.detail)
        detail = "; ".join(f"{name}: {text}" if name else text for name, text in fields)
        data = {"errors": [{"field": name, "message": text} for name, text in fields]}
        return (
            problem(
                status=400, code="invalid_input", title="Invalid input", detail=detail, request_id=request_id, data=data
            ),
            400,
            {},
        )
    if isinstance(exc, Http404):
        exc = drf.NotFound()
    elif isinstance(exc, PermissionDenied):
        exc = drf.PermissionDenied()
    if isinstance(exc, drf.APIException):
        code = exc.get_codes()
        headers = {}
        if (wait := getattr(exc, "wait", None)) is not None:
            headers["Retry-After"] = str(int(wait) + 1)
        if isinstance(exc, drf.NotAuthenticated | drf.AuthenticationFailed):
            headers["WWW-Authenticate"] = "Bearer"
        return (
            problem(
                status=exc.status_code,
                code=code if isinstance(code, str) else exc.default_code,
                title=_TITLES.get(type(exc)) or str(exc.default_detail).rstrip("."),
                detail=str(exc.detail),
                request_id=request_id,
            ),
            exc.status_code,
            headers,
        )
    return None, 500, {}


def _flatten(detail: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(detail, dict):
        return [
            pair
            for name, value in detail.items()
            for pair in _flatten(value, prefix if name == "non_field_errors" else f"{prefix}.{name}".lstrip("."))
        ]
    if isinstance(detail, list):
        return [pair for value in detail for pair in _flatten(value, prefix)]
    return [(prefix, str(detail))]
