"""The catalog says what may be served, the engine serves it; neither imports the other, so their lists are compared."""

import dataclasses

import msgspec

from catalog import architectures as said
from catalog import configs
from runtime.engine import architectures as done
from runtime.wire.assignments import EngineConfig
from runtime.wire.memory import Watermarks


def test_the_catalog_accepts_what_the_engine_serves() -> None:
    def facts(entry: said.Architecture | done.Architecture) -> tuple[object, ...]:
        return entry.name, entry.gguf, entry.qk_norm, entry.qkv_bias

    assert [facts(entry) for entry in said.ARCHITECTURES] == [facts(entry) for entry in done.ARCHITECTURES]
    assert said.ROPE_TYPES == done.ROPE_TYPES


def test_serving_configs_and_the_wire_have_the_same_defaults() -> None:
    wire = msgspec.structs.asdict(EngineConfig())
    marks = wire.pop("watermarks")
    assert isinstance(marks, Watermarks)
    wire |= {"watermark_low": marks.low, "watermark_high": marks.high, "watermark_critical": marks.critical}
    assert dataclasses.asdict(configs.DEFAULTS) == wire
