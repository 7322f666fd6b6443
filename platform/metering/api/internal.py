"""Where gateways deliver usage: ``POST /internal/v1/gateways/usage`` (UsageBatch → UsageReply, errors as ErrorBody)."""

import uuid
from typing import Final

import msgspec
from django.core.exceptions import RequestDataTooBig
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from fleet import machine_auth
from kernel.errors import PlatformError
from metering import booking
from runtime.wire import codec, version
from runtime.wire.errors import ErrorBody, ErrorCode, MalformedMessage
from runtime.wire.usage import UsageBatch, UsageReply

MAX_RECORDS: Final = 5_000

_CODES: Final = {401: ErrorCode.UNAUTHENTICATED, 410: ErrorCode.REMOVED}


@csrf_exempt
@require_POST
def usage(request: HttpRequest) -> HttpResponse:
    """Book a batch. Everything in it is safe once this has answered 200; otherwise the gateway sends it again."""
    try:
        gateway = machine_auth.gateway_of(request.headers.get("Authorization", ""))
        batch = codec.decode(request.body, UsageBatch)
        _check(batch, gateway.id)
        booked = booking.book(gateway_id=gateway.id, records=batch.records)
    except PlatformError as exc:
        return _refusal(exc.status, _CODES.get(exc.status, ErrorCode.MALFORMED), exc.detail)
    except MalformedMessage as exc:
        return _refusal(400, ErrorCode.MALFORMED, str(exc))
    except _UnsupportedProtocol as exc:
        return _refusal(400, ErrorCode.UNSUPPORTED_PROTOCOL, str(exc))
    except RequestDataTooBig:
        return _refusal(413, ErrorCode.MALFORMED, f"Send at most {MAX_RECORDS} records and 4 MiB at once.")
    except DatabaseError:
        return _refusal(503, ErrorCode.UNAVAILABLE, "The books cannot be written now; send the batch again.")
    return _answer(200, UsageReply(accepted=booked.accepted, duplicates=booked.duplicates))


class _UnsupportedProtocol(ValueError):
    """The sender speaks another major version."""


def _check(batch: UsageBatch, gateway_id: uuid.UUID) -> None:
    if not version.compatible(batch.protocol):
        raise _UnsupportedProtocol(f"This control plane speaks protocol {version.MAJOR}.{version.MINOR}.")
    if batch.gateway_id != str(gateway_id):
        raise MalformedMessage("gateway_id is not the gateway of this credential")
    if len(batch.records) > MAX_RECORDS:
        raise MalformedMessage(f"a batch holds at most {MAX_RECORDS} records")


def _answer(status: int, body: msgspec.Struct) -> HttpResponse:
    return HttpResponse(codec.encode(body), status=status, content_type="application/json")


def _refusal(status: int, code: ErrorCode, message: str) -> HttpResponse:
    return _answer(status, ErrorBody(code=code, message=message))
