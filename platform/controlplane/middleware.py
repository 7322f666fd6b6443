"""Every request has an id: taken from the caller where it is sane, made here otherwise, and sent back."""

import re
from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponseBase

from kernel import ids

_SANE = re.compile(r"^[A-Za-z0-9._-]{8,64}$")


class RequestId:
    """Sets ``request.request_id`` and the header ``X-Request-Id``; works in both worlds of Django's stack."""

    async_capable = True
    sync_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase | Awaitable[HttpResponseBase]]) -> None:
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
