"""What one replica needs of a device and its node, per kind of device (pure, on the catalog's estimate)."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from catalog.estimate import Config, Estimate, VersionFacts, estimate

#: Kinds that the engines can run on, best first.
KINDS: Final = ("cuda", "cpu")
#: CPU a replica is counted with when its config does not say (``num_threads``), in thousandths of a CPU. Engines on a
#: CPU share it: half a CPU is what lets a small machine hold a few models, each slower while the others work.
DEFAULT_MILLICPUS: Final[Mapping[str, int]] = {"cpu": 500, "cuda": 1000}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes of device and host memory, thousandths of a CPU."""

    kind: str
    estimate: Estimate
    memory_bytes: int
    host_bytes: int
    millicpus: int

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        parts = self.estimate.as_dict()
        return {
            "kind": self.kind,
            "weights_bytes": parts["weights_bytes"],
            "kv_floor_bytes": parts["kv_floor_bytes"],
            "kv_bytes_per_token": parts["kv_bytes_per_token"],
            "workspace_bytes": parts["workspace_bytes"],
            "context_bytes": parts["context_bytes"],
            "headroom_bytes": parts["headroom_bytes"],
            "total_bytes": self.memory_bytes,
            "host_memory_bytes": self.host_bytes,
            "max_model_len": parts["max_model_len"],
            "cpus": self.millicpus / 1000,
        }


class NeedUnknown(Exception):
    """The version's facts do not say what it needs."""


def needs_of(version: VersionFacts, config: Config, *, num_threads: int = 0) -> dict[str, Need]:
    """The need on each kind of device that can run it.

    Raises:
        NeedUnknown: facts are missing or make no sense; one such version must not stop the planning of others.
    """
    try:
        return _sized(version, config, num_threads)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as exc:
        raise NeedUnknown(f"The version's facts do not say what it needs ({type(exc).__name__}: {exc}).") from exc


def _sized(version: VersionFacts, config: Config, num_threads: int) -> dict[str, Need]:
    found: dict[str, Need] = {}
    for kind in KINDS:
        sized = estimate(version, config, device_kind=kind)
        found[kind] = Need(
            kind=kind,
            estimate=sized,
            memory_bytes=sized.total_bytes,
            host_bytes=sized.host_memory_bytes,
            millicpus=num_threads * 1000 or DEFAULT_MILLICPUS[kind],
        )
    return found
