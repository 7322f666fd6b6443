"""What the leader of a replica tells its other ranks, and what they answer: structs over a stream of its own for each.

While it loads, a rank tells :class:`Loading` and then :class:`Held`; what it hears first is :class:`Meet`. Every other
order but :class:`Step` and :class:`Serving` is answered by one :class:`Done`. The end of the stream is the end of the
leader. Frames are four bytes of length and MessagePack. A rank on another node tells the process that started it the
same about its start, and :class:`Now`.
"""

import socket
import struct
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from runtime.engine.causal.attention import SPAN, StepBatch
from runtime.wire.reports import Phase

_LENGTH: Final = struct.Struct("<I")
HEAD_BYTES: Final = _LENGTH.size
MAX_FRAME_BYTES: Final = 256 << 20


class Closed(Exception):
    """The other side is gone."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """Share of the weights that were read, 0..1."""

    progress: float


class Held(msgspec.Struct, frozen=True, kw_only=True, tag="held"):
    """The weights are there. Bytes of this rank's device; ``total_bytes`` is what may be used of it."""

    total_bytes: int
    context_bytes: int
    weights_bytes: int
    token_bytes: int


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """An order was carried out, or why not. ``memory`` says that memory is what was missing."""

    reason: str = ""
    message: str = ""
    memory: bool = False
    freed: int = 0


class Now(msgspec.Struct, frozen=True, tag="now"):
    """What the replica is from now on, as a rank has heard it: ready or asleep."""

    phase: Phase


class Meet(msgspec.Struct, frozen=True, tag="meet"):
    """Where the ranks find each other: ``file:///path`` on one node, ``tcp://host:port`` over several."""

    store: str


class Serving(msgspec.Struct, frozen=True, tag="serving"):
    """The replica has answered once."""


class Positions(msgspec.Struct, frozen=True, tag="positions"):
    """Make the rotary tables so long."""

    count: int


class Pool(msgspec.Struct, frozen=True, tag="pool"):
    """Replace the KV pool by one of so many blocks (0: by none)."""

    blocks: int


class Step(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """A :class:`~runtime.engine.causal.attention.StepBatch`: int32 arrays as bytes."""

    tokens: bytes
    positions: bytes
    row_span: bytes
    picks: bytes
    tables: bytes
    spans: bytes
    num_single: int
    block_tokens: int


class GiveBack(msgspec.Struct, frozen=True, kw_only=True, tag="give_back"):
    """Carry out ``moves``, return the memory of ``blocks``."""

    blocks: list[int]
    moves: dict[int, int]


class Scrub(msgspec.Struct, frozen=True, tag="scrub"):
    """Zero what lies in ``blocks``."""

    blocks: list[int]


class Sleep(msgspec.Struct, frozen=True, tag="sleep"):
    """Give the device back."""


class Wake(msgspec.Struct, frozen=True, tag="wake"):
    """Take it again."""


Order = Meet | Serving | Positions | Pool | Step | GiveBack | Scrub | Sleep | Wake
Answer = Loading | Held | Done | Now
_orders: Final = msgspec.msgpack.Decoder(Order)
_answers: Final = msgspec.msgpack.Decoder(Answer)
_encode: Final = msgspec.msgpack.Encoder().encode


def packed(batch: StepBatch) -> Step:
    """``batch`` as it is sent."""
    return Step(
        tokens=batch.tokens.tobytes(),
        positions=batch.positions.astype(np.int32).tobytes(),
        row_span=batch.row_span.astype(np.int32).tobytes(),
        picks=batch.picks.tobytes(),
        tables=batch.tables.astype(np.int32).tobytes(),
        spans=batch.spans.tobytes(),
        num_single=batch.num_single,
        block_tokens=batch.block_tokens,
    )


def unpacked(step: Step) -> StepBatch:
    """Inverse of :func:`packed`."""

    def numbers(data: bytes) -> NDArray[np.int32]:
        return np.frombuffer(data, np.int32)

    return StepBatch(
        tokens=numbers(step.tokens),
        positions=numbers(step.positions),
        row_span=numbers(step.row_span),
        picks=numbers(step.picks),
        tables=numbers(step.tables),
        spans=np.frombuffer(step.spans, SPAN),
        num_single=step.num_single,
        block_tokens=step.block_tokens,
    )


def send(channel: socket.socket, message: Order | Answer) -> None:
    """Send one message.

    Raises:
        Closed: nobody is there.
    """
    data = _encode(message)
    try:
        channel.sendall(framed(data))
    except OSError as exc:
        raise Closed(str(exc)) from exc


def receive_order(channel: socket.socket) -> Order:
    """Wait for the next order.

    Raises:
        Closed: the leader is gone.
    """
    return _orders.decode(_frame(channel))


def receive_answer(channel: socket.socket) -> Answer:
    """Wait for the next answer.

    Raises:
        Closed: the rank is gone.
    """
    return _answers.decode(_frame(channel))


def framed(data: bytes) -> bytes:
    """``data`` as it goes over a stream."""
    return _LENGTH.pack(len(data)) + data


def length_of(head: bytes, most: int = MAX_FRAME_BYTES) -> int:
    """How many bytes follow the ``head`` of a frame.

    Raises:
        Closed: more than ``most``.
    """
    (length,) = _LENGTH.unpack(head)
    if length > most:
        raise Closed(f"a frame of {length} bytes is none of ours")
    return int(length)


def _frame(channel: socket.socket) -> bytes:
    length = length_of(_exactly(channel, HEAD_BYTES))
    return _exactly(channel, length)


def _exactly(channel: socket.socket, count: int) -> bytes:
    room = bytearray(count)
    view, there = memoryview(room), 0
    while there < count:
        try:
            got = channel.recv_into(view[there:])
        except OSError as exc:
            raise Closed(str(exc)) from exc
        if not got:
            raise Closed("the other side has ended")
        there += got
    return bytes(room)
