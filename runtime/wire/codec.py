"""JSON encoding of wire messages."""

from typing import TypeVar

import msgspec

from runtime.wire import errors

T = TypeVar("T")

_encoder = msgspec.json.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """Return ``message`` as UTF-8 JSON."""
    return _encoder.encode(message)


def decode(data: bytes | str, kind: type[T]) -> T:
    """Read ``data`` as ``kind``; unknown fields are ignored.

    Raises:
        errors.MalformedMessage: the bytes are not JSON or do not fit ``kind``; the text names the path.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as exc:
        raise errors.MalformedMessage(str(exc)) from exc


def to_plain(message: msgspec.Struct) -> object:
    """Return ``message`` as dicts, lists and scalars (what a JSON column stores)."""
    return msgspec.to_builtins(message)


def from_plain(data: object, kind: type[T]) -> T:
    """Inverse of :func:`to_plain`.

    Raises:
        errors.MalformedMessage: ``data`` does not fit ``kind``.
    """
    try:
        return msgspec.convert(data, type=kind)
    except msgspec.MsgspecError as exc:
        raise errors.MalformedMessage(str(exc)) from exc
