"""Devices and nodes as they are once something is placed there or gone (pure)."""

import dataclasses
from collections.abc import Iterable

from scheduling.need import Need, is_owned, wall
from scheduling.snapshot import DeviceView, Holding, NodeView


def device_with(device: DeviceView, need: Need) -> DeviceView:
    """``device`` with one rank of ``need`` more."""
    owned = is_owned(need, device)
    return dataclasses.replace(
        device,
        held_bytes=device.held_bytes + need.memory_bytes,
        held_millis=device.held_millis + need.millis,
        exclusive=device.exclusive or owned,
        shared=device.shared or not owned,
        shared_as=device.shared_as if owned else wall(need, device),
        sharers=device.sharers + 1,
    )


def device_without(device: DeviceView, holding: Holding) -> DeviceView:
    """``device`` without what one rank has of it."""
    left = device.held_bytes - holding.memory_bytes
    return dataclasses.replace(
        device,
        held_bytes=left,
        held_millis=device.held_millis - holding.millis,
        exclusive=device.exclusive and not holding.exclusive,
        shared=device.shared and left > 0,
        shared_as=device.shared_as if left > 0 else "",
        sharers=max(device.sharers - 1, 0),
    )


def node_with(node: NodeView, need: Need) -> NodeView:
    """``node`` with one group of ``need`` more."""
    return dataclasses.replace(
        node,
        held_host_bytes=node.held_host_bytes + need.host_bytes,
        held_millicpus=node.held_millicpus + need.millicpus,
        memory_available_bytes=node.memory_available_bytes - need.host_bytes,
    )


def node_without(node: NodeView, holdings: Iterable[Holding], sign: int = -1) -> NodeView:
    """``node`` without these, or (``sign`` 1) with them again. Host memory comes back as far as it was in use."""
    these = tuple(holdings)
    return dataclasses.replace(
        node,
        held_host_bytes=node.held_host_bytes + sign * sum(each.host_bytes for each in these),
        held_millicpus=node.held_millicpus + sign * sum(each.millicpus for each in these),
        memory_available_bytes=node.memory_available_bytes - sign * sum(each.host_used_bytes for each in these),
    )
