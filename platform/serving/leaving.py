"""Replicas that have to leave where they are, by no fault of their tenant: the rule in SQL."""

from typing import Final

from django.db.models import Q

from fleet.models import Device, Partition
from fleet.states import SICK, NodeState
from serving.states import RUNNING_ON_NODE, ReplicaState

#: States of nodes that their replicas leave.
LEFT: Final = (NodeState.LOST, NodeState.DRAINING, NodeState.DRAINED, NodeState.REMOVED)
#: Of a partition: what has it leaves. Sick devices are few and found by an index; a join would read all that there are.
ON_SICK_DEVICE: Final = Q(device_id__in=Device.objects.filter(state__in=SICK).order_by().values("id")) | Q(
    device_id__in=Device.objects.filter(parent__state__in=SICK).order_by().values("id")
)


def condition(replica: str = "") -> Q:
    """Of a replica, or of what reaches it by ``replica`` (``"replicas__"``): it leaves a node, a device, its place."""
    running = Q(**{f"{replica}state__in": [*RUNNING_ON_NODE, ReplicaState.DRAINING, ReplicaState.UNREACHABLE]})
    return (
        Q(**{f"{replica}node__state__in": LEFT})
        | Q(**{f"{replica}members__node__state__in": LEFT, f"{replica}members__gone": False})
        | Q(**{f"{replica}moving_at__isnull": False}) & running
        | Q(**{f"{replica}id__in": Partition.objects.filter(ON_SICK_DEVICE).values("replica_id")}) & running
    )
