"""What every request gets, in both worlds of Django's stack: an id, and an address that can be looked up."""

import re
from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase

from controlplane import failures
from kernel import ids

# How a NUL looks in a form; no page takes files in one.
_NUL_IN = {"application/x-www-form-urlencoded": b"%00", "multipart/form-data": b"\x00"}
_SANE = re.compile(r"^[A-Za-z0-9._-]{8,64}$")


Next = Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]


class RequestId:
    """The id is the caller's where it is sane, else made here: ``request.request_id`` and ``X-Request-Id``."""

    async_capable = True
    sync_capable = True

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        given = request.META.get("HTTP_X_REQUEST_ID", "")
        request.request_id = given if _SANE.match(given) else str(ids.new_id())  # type: ignore[attr-defined]
        if iscoroutinefunction(self.get_response):
            return self._later(request)
        response = self.get_response(request)
        assert isinstance(response, HttpResponseBase)
        return self._stamp(request, response)

    async def _later(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        assert not isinstance(response, HttpResponseBase)
        return self._stamp(request, await response)

    @staticmethod
    def _stamp(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        response["X-Request-Id"] = request.request_id  # type: ignore[attr-defined]
        return response


class NoNul:
    """Names with a NUL are nobody's: no row and no file can have one, and the database refuses to look for it."""

    async_capable = True
    sync_capable = True

    def __init__(self, get_response: Next) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        answer: HttpResponseBase
        if "\x00" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
            answer = failures.not_found(request)
        elif (nul := _NUL_IN.get(request.content_type or "")) and nul in request.body:
            answer = failures.bad_request(request)
        else:
            return self.get_response(request)
        return _later(answer) if iscoroutinefunction(self.get_response) else answer


async def _later(answer: HttpResponseBase) -> HttpResponseBase:
    return answer
