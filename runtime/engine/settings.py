"""The serving config with its gaps filled: 0 means "let the engine decide", and nothing else may be odd. Pure."""

import dataclasses
import math
from typing import Final

import msgspec

from runtime.engine import errors
from runtime.wire.assignments import EngineConfig

# How weights, and how keys and values, may be held.
QUANTIZATIONS: Final = ("none", "int8", "int8_weight_only", "int4_weight_only", "fp8")
KV_DTYPES: Final = ("same", "int8", "fp8")
_DEFAULTS: Final = EngineConfig()
_DECIDED: Final = ("max_num_seqs", "max_num_batched_tokens", "max_waiting", "kv_block_tokens")
_NOT_NEGATIVE: Final = (*_DECIDED, "max_model_len", "kv_cache_bytes", "num_threads", "offload_layers")


@dataclasses.dataclass(frozen=True)
class _Bound:
    name: str
    most: int


# Beyond these a value is a mistake, and would be paid for in tables before the first request.
_BOUNDS: Final = (
    _Bound("max_num_seqs", 4096),
    _Bound("max_num_batched_tokens", 1 << 17),
    _Bound("max_waiting", 1 << 16),
    _Bound("kv_block_tokens", 1024),
    _Bound("num_threads", 1024),
)


def effective(config: EngineConfig) -> EngineConfig:
    """Return ``config`` with every open limit decided.

    Raises:
        errors.StartError: a value is negative or beyond reason, or the watermarks are not in order.
    """
    for name in _NOT_NEGATIVE:
        if getattr(config, name) < 0:
            raise errors.StartError("InvalidConfig", f"{name} cannot be negative.")
    for bound in _BOUNDS:
        if getattr(config, bound.name) > bound.most:
            raise errors.StartError("InvalidConfig", f"{bound.name} cannot be more than {bound.most}.")
    if not 0 < config.tenant_kv_share <= 1:
        raise errors.StartError("InvalidConfig", "tenant_kv_share has to be a fraction above 0 and at most 1.")
    if not 0 <= config.sleep_after_seconds < math.inf:
        raise errors.StartError("InvalidConfig", "sleep_after_seconds has to be a number of seconds, 0 for never.")
    if not 0 <= config.queue_timeout_seconds < math.inf:
        raise errors.StartError("InvalidConfig", "queue_timeout_seconds has to be a number of seconds, 0 for no limit.")
    marks = config.watermarks
    if not 0 < marks.low < marks.high < marks.critical <= 1:
        raise errors.StartError("InvalidConfig", "The watermarks have to be 0 < low < high < critical <= 1.")
    decided = {name: getattr(config, name) or getattr(_DEFAULTS, name) for name in _DECIDED}
    return msgspec.structs.replace(config, **decided)
