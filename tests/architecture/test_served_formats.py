"""The catalog says what may be served, the engine serves it; neither imports the other, so their lists are compared."""

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
import torch

from catalog import architectures as said
from catalog import configs
from catalog.formats import decoder as catalog_decoder
from catalog.formats import huggingface
from runtime.engine import architectures as done
from runtime.engine import settings
from runtime.engine.causal import config as decoder_config
from runtime.engine.causal.model import Decoder
from runtime.wire.assignments import EngineConfig
from runtime.wire.memory import Watermarks
from tests.build.models import ARCHITECTURES, tiny_config


def test_the_catalog_accepts_what_the_engine_serves() -> None:
    assert [dataclasses.asdict(entry) for entry in said.ARCHITECTURES] == [
        dataclasses.asdict(entry) for entry in done.ARCHITECTURES
    ]
    assert said.ROPE_TYPES == done.ROPE_TYPES
    assert said.LOCAL_ROPE_TYPES == done.LOCAL_ROPE_TYPES
    assert said.ACTIVATIONS == done.ACTIVATIONS
    assert said.REFUSED_SWITCHES == done.REFUSED_SWITCHES
    assert {entry.name for entry in done.ARCHITECTURES} == set(ARCHITECTURES), "every one has a tiny model to test"


def test_the_catalog_offers_the_ways_of_holding_that_the_engine_has() -> None:
    assert configs.QUANTIZATIONS == settings.QUANTIZATIONS
    assert configs.KV_DTYPES == settings.KV_DTYPES


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_catalog_calls_for_the_tensors_that_the_engine_loads(architecture: str, tmp_path: Path) -> None:
    config = tiny_config(architecture)
    config.save_pretrained(tmp_path)
    wanted = dict(catalog_decoder.huggingface_tensors(huggingface.read_decoder(_as_json(tmp_path))))
    with torch.device("meta"):
        model = Decoder(decoder_config.read(config), dtype=torch.float32, device=torch.device("meta"))
    assert wanted == {name: tuple(tensor.shape) for name, tensor in model.destinations().items()}


def _as_json(folder: Path) -> dict[str, object]:
    found = json.loads((folder / "config.json").read_bytes())
    assert isinstance(found, dict)
    return found


def test_serving_configs_and_the_wire_have_the_same_defaults() -> None:
    wire = msgspec.structs.asdict(EngineConfig())
    marks = wire.pop("watermarks")
    assert isinstance(marks, Watermarks)
    wire |= {"watermark_low": marks.low, "watermark_high": marks.high, "watermark_critical": marks.critical}
    placed_by = {*configs.PARTITION, *configs.PARALLEL, *configs.DEVICES}  # the planner reads these, and no engine
    assert {k: v for k, v in dataclasses.asdict(configs.DEFAULTS).items() if k not in placed_by} == wire
