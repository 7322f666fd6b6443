"""Who gives way when KV blocks or slots are short. Pure; no torch.

The lowest priority class first, then the tenant that holds the most blocks for its weight, then the newest. A
sequence that has given way ``MAX_PREEMPTIONS`` times never does again.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from runtime.engine.causal.fairness import TenantOrder
from runtime.engine.causal.sequences import Sequence

MAX_PREEMPTIONS: Final = 5


def choose(candidates: Iterable[Sequence], held: Mapping[str, int], order: TenantOrder) -> Sequence | None:
    """The one of ``candidates`` that gives way, ``None`` when none may. ``held`` is blocks by tenant."""

    def key(sequence: Sequence) -> tuple[int, float, int]:
        share = held.get(sequence.tenant, 0) / order.weight(sequence.tenant)
        return (-sequence.priority, share, sequence.arrival)

    return max((seq for seq in candidates if seq.preemptions < MAX_PREEMPTIONS), key=key, default=None)
