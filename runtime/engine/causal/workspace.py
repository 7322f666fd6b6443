"""What the largest step takes beyond what is held, kept from start to start: it depends on shapes, not on weights.

An entry is named by a digest over everything that the number comes from: the model's shape, how it is held, the
limits, this package's code, torch and the processor. Only for CPUs, where memory is the process's own; on other devices
it is measured at every start. Whatever is wrong with an entry only costs the time of measuring again.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Final

import msgspec
import torch

from runtime.base import logs
from runtime.engine.causal.model import Decoder
from runtime.engine.kernels import build
from runtime.wire.assignments import EngineConfig

_log = logs.get(__name__)

_MAX_ENTRIES: Final = 64
_CODE: Final = Path(__file__).parents[1]
_NOT_SHAPE: Final = ("architecture", "hf")


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    peak_bytes: int


def name(model: Decoder, config: EngineConfig, rows: int) -> str | None:
    """What the peak of ``model`` in a step of ``rows`` under ``config`` is kept as; ``None`` where it is not kept."""
    if model.device.type != "cpu":
        return None
    found = hashlib.sha256()
    for path in sorted(
        [*(_CODE / "causal").glob("*.py"), *(_CODE / "ranks").glob("*.py"), *(_CODE / "kernels").rglob("*.[ch]")]
    ):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    shape = [
        (field.name, getattr(model.config, field.name))
        for field in dataclasses.fields(model.config)
        if field.name not in _NOT_SHAPE
    ]
    facts = (
        model.config.architecture.name,
        shape,
        model.program is not None,
        model.split,
        config,
        rows,
        torch.get_num_threads(),
        torch.__version__,
        build.processor(),
    )
    found.update(repr(facts).encode())
    return found.hexdigest()[:40]


def recall(entry: str | None) -> int | None:
    """The peak in bytes kept as ``entry``, or ``None``."""
    if entry is None:
        return None
    try:
        kept = msgspec.json.decode((build.private_folder("workspaces") / entry).read_bytes(), type=_Entry)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as exc:
        _log.warning("kept_workspace_unusable", error=str(exc)[:300])
        return None
    return kept.peak_bytes if kept.peak_bytes >= 0 else None


def remember(entry: str | None, peak_bytes: int) -> None:
    """Keep ``peak_bytes`` as ``entry``."""
    if entry is None:
        return
    try:
        content = msgspec.json.encode(_Entry(peak_bytes=peak_bytes))
        build.keep(build.private_folder("workspaces"), entry, content, most=_MAX_ENTRIES)
    except OSError as exc:
        _log.info("workspace_not_kept", error=str(exc)[:300])
