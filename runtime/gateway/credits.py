"""What an engine says of itself on the head of an answer: how much it takes, and how full it is. Pure."""

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from runtime.wire.inference import HEADER_CREDITS, HEADER_LOAD, EngineLoad

MAX_CREDITS: Final = 4096


class Told(NamedTuple):
    """``None`` where the engine did not say. ``kv_free`` is a fraction."""

    credits: int | None = None
    running: int = 0
    waiting: int = 0
    kv_free: float | None = None


def of_answer(headers: Mapping[str, str]) -> Told | None:
    """Read an answer's head; ``None`` when it says nothing of load. What cannot be read counts as not said."""
    credits, load = headers.get(HEADER_CREDITS), headers.get(HEADER_LOAD)
    if credits is None and load is None:
        return None
    fields = dict(part.partition("=")[::2] for part in load.split(";")) if load else {}
    try:
        kv_free = float(fields.get("kv_free", "nan"))
    except ValueError:
        kv_free = math.nan
    return Told(
        credits=min(MAX_CREDITS, int(credits)) if credits and _is_count(credits) else None,
        running=_count(fields.get("running", "")),
        waiting=_count(fields.get("waiting", "")),
        kv_free=min(1.0, max(0.0, kv_free)) if math.isfinite(kv_free) else None,
    )


def of_load(load: EngineLoad) -> Told:
    """The same from the answer of the engine's load path."""
    kv_free = min(1.0, max(0.0, load.kv_free)) if math.isfinite(load.kv_free) else 1.0
    return Told(min(MAX_CREDITS, max(0, load.credits)), max(0, load.running), max(0, load.waiting), kv_free)


def _count(text: str) -> int:
    return int(text) if _is_count(text) else 0


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
