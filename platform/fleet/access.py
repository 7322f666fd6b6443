"""The only way to fetch a node for a person: the fleet is for platform admins."""

import uuid

from fleet.models import Device, Gateway, Node
from kernel import errors
from kernel.actors import Actor
from tenants import access


def access_node(actor: Actor, node_id: uuid.UUID) -> Node:
    """Return the node, or 404; 403 for anybody but platform admins."""
    access.require_platform_admin(actor)
    node = Node.objects.filter(id=node_id).first()
    if node is None:
        raise errors.NotFound(f"There is no node {node_id}.", code="node_not_found")
    return node


def access_device(actor: Actor, device_id: uuid.UUID) -> Device:
    """Return the device, or 404; 403 for anybody but platform admins."""
    access.require_platform_admin(actor)
    device = Device.objects.select_related("node").filter(id=device_id).first()
    if device is None:
        raise errors.NotFound(f"There is no device {device_id}.", code="device_not_found")
    return device


def access_gateway(actor: Actor, gateway_id: uuid.UUID) -> Gateway:
    """Return the gateway, or 404; 403 for anybody but platform admins."""
    access.require_platform_admin(actor)
    gateway = Gateway.objects.filter(id=gateway_id).first()
    if gateway is None:
        raise errors.NotFound(f"There is no gateway {gateway_id}.", code="gateway_not_found")
    return gateway
