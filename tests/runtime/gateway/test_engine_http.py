"""The client that speaks to engines, against servers that answer as told, byte by byte."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from runtime.gateway.engine_http import Call, Cut, Dropped, EngineClient, NotReached
from tests.build.gateway_peers import until

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nX-Thing: a\r\n\r\nhello"


class Peer:
    """A server that reads one request after another and answers each with the next script."""

    def __init__(self, answers: list[bytes | None]) -> None:
        self.answers = answers  # None hangs up
        self.requests: list[bytes] = []
        self.connections = 0
        self.open = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                answer = self.answers.pop(0)
                if answer is None:
                    break
                for piece in answer.split(b"|"):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
                if b"hang up" in answer:
                    break
        self.open -= 1
        writer.close()


@contextlib.asynccontextmanager
async def speaking(*answers: bytes | None, **changes: float) -> AsyncIterator[tuple[EngineClient, Peer]]:
    peer = Peer(list(answers))
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    seconds = {"connect_seconds": 5.0, "idle_seconds": 30.0, "keepalive_seconds": 4.0, **changes}
    client = EngineClient(**seconds)
    try:
        yield client, peer
    finally:
        client.close()
        server.close()


async def whole(call: Call) -> bytes:
    async with call:
        await call.head()
        return b"".join([part async for part in call.content.iter_any()])


async def test_requests_go_one_after_another_over_one_connection():
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel|\r\n2\r\nlo\r\n0\r\n\r\n"
    async with speaking(OK, chunked, b"HTTP/1.1 100 Continue\r\n\r\n|" + OK) as (client, peer):
        for _ in range(3):
            call = client.begin(peer.url, "/v1/x", {"authorization": "Bearer t"}, b"{}")
            assert await whole(call) == b"hello"
            assert call.status == 200
        assert call.headers["x-thing"] == "a"
        assert peer.connections == 1
        assert peer.requests[0].startswith(b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
        assert peer.requests[0].endswith(b"authorization: Bearer t\r\ncontent-length: 2\r\n\r\n{}")


async def test_calls_at_once_have_connections_of_their_own():
    async with speaking(*[OK] * 8) as (client, peer):
        calls = [client.begin(peer.url, "/", {}, b"") for _ in range(8)]
        assert await asyncio.gather(*(whole(call) for call in calls)) == [b"hello"] * 8
        assert peer.connections == 8


async def test_an_answer_without_length_ends_with_the_connection():
    async with speaking(b"HTTP/1.1 200 OK\r\n\r\nhang up") as (client, peer):
        assert await whole(client.begin(peer.url, "/", {}, b"")) == b"hang up"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(None, Dropped, id="no answer"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: hang up", Dropped, id="half a head"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhang up", Cut, id="half an answer"),
        pytest.param(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n7\r\nhang up\r\n", Cut, id="no last chunk"),
        pytest.param(b"nonsense\r\n\r\n", Cut, id="not HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, Cut, id="endless head"),
    ],
)
async def test_what_is_not_a_whole_answer_is_an_error_of_its_kind(answer, error):
    async with speaking(answer) as (client, peer):
        with pytest.raises(error):
            await whole(client.begin(peer.url, "/", {}, b""))
        await until(lambda: not peer.open, "the connection is closed")


async def test_who_cannot_be_reached_was_sent_nothing():
    async with speaking() as (client, peer):
        port = peer.url.rsplit(":", 1)[1]
    with pytest.raises(NotReached):
        await whole(client.begin(f"http://127.0.0.1:{port}", "/", {}, b""))
    for url in ("", "127.0.0.1:80", "ftp://x", "http://x:port"):
        with pytest.raises(NotReached):
            client.begin(url, "/", {}, b"")


async def test_silence_ends_after_the_stated_time():
    async with speaking(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel", idle_seconds=0.05) as (client, peer):
        call = client.begin(peer.url, "/", {}, b"")
        await call.head()
        with pytest.raises(TimeoutError):
            await whole(call)
        await until(lambda: not peer.open, "the connection is closed")


async def test_a_wait_that_is_cancelled_cuts_nothing():
    async with speaking(OK) as (client, peer):
        call = client.begin(peer.url, "/", {}, b"")
        waiting = asyncio.create_task(call.head())
        await asyncio.sleep(0)
        waiting.cancel()
        assert await whole(call) == b"hello"


async def test_a_call_that_is_closed_early_takes_its_connection_along():
    async with speaking(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhel", OK) as (client, peer):
        call = client.begin(peer.url, "/", {}, b"")
        await call.head()
        call.close()
        await until(lambda: not peer.open, "the connection is closed")
        assert await whole(client.begin(peer.url, "/", {}, b"")) == b"hello"


async def test_a_reader_who_is_slow_makes_the_engine_wait():
    size = 30_000_000
    async with speaking(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size) as (client, peer):
        call = client.begin(peer.url, "/", {}, b"")
        await call.head()
        for _ in range(200):
            await asyncio.sleep(0)
        assert call.unread < 2_000_000
        assert len(await whole(call)) == size


async def test_idle_connections_are_not_kept_for_long():
    async with speaking(OK, keepalive_seconds=0.05) as (client, peer):
        assert await whole(client.begin(peer.url, "/", {}, b"")) == b"hello"
        await until(lambda: not peer.open, "the connection is closed")


async def test_a_header_cannot_tear_the_head():
    async with speaking() as (client, peer):
        for value in ("a\r\nx: y", "a\nb", "a\r"):
            with pytest.raises(ValueError, match="line break"):
                client.begin(peer.url, "/", {"x-request-id": value}, b"")
        assert not peer.requests
