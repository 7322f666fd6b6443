"""How a rank on another node and its leader prove to each other that they are of one replica, before anything else.

Both know the replica's token, which never travels: each answers the other's random number with an HMAC (RFC 2104,
SHA-256) under a key that is made from the token for one generation of one replica. The caller proves first; a
stranger learns a random number and nothing else. What follows on the stream is neither encrypted nor signed: it is for
a private network, like the traffic of torch.distributed beside it.
"""

import hmac
import os
import socket
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import msgspec

from runtime.engine import errors
from runtime.engine.ranks import orders, streams
from runtime.engine.ranks.split import REASON
from runtime.wire.inference import EngineSpec

MAX_BYTES: Final = 512
#: How long one exchange may take, from the first byte to the last.
EXCHANGE_SECONDS: Final = 5.0
_NONCE_BYTES: Final = 32
_PAUSE_SECONDS: Final = 0.3
_LABEL: Final = b"millpond ranks 1"


class Challenge(msgspec.Struct, frozen=True, tag="challenge"):
    """Leader to whoever calls."""

    nonce: bytes


class Response(msgspec.Struct, frozen=True, kw_only=True, tag="response"):
    """Caller to leader."""

    rank: int
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """Leader to a rank that has proved what it is."""

    proof: bytes


Message = TypeVar("Message", Challenge, Response, Welcome)


class Refused(Exception):
    """The other side is not of this replica, or does not keep to the protocol."""


class Secret(NamedTuple):
    """What all ranks of one generation of a replica know."""

    key: bytes

    def of_rank(self, rank: int, challenge: bytes, nonce: bytes) -> bytes:
        """The proof of the caller."""
        return self._proof(b"rank", rank, challenge, nonce)

    def of_leader(self, rank: int, challenge: bytes, nonce: bytes) -> bytes:
        """The proof of the leader."""
        return self._proof(b"leader", rank, challenge, nonce)

    def _proof(self, who: bytes, rank: int, challenge: bytes, nonce: bytes) -> bytes:
        return hmac.digest(self.key, who + rank.to_bytes(4, "big") + challenge + nonce, "sha256")


def secret_of(spec: EngineSpec) -> Secret:
    """The secret of the replica's generation.

    Raises:
        errors.StartError: the replica has no token to make it from.
    """
    if not spec.token:
        raise errors.StartError(REASON, "Ranks on several nodes know each other by the replica's token: there is none.")
    size = spec.world.size if spec.world is not None else 1
    about = b"\0".join((_LABEL, spec.replica_id.encode(), str(spec.generation).encode(), str(size).encode()))
    return Secret(hmac.digest(spec.token.encode(), about, "sha256"))


def new_nonce() -> bytes:
    """A random number that is used once."""
    return os.urandom(_NONCE_BYTES)


def encoded(message: Challenge | Response | Welcome) -> bytes:
    """``message`` as it goes over a stream."""
    return orders.framed(msgspec.msgpack.encode(message))


def decoded(data: bytes, kind: type[Message]) -> Message:
    """Inverse of :func:`encoded`, without the head of the frame.

    Raises:
        Refused: it is something else.
    """
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except msgspec.MsgspecError as exc:
        raise Refused("what it says is none of ours") from exc


def is_rank(secret: Secret, said: Response, challenge: bytes) -> bool:
    """True when the caller knows the secret."""
    if len(said.nonce) != _NONCE_BYTES or not 0 <= said.rank < 1 << 32:
        return False
    return hmac.compare_digest(said.proof, secret.of_rank(said.rank, challenge, said.nonce))


def join(
    leader: tuple[str, int],
    source: str,
    secret: Secret,
    rank: int,
    patience: float,
    given_up: Callable[[], bool] = lambda: False,
) -> socket.socket:
    """The stream of ``rank`` to its leader, once both have proved what they are; calls again and again until then.

    ``source`` is the address that it calls from.

    Raises:
        Refused: not within ``patience`` seconds; the text says why the last call was in vain.
    """
    until = time.monotonic() + patience
    while True:
        try:
            return _call(leader, source, secret, rank)
        except (OSError, Refused, orders.Closed) as exc:
            why = str(exc) or type(exc).__name__
        if given_up() or time.monotonic() + _PAUSE_SECONDS > until:
            raise Refused(why)
        time.sleep(_PAUSE_SECONDS)


def _call(leader: tuple[str, int], source: str, secret: Secret, rank: int) -> socket.socket:
    stream = socket.create_connection(leader, timeout=EXCHANGE_SECONDS, source_address=(source, 0))
    try:
        until = time.monotonic() + EXCHANGE_SECONDS
        challenge = _read(stream, Challenge, until).nonce
        nonce = new_nonce()
        stream.sendall(encoded(Response(rank=rank, nonce=nonce, proof=secret.of_rank(rank, challenge, nonce))))
        proof = _read(stream, Welcome, until).proof
        if not hmac.compare_digest(proof, secret.of_leader(rank, challenge, nonce)):
            raise Refused("what listens there is not the leader of this replica")
        streams.keep_watch(stream)
        stream.settimeout(None)
    except BaseException:
        stream.close()
        raise
    return stream


def _read(stream: socket.socket, kind: type[Message], until: float) -> Message:
    head = _exactly(stream, orders.HEAD_BYTES, until)
    return decoded(_exactly(stream, orders.length_of(head, MAX_BYTES), until), kind)


def _exactly(stream: socket.socket, count: int, until: float) -> bytes:
    found = b""
    while len(found) < count:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("it does not answer in time")
        stream.settimeout(left)
        got = stream.recv(count - len(found))
        if not got:
            raise Refused("it refuses this rank")
        found += got
    return found
