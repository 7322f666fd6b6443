"""A backend that costs nothing: one fixed answer, or a stream of equal events. Its address goes to a file.

python -m tests.benchmarks.trivial_backend ADDRESS_FILE
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Final, cast

import uvloop

ANSWER: Final = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "chat",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Word."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 2, "total_tokens": 14},
    }
)
_EVENT: Final = json.dumps(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "chat",
        "choices": [{"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None}],
    }
)
TOKENS: Final = 100
_TICK_SECONDS: Final = 0.02


class Chunks(asyncio.Protocol):
    """Answers a stream event by event, one a tick, as an engine does; anything else with the fixed answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._left = 0
        self._plain = (
            f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(ANSWER)}\r\n\r\n{ANSWER}"
        ).encode()
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        if head < 0:
            return
        lower = self._received[:head].lower()
        at = lower.find(b"content-length: ")
        length = int(lower[at + 16 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._received) < head + 4 + length:
            return
        body, self._received = self._received[head + 4 :], b""
        if b'"stream":true' not in body.replace(b" ", b""):
            self._transport.write(self._plain)
            return
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        self._left = TOKENS
        asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        if self._transport.is_closing():
            return
        usage = b': usage {"prompt_tokens":12,"completion_tokens":%d}\n\n' % (TOKENS - self._left + 1)
        self._left -= 1
        text = usage + b"data: " + _EVENT.encode() + b"\n\n"
        if not self._left:
            text += b"data: [DONE]\n\n"
        self._transport.write(b"%x\r\n%b\r\n" % (len(text), text))
        if self._left:
            asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)
        else:
            self._transport.write(b"0\r\n\r\n")


async def _serve_chunks(address: Path) -> None:
    server = await asyncio.get_running_loop().create_server(Chunks, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    temporary = address.with_suffix(".new")
    temporary.write_text(json.dumps({"url": f"http://127.0.0.1:{port}"}))
    temporary.rename(address)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve_chunks(Path(sys.argv[1])))
