"""What one replica needs of devices and nodes, per kind of device (pure, on the catalog's estimate)."""

import dataclasses
from collections.abc import Mapping
from typing import Final, Protocol

from catalog.configs import DTYPE_BYTES, runs_on
from catalog.estimate import Config, Estimate, VersionFacts, estimate, is_graph
from kernel.isolation import Isolation, Requirement, strictest
from quotas import weights
from scheduling.demand import Shape
from scheduling.parallel import Choice
from scheduling.snapshot import DeviceView
from scheduling.whynot import Refused
from scheduling.words import size

#: Kinds that something can run on, best first; on a simulated GPU that is a stand-in, where no real device can take it.
KINDS: Final = ("cuda", "cpu", "simulated")
#: CPU a replica is counted with when its config does not say (``num_threads``), in thousandths of a CPU. Engines on a
#: CPU share it: half a CPU is what lets a small machine hold a few models, each slower while the others work.
DEFAULT_MILLICPUS: Final[Mapping[str, int]] = {"cpu": 500, "cuda": 1000, "simulated": 1000}
#: Requirements that on a whole device nothing but all of it meets.
WALLED: Final = (Requirement.HARDWARE.value, Requirement.EXCLUSIVE.value)
_SHOWN: Final = (
    "weights_bytes", "kv_floor_bytes", "kv_bytes_per_token", "workspace_bytes", "context_bytes", "headroom_bytes",
    "max_model_len", "transfer_bytes",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """What one replica needs on devices of one kind.

    ``stages`` groups of ``devices`` devices each; a group is on one node, and where ``linked`` within one NVLink
    domain, or so many consecutive devices of it at a time as ``linked_by`` says (0: all of them). ``memory_bytes`` and
    ``millis`` (thousandths of its compute; 0: no share of its own) are per device, ``whole`` asks for all of it;
    ``host_bytes`` and ``millicpus`` are per group, of its node. ``products`` bounds what it runs on; empty: any.
    ``over_nodes`` stages are real ranks on several nodes, which must all take part in that.
    ``weight_width`` is in bytes per weight, 0 where it is not known. ``least`` is the isolation that it must have at
    least, ``profile`` the MIG profile that it asks for ("": any device will do). ``unsupported`` says why no engine can
    run it so on this kind of device; ``choice`` has the numbers of a parallel plan, and ``elsewhere`` says why products
    that it is not for have none. It is not for the products ``besides``, of which it was ``measured`` what they need.
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
    over_nodes: bool = False
    linked: bool = False
    linked_by: int = 0
    whole: bool = False
    products: frozenset[str] = frozenset()
    least: str = Requirement.ANY.value
    profile: str = ""
    unsupported: Refused | None = None
    besides: frozenset[str] = frozenset()
    measured: bool = False
    choice: Choice | None = dataclasses.field(default=None, compare=False)
    elsewhere: Mapping[str, Refused] = dataclasses.field(default_factory=dict, compare=False)

    @property
    def total_bytes(self) -> int:
        """Device memory of all ranks together: what quota counts."""
        return self.memory_bytes * self.devices * self.stages

    @property
    def limits_threads(self) -> bool:
        """True when a limit on multiprocessors is asked for, which MPS alone keeps."""
        return bool(self.millis) and self.least == Requirement.MPS

    @property
    def shape(self) -> Shape:
        """The part of it that demand is learned from."""
        millis = 1000 if self.whole or self.least in WALLED else self.millis
        return Shape(self.kind, self.devices, self.memory_bytes, millis, self.millicpus, tuple(sorted(self.products)))

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
            "isolation": self.least,
            "mig_profile": self.profile,
            "thread_percentage": self.millis / 10,
            "measured": self.measured,
            "parallel": self.choice.as_dict() if self.choice is not None else None,
        }


def wall(need: Need, device: DeviceView) -> str:
    """The isolation class that a rank of ``need`` has on ``device``."""
    if device.parent:
        return Isolation.MIG.value  # an instance has one owner
    if need.whole or need.least in WALLED:
        return Isolation.EXCLUSIVE.value
    return Isolation.MPS.value if need.least == Requirement.MPS else Isolation.COOPERATIVE.value


def is_owned(need: Need, device: DeviceView) -> bool:
    """True when a rank of ``need`` has all of ``device``."""
    return need.whole or bool(device.parent) or need.least in WALLED


def charge(need: Need, device: DeviceView) -> int:
    """Thousandths of a GPU that one rank of ``need`` counts on ``device``: what quota counts."""
    return weights.part_millis(
        device.gpu_millis,
        need.memory_bytes,
        device.memory_bytes,
        whole=is_owned(need, device),
        compute=need.millis,
    )


class Isolated(Protocol):
    """A version, as far as it says how strictly its replicas are kept apart."""

    @property
    def isolation(self) -> str: ...


class PartConfig(Protocol):
    """A serving config, as far as it says what part of a device is wanted."""

    @property
    def isolation(self) -> str: ...
    @property
    def mig_profile(self) -> str: ...
    @property
    def memory_limit_bytes(self) -> int: ...
    @property
    def thread_percentage(self) -> int: ...


def in_order(needs: Mapping[str, Need]) -> list[Need]:
    """The best kind of device first; within a kind as they are given."""
    return sorted(needs.values(), key=lambda need: KINDS.index(need.kind) if need.kind in KINDS else len(KINDS))


def need_on(device: DeviceView, needs: Mapping[str, Need]) -> Need | None:
    """What is needed on this device: what is planned for its product, else for its kind."""
    return needs.get(key_of(device.kind, device.product)) or needs.get(device.kind)


def key_of(kind: str, product: str) -> str:
    """The key of a need that is for one product."""
    return f"{kind}/{product}"


class NeedUnknown(Exception):
    """The version's facts do not say what it needs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """What part of a device is asked for: see ``catalog.configs.Settings``."""

    least: str = Requirement.ANY.value
    profile: str = ""
    memory_limit_bytes: int = 0
    thread_percentage: int = 0


def part_of(version: Isolated, config: PartConfig, policy: str) -> Part:
    """What ``config`` asks for, under what the version and the tenant (``policy``) require."""
    return Part(
        least=strictest(config.isolation, version.isolation, policy),
        profile=config.mig_profile,
        memory_limit_bytes=config.memory_limit_bytes,
        thread_percentage=config.thread_percentage,
    )


def needs_of(
    version: VersionFacts, config: Config, *, num_threads: int = 0, sleeps: bool = False, part: Part | None = None
) -> dict[str, Need]:
    """The need on each kind of device that can run it, of the ``part`` that is asked for.

    One that ``sleeps`` keeps its weights in host memory meanwhile: that is charged from the start, so that falling
    asleep never fails.

    Raises:
        NeedUnknown: facts are missing or make no sense, or the memory that is asked for is less than it needs; one
            such version must not stop the planning of others.
    """
    try:
        return _sized(version, config, num_threads, sleeps, part or Part())
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as exc:
        raise NeedUnknown(f"The version's facts do not say what it needs ({type(exc).__name__}: {exc}).") from exc


def _sized(version: VersionFacts, config: Config, num_threads: int, sleeps: bool, part: Part) -> dict[str, Need]:
    found: dict[str, Need] = {}
    smallest = 0
    for kind in KINDS:
        if not runs_on(config, kind):
            continue
        sized = estimate(version, config, device_kind=kind)
        if 0 < part.memory_limit_bytes < sized.total_bytes:
            smallest = min(smallest or sized.total_bytes, sized.total_bytes)
            continue
        found[kind] = Need(
            kind=kind,
            estimate=sized,
            weight_width=0.0 if is_graph(version) else DTYPE_BYTES[config.dtype],
            memory_bytes=part.memory_limit_bytes or sized.total_bytes,
            host_bytes=sized.host_memory_bytes + (sized.weights_bytes if sleeps and kind != "cpu" else 0),
            millicpus=num_threads * 1000 or DEFAULT_MILLICPUS[kind],
            millis=part.thread_percentage * 10,
            least=part.least,
            profile=part.profile,
        )
    if smallest and not found:
        asked = size(part.memory_limit_bytes)
        raise NeedUnknown(f"A memory limit of {asked} is too small: one replica needs {size(smallest)}.")
    return found
