"""Plain views that speak the wire: bodies are wire structs, refusals are wire ``ErrorBody``, nothing is a browser's."""

import functools
import logging
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from kernel import errors, scope
from runtime.wire import codec, version
from runtime.wire.errors import ErrorBody, ErrorCode, MalformedMessage
from runtime.wire.version import ProtocolVersion

logger = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 4 * 1024 * 1024

T = TypeVar("T", bound=msgspec.Struct)
View = Callable[..., HttpResponseBase]

_CODES: Final = {
    400: ErrorCode.MALFORMED,
    401: ErrorCode.UNAUTHENTICATED,
    404: ErrorCode.NOT_FOUND,
    410: ErrorCode.REMOVED,
}


def wire_view(method: str) -> Callable[[View], View]:
    """Make a view of the internal API: one method, no CSRF, every error in the wire's own shape."""

    def wrap(view: View) -> View:
        @csrf_exempt
        @functools.wraps(view)
        def guarded(request: HttpRequest, *args: object, **kwargs: object) -> HttpResponseBase:
            if request.method != method:
                response = refusal(405, ErrorCode.MALFORMED, f"Use {method}.")
                response["Allow"] = method
                return response
            try:
                with scope.isolated():
                    return view(request, *args, **kwargs)
            except MalformedMessage as exc:
                return refusal(400, ErrorCode.MALFORMED, str(exc))
            except RequestDataTooBig:
                return refusal(413, ErrorCode.MALFORMED, f"The body is larger than {MAX_BODY_BYTES} bytes.")
            except errors.StaleTransition as exc:
                return refusal(503, ErrorCode.UNAVAILABLE, f"Overtaken by another change; send it again. {exc.detail}")
            except errors.PlatformError as exc:
                return refusal(exc.status, _code_of(exc), exc.detail)
            except DatabaseError:
                logger.warning("internal call failed", extra={"path": request.path}, exc_info=True)
                return refusal(503, ErrorCode.UNAVAILABLE, "The control plane cannot reach its database; try again.")

        return guarded

    return wrap


def _code_of(exc: errors.PlatformError) -> ErrorCode:
    if exc.code in set(ErrorCode):
        return ErrorCode(exc.code)
    return _CODES.get(exc.status, ErrorCode.UNAVAILABLE)


def read(request: HttpRequest, kind: type[T]) -> T:
    """Decode the body.

    Raises:
        MalformedMessage: it does not fit ``kind``.
        errors.InvalidInput: the sender speaks another major version.
        RequestDataTooBig: it is longer than :data:`MAX_BODY_BYTES`.
    """
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not length.isdigit() or int(length) > MAX_BODY_BYTES:
        raise RequestDataTooBig
    return decode(request.body, kind)


def decode(body: bytes, kind: type[T]) -> T:
    """As :func:`read`, of a ``body`` that is short enough."""
    # Words in a report come from models and logs, too; the database takes no NUL, and a report has to arrive.
    message = codec.decode(body.replace(b"\\u0000", b"\\ufffd"), kind)
    protocol = getattr(message, "protocol", None)
    if isinstance(protocol, ProtocolVersion) and not version.compatible(protocol):
        raise errors.InvalidInput(
            f"This control plane speaks protocol {version.MAJOR}.{version.MINOR}, not {protocol.major}."
            f"{protocol.minor}: install matching versions.",
            code=ErrorCode.UNSUPPORTED_PROTOCOL.value,
        )
    return message


def answer(message: msgspec.Struct, *, status: int = 200) -> HttpResponse:
    """A wire struct as JSON."""
    return HttpResponse(codec.encode(message), status=status, content_type="application/json")


def tagged(request: HttpRequest, message: msgspec.Struct, generation: int) -> HttpResponse:
    """As :func:`answer`, with the generation as ETag; 304 when the caller has it already."""
    unchanged = request.headers.get("If-None-Match", "") == f'"{generation}"'
    return _stamped(HttpResponse(status=304) if unchanged else answer(message), generation)


def not_modified(generation: int) -> HttpResponse:
    """The caller has the newest already."""
    return _stamped(HttpResponse(status=304), generation)


def _stamped(response: HttpResponse, generation: int) -> HttpResponse:
    response["ETag"] = f'"{generation}"'
    response["Cache-Control"] = "no-store"
    return response


def failure(status: int, message: str) -> HttpResponse:
    """A wire error for what failed outside of any view; the status alone says which."""
    codes = {400: ErrorCode.MALFORMED, 404: ErrorCode.NOT_FOUND}
    return refusal(status, codes.get(status, ErrorCode.UNAVAILABLE), message)


def refusal(status: int, code: ErrorCode, message: str) -> HttpResponse:
    """A wire error."""
    return answer(ErrorBody(code=code, message=message), status=status)
