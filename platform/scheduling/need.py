"""What one replica needs of devices and nodes, per kind of device (pure, on the catalog's estimate)."""

import dataclasses
from collections.abc import Mapping
from typing import Final

from catalog.configs import DTYPE_BYTES, runs_on
from catalog.estimate import Config, Estimate, VersionFacts, estimate
from quotas import weights
from scheduling.demand import Shape
from scheduling.snapshot import DeviceView

#: Kinds that something can run on, best first; on a simulated GPU that is a stand-in, where no real device can take it.
KINDS: Final = ("cuda", "cpu", "simulated")
#: CPU a replica is counted with when its config does not say (``num_threads``), in thousandths of a CPU. Engines on a
#: CPU share it: half a CPU is what lets a small machine hold a few models, each slower while the others work.
DEFAULT_MILLICPUS: Final[Mapping[str, int]] = {"cpu": 500, "cuda": 1000, "simulated": 1000}
_SHOWN: Final = (
    "weights_bytes", "kv_floor_bytes", "kv_bytes_per_token", "workspace_bytes", "context_bytes", "headroom_bytes",
    "max_model_len", "transfer_bytes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """What one replica needs on devices of one kind.

    ``stages`` groups of ``devices`` devices each; a group is on one node, and within one NVLink domain where
    ``linked``. ``memory_bytes`` and ``millis`` (thousandths of its compute; 0: no share of its own) are per device,
    ``whole`` asks for all of it; ``host_bytes`` and ``millicpus`` are per group, of its node. ``products`` bounds what
    it runs on; empty: any. ``weight_width`` is in bytes per weight, 0 where it is not known.
    """

    kind: str
    memory_bytes: int
    host_bytes: int
    millicpus: int
    estimate: Estimate | None = None
    weight_width: float = 0.0
    millis: int = 0
    devices: int = 1
    stages: int = 1
    linked: bool = False
    whole: bool = False
    products: frozenset[str] = frozenset()

    @property
    def total_bytes(self) -> int:
        """Device memory of all ranks together: what quota counts."""
        return self.memory_bytes * self.devices * self.stages

    @property
    def shape(self) -> Shape:
        """The part of it that demand is learned from."""
        millis = 1000 if self.whole else self.millis
        return Shape(self.kind, self.devices, self.memory_bytes, millis, self.millicpus)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        parts = self.estimate.as_dict() if self.estimate is not None else {}
        return {
            "kind": self.kind,
            **{name: parts.get(name, 0) for name in _SHOWN},
            "total_bytes": self.memory_bytes,
            "host_memory_bytes": self.host_bytes,
            "cpus": self.millicpus / 1000,
            "devices": self.devices,
            "stages": self.stages,
        }


def charge(need: Need, device: DeviceView) -> int:
    """Thousandths of a GPU that one rank of ``need`` counts on ``device``: what quota counts."""
    return weights.part_millis(
        device.gpu_millis,
        need.memory_bytes,
        device.memory_bytes,
        whole=need.whole or bool(device.parent),  # an instance has one owner
        compute=need.millis,
    )


class NeedUnknown(Exception):
    """The version's facts do not say what it needs."""


def needs_of(version: VersionFacts, config: Config, *, num_threads: int = 0, sleeps: bool = False) -> dict[str, Need]:
    """The need on each kind of device that can run it.

    One that ``sleeps`` keeps its weights in host memory meanwhile: that is charged from the start, so that falling
    asleep never fails.

    Raises:
        NeedUnknown: facts are missing or make no sense; one such version must not stop the planning of others.
    """
    try:
        return _sized(version, config, num_threads, sleeps)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as exc:
        raise NeedUnknown(f"The version's facts do not say what it needs ({type(exc).__name__}: {exc}).") from exc


def _sized(version: VersionFacts, config: Config, num_threads: int, sleeps: bool) -> dict[str, Need]:
    found: dict[str, Need] = {}
    for kind in KINDS:
        if not runs_on(config, kind):
            continue
        sized = estimate(version, config, device_kind=kind)
        found[kind] = Need(
            kind=kind,
            estimate=sized,
            weight_width=DTYPE_BYTES[config.dtype],
            memory_bytes=sized.total_bytes,
            host_bytes=sized.host_memory_bytes + (sized.weights_bytes if sleeps and kind != "cpu" else 0),
            millicpus=num_threads * 1000 or DEFAULT_MILLICPUS[kind],
        )
    return found
