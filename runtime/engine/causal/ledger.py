"""The memory ledger: who holds the bytes this engine may use, and how many KV blocks that leaves. No torch.

``total`` is the replica's cap. The pool is made as large as fits below the ``critical`` watermark, so that a full
pool alone never passes it: only others on the device, or growth that was not planned, do.
"""

import dataclasses
from typing import Final, Protocol

from runtime.engine import errors
from runtime.engine.causal.blocks import BlockPool
from runtime.wire.memory import MemoryLedger, Watermarks

_MIB: Final = 1 << 20
# A model of which not even this many tokens fit is of no use to anybody.
_LEAST_USEFUL_TOKENS: Final = 64


class DeviceProbe(Protocol):
    """What can be observed about the device's memory."""

    def held_bytes(self) -> int:
        """Bytes this process holds on the device that cannot be dropped."""

    def free_bytes(self) -> int:
        """Bytes nobody uses on the device."""

    def unaccounted_bytes(self, accounted: int) -> int:
        """Bytes in use beyond the ``accounted`` ones: other users of the device, or unplanned growth."""

    def give_back(self) -> None:
        """Return to the device what allocators keep for later: loading leaves much of that."""

    def start_peak(self) -> None:
        """Begin to watch for the highest use."""

    def peak_bytes(self) -> int:
        """Highest :meth:`held_bytes` since :meth:`start_peak`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedCosts:
    """Bytes that are taken whatever runs. ``gather_share`` is workspace per byte of KV pool: attention reads the
    pages of one layer through a copy."""

    total_bytes: int
    context_bytes: int
    weights_bytes: int
    workspace_bytes: int
    gather_share: float
    block_bytes: int
    block_tokens: int

    @property
    def base_bytes(self) -> int:
        """Everything but the pool and its gather copies."""
        return self.context_bytes + self.weights_bytes + self.workspace_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolPlan:
    """How many blocks there will be, the longest sequence they serve, and the workspace including gather copies."""

    blocks: int
    max_model_len: int
    workspace_bytes: int


def plan_pool(
    costs: FixedCosts, *, marks: Watermarks, wanted_kv_bytes: int, wanted_len: int, max_positions: int
) -> PoolPlan:
    """Size the pool. ``wanted_kv_bytes`` and ``wanted_len`` of 0 mean "as much as fits".

    Raises:
        errors.StartError: it does not fit; the message has the numbers.
    """
    room = int(costs.total_bytes * marks.critical) - costs.base_bytes
    blocks = max(0, int(room / (1.0 + costs.gather_share))) // costs.block_bytes
    if wanted_kv_bytes:
        wanted = wanted_kv_bytes // costs.block_bytes
        if wanted > blocks:
            raise _does_not_fit(costs, marks, f"a KV cache of {_mib(wanted_kv_bytes)}")
        blocks = wanted
    if wanted_len > max_positions:
        raise errors.StartError(
            "ContextTooLong", f"max_model_len {wanted_len} is more than the {max_positions} positions of the model."
        )
    tokens = blocks * costs.block_tokens
    least = wanted_len or min(_LEAST_USEFUL_TOKENS, max_positions)
    if tokens < least:
        raise _does_not_fit(costs, marks, f"a KV cache for one sequence of {least} tokens (room for {tokens})")
    kv_bytes = blocks * costs.block_bytes
    return PoolPlan(
        blocks=blocks,
        max_model_len=wanted_len or min(max_positions, tokens),
        workspace_bytes=costs.workspace_bytes + int(kv_bytes * costs.gather_share),
    )


def longest_sequence(plan: PoolPlan, *, block_tokens: int, tenant_kv_share: float, wanted_len: int) -> int:
    """The longest sequence that ``plan`` serves when one tenant may hold only ``tenant_kv_share`` of the pool, tokens.

    Raises:
        errors.StartError: ``wanted_len`` (0: as long as fits) is more than that.
    """
    ceiling = max(1, int(plan.blocks * tenant_kv_share)) * block_tokens
    if wanted_len > ceiling:
        raise errors.StartError(
            "ContextTooLong",
            f"max_model_len {wanted_len} is more than the {ceiling} tokens that one tenant may hold with "
            f"tenant_kv_share {tenant_kv_share:g}. Raise the share or the KV cache, or shorten max_model_len.",
        )
    return min(plan.max_model_len, ceiling)


def idle_level(costs: FixedCosts, plan: PoolPlan) -> float:
    """The level with no block in use."""
    return (costs.context_bytes + costs.weights_bytes + plan.workspace_bytes) / costs.total_bytes


def _does_not_fit(costs: FixedCosts, marks: Watermarks, what: str) -> errors.StartError:
    return errors.StartError(
        "DoesNotFit",
        f"The memory of {_mib(costs.total_bytes)} (usable up to {marks.critical:.0%}) holds weights of "
        f"{_mib(costs.weights_bytes)}, context {_mib(costs.context_bytes)} and workspace "
        f"{_mib(costs.workspace_bytes)}, and then not {what}. Give it more memory, a shorter max_model_len, or smaller "
        f"max_num_batched_tokens.",
    )


def check_weights_fit(*, total_bytes: int, context_bytes: int, weights_bytes: int, marks: Watermarks) -> None:
    """Refuse before loading what could not be held.

    Raises:
        errors.StartError: weights and context alone pass the critical watermark.
    """
    if context_bytes + weights_bytes > total_bytes * marks.critical:
        raise errors.StartError(
            "DoesNotFit",
            f"The weights take {_mib(weights_bytes)} and the context {_mib(context_bytes)}; the memory is "
            f"{_mib(total_bytes)} (usable up to {marks.critical:.0%}). Give it more memory or a smaller dtype.",
        )


def _mib(count: int) -> str:
    return f"{count / _MIB:.0f} MiB"


class MemoryBook:
    """Keeps the ledger of a running engine."""

    def __init__(
        self, costs: FixedCosts, plan: PoolPlan, pool: BlockPool, probe: DeviceProbe, marks: Watermarks
    ) -> None:
        self._costs = costs
        self._plan = plan
        self._pool = pool
        self._probe = probe
        self._marks = marks
        self._other = 0
        self._asleep = False
        self._weights_away = False

    def observe_device(self) -> None:
        """Look at the device again; costs a system call, so once a second is enough."""
        accounted = self._costs.context_bytes + self._weights_bytes + self._workspace_bytes + self._kv_bytes
        self._other = self._probe.unaccounted_bytes(accounted)

    def rest(self, *, weights_away: bool) -> None:
        """The engine sleeps: no KV, no workspace, and no weights where they are ``weights_away`` from the device."""
        self._asleep, self._weights_away = True, weights_away

    def resume(self) -> None:
        """The engine is awake again."""
        self._asleep = self._weights_away = False

    @property
    def _weights_bytes(self) -> int:
        return 0 if self._weights_away else self._costs.weights_bytes

    @property
    def _workspace_bytes(self) -> int:
        return 0 if self._asleep else self._plan.workspace_bytes

    @property
    def _kv_bytes(self) -> int:
        return 0 if self._asleep else self._pool.total * self._costs.block_bytes

    def level(self) -> float:
        """The level as a fraction of the total, from the latest look at the device and the pool as it is now."""
        total = self._costs.total_bytes
        return (self._beside_kv() + self._pool.used * self._costs.block_bytes) / total if total else 0.0

    def blocks_that_fit(self) -> int:
        """How large the pool may be without passing ``critical`` when it is full; never negative."""
        room = int(self._marks.critical * self._costs.total_bytes) - self._beside_kv()
        return max(0, room // self._costs.block_bytes)

    def _beside_kv(self) -> int:
        """Bytes below the level line that are not KV."""
        return self._other + self._costs.context_bytes + self._weights_bytes + self._workspace_bytes

    def ledger(self) -> MemoryLedger:
        """The whole ledger."""
        return self._ledger(self._probe.free_bytes())

    def _ledger(self, device_free: int) -> MemoryLedger:
        pool, size = self._pool, self._costs.block_bytes
        return MemoryLedger(
            total_bytes=self._costs.total_bytes,
            other_bytes=self._other,
            context_bytes=self._costs.context_bytes,
            weights_bytes=self._weights_bytes,
            workspace_bytes=self._workspace_bytes,
            kv_total_bytes=self._kv_bytes,
            kv_used_bytes=pool.used * size,
            kv_cached_bytes=pool.cached * size,
            device_free_bytes=device_free,
            kv_block_tokens=pool.block_tokens,
            kv_blocks_total=pool.total,
            kv_blocks_used=pool.used,
            kv_blocks_cached=pool.cached,
            watermarks=self._marks,
        )
