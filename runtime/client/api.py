"""REST of the control plane: one client, problems as :class:`ApiError`, retries where a repeat is harmless."""

import ipaddress
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import httpx2

from runtime.base.version import VERSION
from runtime.client.errors import ApiError, Unreachable

BASE: Final = "/api/v1"
PAGE: Final = 100
_TRIES: Final = 4
_FIRST_PAUSE_SECONDS: Final = 0.5
_RETRIED_STATUSES: Final = frozenset({502, 503, 504})
_TIMEOUT: Final = httpx2.Timeout(60.0, connect=10.0)

Sleep = Callable[[float], None]


def user_agent() -> str:
    """What servers see; the control plane's audit log tells the command line by it."""
    return f"millpond-cli/{VERSION}"


def http_client(
    server: str, *, bearer: str = "", timeout: httpx2.Timeout = _TIMEOUT, transport: httpx2.BaseTransport | None = None
) -> httpx2.Client:
    """An HTTP client of ``server``. Proxies of the environment are left out for this machine itself."""
    headers = {"User-Agent": user_agent(), "Accept": "application/json"}
    if bearer:
        headers["Authorization"] = f"Bearer {bearer}"
    try:
        url = httpx2.URL(server)
    except httpx2.InvalidURL as exc:
        raise Unreachable(f"{server!r} is no URL of a server; write http://host:port.") from exc
    if url.scheme not in ("http", "https") or not url.host:
        raise Unreachable(f"{server!r} is no URL of a server; write http://host:port.")
    return httpx2.Client(
        base_url=url, headers=headers, timeout=timeout, trust_env=not _is_loopback(url.host), transport=transport
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Api:
    """Calls under ``/api/v1``. Reads are repeated when the server is briefly gone, writes only if never sent."""

    def __init__(self, http: httpx2.Client, *, sleep: Sleep = time.sleep) -> None:
        self.http = http
        self._sleep = sleep

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """The decoded answer."""
        return _decoded(self.send("GET", path, params=params))

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, key: str = "") -> Any:
        """The decoded answer. ``key`` is the ``Idempotency-Key`` (made here when "")."""
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return _decoded(self.send("POST", path, body=body or {}, headers=headers))

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        """The decoded answer."""
        return _decoded(self.send("PUT", path, body=body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """The decoded answer."""
        return _decoded(self.send("PATCH", path, body=body))

    def delete(self, path: str) -> None:
        """Nothing; a thing that is gone already is an :class:`ApiError` with status 404."""
        self.send("DELETE", path)

    def rows(self, path: str, params: Mapping[str, Any] | None = None, *, most: int = 1000) -> Iterator[dict[str, Any]]:
        """Rows of a list, page by page, at most ``most`` of them."""
        query: dict[str, Any] = {"limit": min(PAGE, most), **(params or {})}
        left = most
        while left > 0:
            page = self.get(path, query)
            yield from page["data"][:left]
            left -= len(page["data"])
            if not page.get("has_more") or not page["data"]:
                return
            query["after"] = page["last_id"]

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """The answer to one call.

        Raises:
            ApiError: the answer is a 4xx or 5xx.
            Unreachable: there was no answer, after a few tries where a repeat is harmless.
        """
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                response = self.http.request(method, BASE + path, params=params, json=body, headers=headers)
            except httpx2.HTTPError as exc:
                never_sent = isinstance(exc, httpx2.ConnectError | httpx2.ConnectTimeout)
                if last or not (never_sent or method == "GET"):
                    raise Unreachable(_unreachable(self.http, exc)) from exc
            else:
                if last or method != "GET" or response.status_code not in _RETRIED_STATUSES:
                    return checked(response)
            self._sleep(_FIRST_PAUSE_SECONDS * 2**attempt)
        raise AssertionError("the last try returns or raises")


def _unreachable(http: httpx2.Client, exc: Exception) -> str:
    server = str(http.base_url).rstrip("/")
    what = "did not answer in time" if isinstance(exc, httpx2.TimeoutException) else f"cannot be reached ({exc})"
    return f"{server} {what}. Is Millpond running there? Choose another with --server or MILLPOND_SERVER."


def checked(response: httpx2.Response) -> httpx2.Response:
    """Return ``response`` if it is good.

    Raises:
        ApiError: with code, sentence and request id of the problem document, or what can be said without one.
    """
    if response.is_success:
        return response
    response.read()
    try:
        body = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        body = None
    if not isinstance(body, dict):
        body = {}
    raise ApiError(
        status=response.status_code,
        code=str(body.get("code") or f"http_{response.status_code}"),
        title=str(body.get("title") or response.reason_phrase),
        detail=str(body.get("detail") or _without_problem(response)),
        request_id=str(body.get("request_id") or response.headers.get("X-Request-Id", "")),
        data=body.get("data") if isinstance(body.get("data"), dict) else None,
    )


def _without_problem(response: httpx2.Response) -> str:
    return f"The server answered {response.status_code} {response.reason_phrase} to {response.request.url.path}."


def _decoded(response: httpx2.Response) -> Any:
    if not response.content:
        return None
    try:
        return response.json()
    except (json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise Unreachable(
            f"{response.request.url.path} answered with something that is no JSON. Is this a Millpond server?"
        ) from exc
