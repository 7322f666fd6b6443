"""What the gateway reads of an engine's answers: the token counts, nothing else."""

import msgspec

from runtime.wire.inference import Usage


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct, frozen=True):
    usage: _Counts | None = None


_decoder = msgspec.json.Decoder(_Answer)


def usage_of(body: bytes) -> Usage:
    """Token counts of a whole answer; zeros where it has none that can be read."""
    try:
        counts = _decoder.decode(body).usage
    except (msgspec.MsgspecError, RecursionError):
        return Usage()
    if counts is None:
        return Usage()
    cached = counts.prompt_tokens_details.cached_tokens if counts.prompt_tokens_details else None
    return Usage(
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=cached or 0,
        completion_tokens=counts.completion_tokens or 0,
    )
