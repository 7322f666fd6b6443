"""Which of the devices that can is best (pure): the smallest key wins, and no two keys are equal.

In this order: a GPU before a CPU; a node where the replica has not just failed; few replicas of the same deployment on
the node; a node that holds the weights; the tightest fit, so that big holes stay whole; name and UUID.
"""

import uuid
from collections.abc import Set

from scheduling.need import KINDS, Need
from scheduling.snapshot import DeviceView, NodeView

Key = tuple[int, int, int, int, int, str, str]


def key(
    device: DeviceView,
    node: NodeView,
    need: Need,
    *,
    deployment_id: uuid.UUID,
    files: Set[str],
    avoid: uuid.UUID | None,
) -> Key:
    """The sort key of a feasible device; ``avoid`` is the node where the replica failed last."""
    return (
        KINDS.index(device.kind),
        1 if node.id == avoid else 0,
        node.replicas.get(deployment_id, 0),
        0 if files and files <= node.stored else 1,
        device.free_bytes - need.memory_bytes,
        node.name,
        device.uuid,
    )
