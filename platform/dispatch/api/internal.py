"""The internal API of agents and gateways: joining, reports, assignments, artifacts, routes."""

import re
from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse

from catalog.storage import path_of
from dispatch import artifacts
from dispatch.api.wire import answer, not_modified, read, refusal, tagged, wire_view
from dispatch.assignments import holds_file, read_assignments
from dispatch.gateways import apply_report as apply_gateway_report
from dispatch.reports import apply_report
from dispatch.routes import newest_table
from fleet import joining, machine_auth
from fleet.models import Gateway, Node
from kernel import errors
from ledger import generations
from metering import booking
from runtime.wire.errors import ErrorCode
from runtime.wire.joining import JoinReply, JoinRequest
from runtime.wire.reports import NodeReport
from runtime.wire.routes import GatewayReply, GatewayReport
from runtime.wire.usage import UsageBatch, UsageReply
from tenants.identity import address_of

MAX_RECORDS: Final = 5_000
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")


def _node(request: HttpRequest) -> Node:
    return machine_auth.node_of(request.headers.get("Authorization", ""))


def _gateway(request: HttpRequest) -> Gateway:
    return machine_auth.gateway_of(request.headers.get("Authorization", ""))


@wire_view("POST")
def node_join(request: HttpRequest) -> HttpResponseBase:
    """``JoinRequest`` → ``JoinReply``; the one-time token is the authentication."""
    body = read(request, JoinRequest)
    node, credential = joining.join_node(
        token=body.token,
        name=body.name,
        machine_id=body.machine_id,
        version=body.version,
        address=address_of(request.META),
    )
    return answer(JoinReply(id=str(node.id), credential=credential))


@wire_view("POST")
def node_report(request: HttpRequest) -> HttpResponseBase:
    """``NodeReport`` → ``ReportReply``."""
    node = _node(request)
    return answer(apply_report(node, read(request, NodeReport), address=address_of(request.META)))


@wire_view("GET")
def node_assignments(request: HttpRequest) -> HttpResponseBase:
    """→ ``NodeAssignments``; the generation is the ETag."""
    table = read_assignments(_node(request))
    return tagged(request, table, table.generation)


@wire_view("GET")
def node_artifact(request: HttpRequest, sha256: str) -> HttpResponseBase:
    """The bytes of a file that a replica on this node needs; a ``Range`` from the front is honoured."""
    node = _node(request)
    if not _DIGEST.match(sha256) or not holds_file(node, sha256):
        raise errors.NotFound("No replica of this node needs such a file.")
    try:
        handle, size = artifacts.open_file(path_of(sha256))
    except OSError as exc:
        raise errors.Unavailable(f"The file cannot be read from the store: {exc.strerror}.") from exc
    try:
        span = artifacts.span_of(request.headers.get("Range", ""), size)
    except artifacts.Unsatisfiable as exc:
        handle.close()
        response = refusal(416, ErrorCode.MALFORMED, str(exc))
        response["Content-Range"] = f"bytes */{size}"
        return response
    streamed = StreamingHttpResponse(
        artifacts.pieces(handle, span), status=206 if span.partial else 200, content_type="application/octet-stream"
    )
    streamed["Content-Length"] = str(span.length)
    streamed["Accept-Ranges"] = "bytes"
    streamed["ETag"] = f'"{sha256}"'
    if span.partial:
        streamed["Content-Range"] = span.content_range
    return streamed


@wire_view("POST")
def gateway_join(request: HttpRequest) -> HttpResponseBase:
    """``JoinRequest`` → ``JoinReply``."""
    body = read(request, JoinRequest)
    gateway, credential = joining.join_gateway(
        token=body.token,
        name=body.name,
        machine_id=body.machine_id,
        version=body.version,
        address=address_of(request.META),
    )
    return answer(JoinReply(id=str(gateway.id), credential=credential))


@wire_view("POST")
def gateway_report(request: HttpRequest) -> HttpResponseBase:
    """``GatewayReport`` → ``GatewayReply``."""
    gateway = _gateway(request)
    body = read(request, GatewayReport)
    if body.gateway_id != str(gateway.id):
        raise errors.InvalidInput("gateway_id is not the gateway of this credential.")
    apply_gateway_report(gateway, body)
    return answer(
        GatewayReply(
            generation=generations.current(generations.ROUTES),
            interval_seconds=settings.GATEWAY_REPORT_INTERVAL_SECONDS,
        )
    )


@wire_view("POST")
def gateway_usage(request: HttpRequest) -> HttpResponseBase:
    """``UsageBatch`` → ``UsageReply``. Everything in the batch is safe once this has answered 200."""
    gateway = _gateway(request)
    batch = read(request, UsageBatch)
    if batch.gateway_id != str(gateway.id):
        raise errors.InvalidInput("gateway_id is not the gateway of this credential.")
    if len(batch.records) > MAX_RECORDS:
        raise errors.InvalidInput(f"A batch holds at most {MAX_RECORDS} records.")
    booked = booking.book(gateway_id=gateway.id, records=batch.records)
    return answer(UsageReply(accepted=booked.accepted, duplicates=booked.duplicates))


@wire_view("GET")
def gateway_routes(request: HttpRequest) -> HttpResponseBase:
    """→ ``RouteTable``; the generation is the ETag."""
    _gateway(request)
    known = request.headers.get("If-None-Match", "").strip('"')
    current = generations.current(generations.ROUTES)
    if known.isdigit() and int(known) == current:  # most re-reads: do not build a table that is not sent
        return not_modified(current)
    table = newest_table()
    return tagged(request, table, table.generation)
