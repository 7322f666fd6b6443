"""Nodes, devices, needs and asks for the planner, in few words."""

import uuid

from scheduling.answers import Ask
from scheduling.need import Need
from scheduling.snapshot import DeviceView, GroupView, HolderView, Holding, NodeView, Snapshot, TenantView

GIB = 1024**3
DEPLOYMENT = uuid.UUID(int=77)


def node(number=1, **facts):
    """A ready node with 64 GiB and 8 CPUs."""
    values = {
        "id": uuid.UUID(int=number), "name": f"n{number}", "state": "ready", "memory_bytes": 64 * GIB,
        "memory_available_bytes": 60 * GIB, "held_host_bytes": 0, "millicpus": 8000, "held_millicpus": 0,
    }  # fmt: skip
    return NodeView(**{**values, **facts})


def device(number=1, on=1, **facts):
    """A healthy CPU of 8 GiB on a node."""
    values = {
        "id": uuid.UUID(int=1000 + number), "node_id": uuid.UUID(int=on), "uuid": f"d{number}", "kind": "cpu",
        "product": "Test CPU", "state": "healthy", "message": "", "present": True, "memory_bytes": 8 * GIB,
        "held_bytes": 0,
    }  # fmt: skip
    return DeviceView(**{**values, **facts})


def gpu(number=1, on=1, gib=80, **facts):
    """A healthy GPU."""
    return device(number, on, **{"kind": "cuda", "product": "H100", "memory_bytes": gib * GIB, **facts})


def need(kind="cpu", gib=2.0, host_gib=2.0, millicpus=500, **facts):
    """What one group takes."""
    return Need(
        kind=kind, memory_bytes=int(gib * GIB), host_bytes=int(host_gib * GIB), millicpus=millicpus, **facts
    )  # fmt: skip


def ask(number=1, **facts):
    """A replica that waits, by default for 2 GiB anywhere."""
    needs = {"cpu": need(), "cuda": need("cuda", 2, 1, 1000)}
    values = {"replica_id": uuid.UUID(int=5000 + number), "generation": 1, "deployment_id": DEPLOYMENT, "needs": needs}
    return Ask(**{**values, **facts})


def snapshot(nodes, devices, holders=(), tenants=(), groups=()):
    """A fleet at one moment."""
    known = {t.id: t for t in tenants}
    return Snapshot({n.id: n for n in nodes}, tuple(devices), tuple(holders), known, {g.id: g for g in groups})


def group(number, tenants, **facts):
    """A group of the tenants that name it, with what they hold together."""
    mine = [each for each in tenants if each.group == uuid.UUID(int=number)]
    held = {name: sum(getattr(each, name) for each in mine) for name in ("held_bytes", "held_millis")}
    ending = {f"ending_{kind}": sum(getattr(each, f"passing_{kind}") for each in mine) for kind in ("bytes", "millis")}
    return GroupView(id=uuid.UUID(int=number), **{**held, **ending, **facts})


def tenant(number, guaranteed_gib, limit_gib, held_gib, **facts):
    """Quota of a tenant; -1 GiB is unlimited."""
    sizes = [-1 if gib == -1 else gib * GIB for gib in (guaranteed_gib, limit_gib)]
    return TenantView(
        id=uuid.UUID(int=number), guaranteed_bytes=sizes[0], limit_bytes=sizes[1], held_bytes=held_gib * GIB,
        **facts,
    )  # fmt: skip


def holder(number, on, gib, *, tenant_number=1, priority=0, **facts):
    """A placed replica with ``gib`` of the device numbered ``on``."""
    holding = Holding(device_id=uuid.UUID(int=1000 + on), memory_bytes=gib * GIB, host_bytes=GIB, millicpus=500)
    values = {
        "replica_id": uuid.UUID(int=9000 + number), "deployment_id": uuid.UUID(int=88),
        "tenant_id": uuid.UUID(int=tenant_number), "label": f"r{number}", "priority": priority,
        "holdings": (holding,),
    }  # fmt: skip
    return HolderView(**{**values, **facts})
