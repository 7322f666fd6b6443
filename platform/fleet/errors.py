"""Errors of this room."""

from kernel import errors


class JoinRefused(errors.Unauthenticated):
    """The join token is unknown, used, expired, or of another kind. ``code`` says which for used ones."""

    code = "join_refused"
    title = "Join token refused"


class MachineUnknown(errors.Unauthenticated):
    code = "machine_unknown"
    title = "Unknown credential"


class MachineRemoved(errors.Gone):
    code = "machine_removed"
    title = "Machine was removed"


class NodeHoldsReplicas(errors.Conflict):
    code = "node_holds_replicas"
    title = "Node still runs replicas"


class DeviceElsewhere(errors.Conflict):
    """A UUID that another node reports and still has partitions of."""

    code = "device_elsewhere"
    title = "Device belongs to another node"


class LayoutImpossible(errors.InvalidInput):
    code = "layout_impossible"
    title = "Layout is not possible"


class LayoutInUse(errors.Conflict):
    code = "layout_in_use"
    title = "The GPU is in use"


class CapacityGone(errors.Conflict):
    """What the plan wanted was taken or changed in between: plan again."""

    code = "capacity_gone"
    title = "Capacity was taken"
