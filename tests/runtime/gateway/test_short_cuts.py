"""The short ways through the gateway carry what the long ones do, in the same order, and nothing goes out early."""

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest

from runtime.gateway.engine_http import Call, EngineClient
from runtime.gateway.journal import Journal
from runtime.gateway.outbox import Outbox
from runtime.wire.usage import UsageRecord
from tests.build.gateway_engine import FakeEngine
from tests.build.gateway_peers import ACME_KEY, a_replica, a_table, a_variant, an_endpoint, ask, until


class Way:
    """A transport that notes what it is given."""

    def __init__(self, log: list[object], closing: bool = False) -> None:
        self.log = log
        self.closing = closing

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.log.append(data)


async def test_what_one_turn_sends_follows_the_journal_in_order():
    log: list[object] = []
    outbox = Outbox(lambda: log.append("journal"))
    outbox.put(Way(log), b"1")
    outbox.put(Way(log, closing=True), b"gone")
    outbox.put(Way(log), b"2")
    assert log == []
    await asyncio.sleep(0)
    assert log == ["journal", b"1", b"2"]
    outbox.put(Way(log), b"3")
    outbox.flush()
    await asyncio.sleep(0)
    assert log == ["journal", b"1", b"2", "journal", b"3"]


async def test_a_journal_with_a_defect_keeps_nobody_waiting():
    log: list[object] = []
    outbox = Outbox(lambda: 1 // 0)
    outbox.put(Way(log), b"1")
    with pytest.raises(ZeroDivisionError):
        outbox.flush()
    assert log == [b"1"]


def a_record(number: int) -> UsageRecord:
    ids = dict.fromkeys(("id", "request_id"), f"r{number}")
    others = ("tenant_id", "owner_tenant_id", "key_id", "endpoint_id", "deployment_id", "revision_id", "replica_id")
    return UsageRecord(
        **ids,
        **dict.fromkeys(others, "x"),
        operation="completions",
        status=200,
        outcome="ok",
        started_at=1.0,
        duration_ms=1.0,
    )


def open_files(folder: Path) -> int:
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(entry).startswith(str(folder))
    return found


async def test_full_segments_become_durable_beside_the_loop_and_are_let_go(tmp_path):
    journal = Journal(tmp_path, segment_bytes=2000, max_bytes=10**6, fsync_seconds=1, fsync_records=1000)
    for number in range(40):
        journal.append(a_record(number), soon=True)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0
    journal.write_out()
    segments = sorted(tmp_path.glob("usage-*.jsonl"))
    assert len(segments) > 5
    assert max(path.stat().st_size for path in segments) <= 2000
    lines = b"".join(path.read_bytes() for path in segments).splitlines()
    assert [json.loads(line)["id"] for line in lines] == [f"r{number}" for number in range(40)]
    await journal.sync()
    assert open_files(tmp_path) == 1
    await journal.close()
    assert open_files(tmp_path) == 0


# --- over HTTP ---


def a_post(body: bytes, *headers: str) -> bytes:
    head = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: x",
        f"authorization: Bearer {ACME_KEY}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


async def an_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of an answer that has a length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return head, await reader.readexactly(length)


@contextlib.asynccontextmanager
async def connected(url: str):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    yield reader, writer
    writer.close()


async def test_requests_in_one_packet_are_answered_in_their_order(gateway):
    body = json.dumps(ask()).encode()
    posts = [a_post(body, f"x-request-id: nr-{number}") for number in range(3)]
    refused = a_post(b"{}", "x-request-id: refused")
    async with connected(gateway.url) as (reader, writer):
        writer.write(posts[0] + posts[1] + refused + posts[2])
        for name, status in ((b"nr-0", b"200"), (b"nr-1", b"200"), (b"refused", b"400"), (b"nr-2", b"200")):
            head, answer = await an_answer(reader)
            assert head.startswith(b"HTTP/1.1 " + status)
            assert b"x-request-id: " + name + b"\r\n" in head
            assert ("choices" in json.loads(answer)) is (status == b"200")


async def test_a_body_in_pieces_and_a_connection_to_be_closed_take_the_long_way(gateway):
    body = json.dumps(ask()).encode()
    async with connected(gateway.url) as (reader, writer):
        whole = a_post(body, "connection: close")
        writer.write(whole[:-10])
        await writer.drain()
        await until(lambda: gateway.core.running, "the head has arrived")
        writer.write(whole[-10:])
        head, answer = await an_answer(reader)
        assert b"connection: close" in head
        assert json.loads(answer)["usage"]["completion_tokens"] > 0
        assert await reader.read() == b""


async def test_the_record_is_on_disk_when_the_answer_is_here(start_gateway, tmp_path):
    async with start_gateway(deliver_seconds=60.0) as gateway:
        for number in range(3):
            status, _, _ = await gateway.post(ask(), x_request_id=f"nr-{number}")
            assert status == 200
            lines = b"".join(path.read_bytes() for path in (tmp_path / "gateway" / "journal").glob("usage-*.jsonl"))
            records = [json.loads(line) for line in lines.splitlines() if not line.startswith(b'{"opened":')]
            assert [record["request_id"] for record in records] == [f"nr-{each}" for each in range(number + 1)]


async def test_pieces_of_any_cut_reach_the_client_whole_and_in_order(start_gateway, control):
    """What an engine writes in one go: one event, several, half of one, and one without a count before it."""
    events = [b'data: {"n":%d}\n\n' % number for number in range(40)]
    counted = [b': usage {"prompt_tokens":3,"completion_tokens":%d}\n\n' % n + event for n, event in enumerate(events)]
    middle = len(counted[20]) // 2
    pieces = [
        *counted[:10],
        b"".join(counted[10:14]),
        *counted[14:20],
        counted[20][:middle],
        counted[20][middle:],
        *counted[21:30],
        events[30],
        *counted[31:],
        b"data: [DONE]\n\n",
    ]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                lower = head.lower()
                if b"content-length: " in lower:
                    await reader.readexactly(int(lower.split(b"content-length: ")[1].split(b"\r\n")[0]))
                if not lower.startswith(b"post"):
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for piece in pieces:
                    await asyncio.sleep(0.001)  # or they would arrive as one
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    control[0].table = a_table(an_endpoint("chat", a_variant(a_replica(url))))
    async with start_gateway() as gateway:
        for _ in range(2):
            async with gateway.http.post(
                gateway.url + "/v1/chat/completions",
                json=ask(stream=True),
                headers={"authorization": f"Bearer {ACME_KEY}"},
            ) as response:
                assert await response.read() == b"".join(events) + b"data: [DONE]\n\n"
        await until(lambda: len(control[0].booked) == 2, "both are booked")
        assert {record.completion_tokens for record in control[0].booked.values()} == {39}
    server.close()


async def test_a_stream_waits_for_a_client_who_reads_slowly_and_loses_nothing(
    start_gateway, engine: tuple[FakeEngine, str]
):
    engine[0].tokens, engine[0].padding = 60, 100_000
    body = json.dumps(ask(stream=True)).encode()
    async with start_gateway() as gateway, connected(gateway.url) as (reader, writer):
        writer.write(a_post(body, "connection: close"))
        await reader.readuntil(b"\r\n\r\n")
        await until(lambda: max(engine[0].computed.values(), default=0) > 5, "some are written")
        seen = await reader.read()
        places = [seen.find(f"tok{number} ".encode()) for number in range(60)]
        assert places == sorted(places)
        assert min(places) >= 0
        assert seen.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


# --- the client of engines ---


async def test_a_piece_is_offered_only_while_somebody_waits_for_it():
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n"
    steps = {name: asyncio.Event() for name in ("b", "c")}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer + b"aa")
        for name, event in steps.items():
            await event.wait()
            writer.write(name.encode() * 2)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = EngineClient(connect_seconds=5.0, idle_seconds=30.0, keepalive_seconds=4.0)
    offered: list[bytes] = []

    def sink(piece: bytes) -> bool:
        offered.append(piece)
        return piece != b"cc"

    async with client.begin(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "/", {}, b"") as call:
        await call.head()
        call.sink = sink
        assert await call.read() == b"aa"  # it was there before
        reading = asyncio.create_task(call.read())
        await asyncio.sleep(0)
        steps["b"].set()
        await until(lambda: offered, "a piece is offered")
        assert not reading.done()
        steps["c"].set()
        assert await reading == b"cc"  # refused by the sink
        assert offered == [b"bb", b"cc"]
        assert await call.read() == b""
    client.close()
    server.close()


async def test_each_call_on_a_connection_has_its_own_time_of_silence():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            await reader.readuntil(b"\r\n\r\n")  # and then silence
            await reader.read()
        writer.close()

    async def whole(call: Call) -> bytes:
        async with call:
            await call.head()
            return await call.read()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = EngineClient(connect_seconds=5.0, idle_seconds=0.3, keepalive_seconds=4.0)
    loop = asyncio.get_running_loop()
    assert await whole(client.begin(url, "/", {}, b"")) == b"ok"
    await asyncio.sleep(0.2)  # most of what the first call's timer had
    begun = loop.time()
    with pytest.raises(TimeoutError, match="sent nothing for"):
        await whole(client.begin(url, "/", {}, b""))
    assert loop.time() - begun >= 0.29  # a bound that holds however slow the machine is
    client.close()
    server.close()
