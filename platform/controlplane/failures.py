"""Errors outside of any view in the caller's dialect: problems for REST, wire errors for machines, pages for people."""

import json
from typing import Any, Final

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views import defaults

from dispatch.api.wire import failure
from kernel.api import problems

_REST: Final = "/api/"
_MACHINES: Final = "/internal/"


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponseBase:
    """400: what Django itself refuses, as a wrong Host header."""
    detail = "The request cannot be understood; check its Host header and its encoding."
    said = _said(request, 400, "bad_request", "Bad request", detail)
    return said or defaults.bad_request(request, exception or ValueError())


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponseBase:
    """403."""
    said = _said(request, 403, "forbidden", "Not allowed", "This is not allowed.")
    return said or defaults.permission_denied(request, exception or PermissionError())


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponseBase:
    """404 of paths that are no routes, and of ids that are no ids."""
    detail = "There is nothing at this path; see /api/docs for what there is."
    said = _said(request, 404, "not_found", "Not found", detail)
    return said or defaults.page_not_found(request, exception or LookupError())


def server_error(request: HttpRequest) -> HttpResponseBase:
    """500: a defect of ours. It has been logged under the request's id."""
    detail = "Something went wrong here; it has been logged under this request id."
    said = _said(request, 500, "internal_error", "Internal error", detail)
    return said or defaults.server_error(request)


def _said(request: HttpRequest, status: int, code: str, title: str, detail: str) -> HttpResponse | None:
    if request.path.startswith(_MACHINES):
        return failure(status, detail)
    if not request.path.startswith(_REST):
        return None
    body: dict[str, Any] = problems.problem(
        status=status, code=code, title=title, detail=detail, request_id=getattr(request, "request_id", "")
    )
    return HttpResponse(json.dumps(body), status=status, content_type=problems.CONTENT_TYPE)
