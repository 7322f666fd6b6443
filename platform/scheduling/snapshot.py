"""What the planner looks at (pure, frozen): the fleet at one moment. ``reading`` fills it from the rows.

Bytes, thousandths of a CPU, thousandths of a device ("millis", what a driver limit gives of its compute). A MIG
instance is a device of its own with ``parent``; whole GPUs that are cut are not listed.
"""

import dataclasses
import math
import uuid
from collections.abc import Mapping
from typing import Any, Final

WHOLE_MILLIS: Final = 1000
UNLIMITED: Final = -1
#: What memory above a guarantee is divided by where it is compared with whole GPUs above one.
BYTES_OF_A_GPU: Final = 80 * 1024**3


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeView:
    """A node. ``stored`` are digests it keeps of those that were asked about; ``replicas`` counts by deployment.

    ``fault_domain`` is what fails together (a rack, a power feed); "" is the node by itself. ``rank_address`` is where
    ranks on other nodes reach those here; "": it takes part in no replica over several nodes. ``rdma`` says that its
    devices reach other nodes without passing through the host, ``mps`` that its driver can limit shares of a GPU.
    """

    id: uuid.UUID
    name: str
    state: str
    memory_bytes: int
    memory_available_bytes: int
    held_host_bytes: int
    millicpus: int
    held_millicpus: int
    stored: frozenset[str] = frozenset()
    replicas: Mapping[uuid.UUID, int] = dataclasses.field(default_factory=dict)
    fault_domain: str = ""
    rdma: bool = False
    mps: bool = False
    rank_address: str = ""

    @property
    def free_host_bytes(self) -> int:
        """Host memory that is neither promised nor used right now."""
        return min(self.memory_bytes - self.held_host_bytes, self.memory_available_bytes)

    @property
    def free_millicpus(self) -> int:
        return self.millicpus - self.held_millicpus


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceView:
    """A device or a MIG instance; ``exclusive`` when somebody has all of it, ``shared`` when somebody has a part.

    ``shared_as`` is the one kind of all its shares ("": there are none), ``sharers`` their number, ``profile`` the
    shape of a MIG instance; ``mig`` is what a whole GPU's node says about cutting it, ``None`` where it cannot be.

    ``link_domain`` names the devices that reach each other over NVLink; "" is none. ``link`` is the best link to others
    of its node. ``parent`` is the GPU of a MIG
    instance. ``gpu_millis`` is what it counts of a GPU (0: a CPU). On a ``stand_in`` no engine runs: it is simulated,
    and so is what runs there.
    """

    id: uuid.UUID
    node_id: uuid.UUID
    uuid: str
    kind: str
    product: str
    state: str
    message: str
    present: bool
    memory_bytes: int
    held_bytes: int
    exclusive: bool = False
    shared: bool = False
    millis: int = WHOLE_MILLIS
    held_millis: int = 0
    link_domain: str = ""
    link: str = ""
    parent: str = ""
    stand_in: bool = False
    gpu_millis: int = 0
    profile: str = ""
    shared_as: str = ""
    sharers: int = 0
    mig: Mapping[str, Any] | None = dataclasses.field(default=None, compare=False)

    @property
    def free_bytes(self) -> int:
        return self.memory_bytes - self.held_bytes

    @property
    def free_millis(self) -> int:
        return self.millis - self.held_millis

    @property
    def empty(self) -> bool:
        return not (self.held_bytes or self.held_millis or self.exclusive or self.shared)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holding:
    """What one rank of a replica has of a device, and of the node beside it.

    ``host_used_bytes`` of the ``host_bytes`` that were promised to it are known to be in use: that much of the memory
    of the machine comes back when it ends.
    """

    device_id: uuid.UUID
    memory_bytes: int
    millis: int = 0
    exclusive: bool = False
    host_bytes: int = 0
    millicpus: int = 0
    isolation: str = ""
    host_used_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class HolderView:
    """A replica that has a place. Of those that may be taken away for others, the lowest ``priority`` goes first.

    One that is ``leaving`` ends anyway. ``gpu_millis``: what it counts of GPUs. ``holdings`` are in the order of the
    ranks; ``stages`` is how many groups of them may be on different nodes. One that is ``stranded`` serves nobody, for
    a node of it was declared lost: only what it holds of other nodes is free once it ends. What it holds ``counts``
    for its tenant, or not while it has to leave by no fault of the tenant. ``products`` are the names of devices that
    it may run on (none: any).
    """

    replica_id: uuid.UUID
    deployment_id: uuid.UUID
    tenant_id: uuid.UUID
    label: str
    priority: int
    holdings: tuple[Holding, ...]
    endable: bool = True
    leaving: bool = False
    gpu_millis: int = 0
    stages: int = 1
    stranded: bool = False
    counts: bool = True
    products: tuple[str, ...] = ()

    @property
    def importance(self) -> int:
        """Its priority; who serves nobody matters less than anybody."""
        return -1 if self.stranded else self.priority

    @property
    def memory_bytes(self) -> int:
        """Device memory that it holds, which is what quota counts."""
        return sum(holding.memory_bytes for holding in self.holdings)

    @property
    def released(self) -> tuple[int, int]:
        """Bytes and thousandths of a GPU by which its tenant holds less once it ends."""
        return (self.memory_bytes, self.gpu_millis) if self.counts else (0, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantView:
    """Device memory and GPUs (thousandths) of a tenant: what nobody may take from it, what it may not exceed, what it
    holds. -1: unlimited; a guarantee without a limit promises all that it holds. ``weight`` counts above guarantees.
    The limits are its own: what its ``group`` leaves of them is said by :meth:`under`.

    ``passing`` is the part of what it holds that ends anyway, or is only promised to it: a claim on the rest must not
    count on that, or what is drained for one would be taken for borrowed again by the next.
    """

    id: uuid.UUID
    guaranteed_bytes: int
    limit_bytes: int
    held_bytes: int
    guaranteed_millis: int = UNLIMITED
    limit_millis: int = UNLIMITED
    held_millis: int = 0
    weight: int = 100
    passing_bytes: int = 0
    passing_millis: int = 0
    group: uuid.UUID | None = None

    def under(self, group: "GroupView | None") -> "TenantView":
        """The tenant with its limits as far as its group leaves something now."""
        if group is None:
            return self
        return self._limited(
            _reach(self.held_bytes, group.limit_bytes, group.held_bytes),
            _reach(self.held_millis, group.limit_millis, group.held_millis),
        )

    def firmly(self) -> "TenantView":
        """The tenant with its limits lowered to what is guaranteed to it on GPUs: of memory where they have nothing."""
        if self.guaranteed_millis != UNLIMITED:
            return self._limited(UNLIMITED, self.guaranteed_millis)
        return self._limited(self.guaranteed_bytes, UNLIMITED)

    def _limited(self, size: int, millis: int) -> "TenantView":
        return dataclasses.replace(
            self, limit_bytes=_lower(self.limit_bytes, size), limit_millis=_lower(self.limit_millis, millis)
        )

    def passing(self, size: int, millis: int) -> "TenantView":
        """The tenant once so much more of what it holds is passing."""
        return dataclasses.replace(
            self, passing_bytes=self.passing_bytes + size, passing_millis=self.passing_millis + millis
        )

    def holding(self, more: int, millis: int = 0) -> "TenantView":
        """The tenant once it holds ``more`` bytes and ``millis`` of GPUs."""
        return dataclasses.replace(self, held_bytes=self.held_bytes + more, held_millis=self.held_millis + millis)

    def within_limit(self, more: int, millis: int = 0) -> bool:
        """True when it may hold that much more."""
        return (self.limit_bytes == UNLIMITED or self.held_bytes + more <= self.limit_bytes) and (
            not millis or self.limit_millis == UNLIMITED or self.held_millis + millis <= self.limit_millis
        )

    def within_guarantee(self, more: int, millis: int = 0) -> bool:
        """True when it may hold that much more without borrowing; what decides is what :meth:`borrowed` goes by."""
        if self.guaranteed_millis != UNLIMITED and millis:
            return self.held_millis + millis <= self.guaranteed_millis
        return self.guaranteed_bytes == UNLIMITED or self.held_bytes + more <= self.guaranteed_bytes

    def borrowed(self, released: int, millis: int = 0) -> bool:
        """True when it would still hold its whole guarantee without ``released`` bytes and ``millis``: all borrowed.

        Where GPUs have a guarantee, that one decides for what is on GPUs: they are counted by slice, the larger part of
        memory and compute, so who is above it has more of the devices than was promised, however little memory it
        uses. Memory decides where GPUs have none, and for what is on none. Where nothing has one, nothing is borrowed.
        """
        if self.guaranteed_millis != UNLIMITED and (millis or not released):
            return self.held_millis - self.passing_millis - millis >= self.guaranteed_millis
        size = self.held_bytes - self.passing_bytes - released
        return self.guaranteed_bytes != UNLIMITED and size >= self.guaranteed_bytes

    @property
    def borrowing(self) -> bool:
        """True when anything that it holds may be above its guarantee, on GPUs or on none."""
        return self.borrowed(0, 0) or self.borrowed(1, 0)

    @property
    def borrows(self) -> bool:
        """True when anything that it holds can be above a guarantee: it has one, of memory or of GPUs."""
        return not self.guaranteed_bytes == self.guaranteed_millis == UNLIMITED

    def over_share(self, more: int, millis: int = 0) -> float:
        """What it would hold above its guarantees with so much more (may be negative), in GPUs, by its weight.

        The kind of which more is above its guarantee counts; bytes as parts of :data:`BYTES_OF_A_GPU`.
        """
        over = max(
            _beyond(self.held_bytes + more, self.guaranteed_bytes) / BYTES_OF_A_GPU,
            _beyond(self.held_millis + millis, self.guaranteed_millis) / 1000,
        )
        return over / self.weight if self.weight else (math.inf if over else 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupView:
    """Tenants that together hold no more than its limits (bytes and thousandths of a GPU; -1: unlimited).

    ``ending`` is the part of what they hold that ends anyway; nobody's places wait for it yet.
    """

    id: uuid.UUID
    limit_bytes: int = UNLIMITED
    limit_millis: int = UNLIMITED
    held_bytes: int = 0
    held_millis: int = 0
    ending_bytes: int = 0
    ending_millis: int = 0

    def holding(self, more: int, millis: int) -> "GroupView":
        """The group once its tenants hold so much more, or it is kept for one of them."""
        return dataclasses.replace(self, held_bytes=self.held_bytes + more, held_millis=self.held_millis + millis)

    def ending(self, size: int, millis: int) -> "GroupView":
        """The group once so much more of what its tenants hold ends."""
        return dataclasses.replace(
            self, ending_bytes=self.ending_bytes + size, ending_millis=self.ending_millis + millis
        )

    def lacks(self, more: int, millis: int) -> tuple[int, int]:
        """Bytes and thousandths of a GPU that somebody has to give back, beside what ends, before one gets that."""
        return (
            _lacking(more, self.limit_bytes, self.held_bytes - self.ending_bytes),
            _lacking(millis, self.limit_millis, self.held_millis - self.ending_millis),
        )


def _beyond(held: int, guaranteed: int) -> int:
    return 0 if guaranteed == UNLIMITED else max(0, held - guaranteed)


def _lower(limit: int, other: int) -> int:
    return max(limit, other) if UNLIMITED in (limit, other) else min(limit, other)


def _reach(held: int, limit: int, together: int) -> int:
    return UNLIMITED if limit == UNLIMITED else held + max(0, limit - together)


def _lacking(more: int, limit: int, held: int) -> int:
    return 0 if limit == UNLIMITED or not more else max(0, held + more - limit)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The fleet at one moment. Devices are in a fixed order, so that the same snapshot gives the same plan."""

    nodes: Mapping[uuid.UUID, NodeView]
    devices: tuple[DeviceView, ...]
    holders: tuple[HolderView, ...] = ()
    tenants: Mapping[uuid.UUID, TenantView] = dataclasses.field(default_factory=dict)
    groups: Mapping[uuid.UUID, GroupView] = dataclasses.field(default_factory=dict)
