"""What a person decides about a device. Platform admins only.

The node is locked before its device, as everywhere; replicas leave as after a fault, each when its successor is ready.
"""

from collections.abc import Callable

from django.db import transaction

from fleet import faults, health, partitions
from fleet.changes import CAPACITY_CHANGED, Changes
from fleet.faults import Action, Repair, Verdict
from fleet.models import Device
from fleet.states import DEVICE, DeviceState
from kernel import errors, machine
from kernel.actors import Actor
from kernel.conflicts import retry_on_conflict
from ledger.record import record_move
from tenants import access


def quarantine(*, actor: Actor, device: Device, message: str = "") -> Device:
    """Let everything leave ``device``; it waits for :func:`return_to_service`."""
    said = message or f"Taken out of service by {actor.label}."
    verdict = Verdict(Action.MOVE, "TakenOut", "was taken out of service", False, Repair.PERSON)
    return _decide(actor, device, lambda row, changes: _send(row, verdict, said, actor, changes))


def retire(*, actor: Actor, device: Device, message: str = "") -> Device:
    """Take ``device`` out of service for good; everything leaves it."""
    said = message or f"Retired by {actor.label}."
    verdict = Verdict(Action.RETIRE, "Retired", "was taken out of service for good", False, Repair.PERSON)
    return _decide(actor, device, lambda row, changes: _send(row, verdict, said, actor, changes))


def return_to_service(*, actor: Actor, device: Device, message: str = "") -> Device:
    """Take ``device`` back: a suspect one at once, one that was sent away after a probation.

    Raises:
        errors.StaleTransition: it is in service, or on its way back.
    """
    said = message or f"Taken back by {actor.label}."
    return _decide(actor, device, lambda row, changes: _return(row, said, actor, changes))


def _send(row: Device, verdict: Verdict, said: str, actor: Actor, changes: Changes) -> None:
    wanted = DeviceState.RETIRED if verdict.action is Action.RETIRE else DeviceState.QUARANTINED
    if row.state == wanted and row.repair == Repair.PERSON:
        return  # already so
    if not DEVICE.allows(DeviceState(row.state), wanted) and row.state != wanted:
        raise errors.StaleTransition(f"{row.product} {row.uuid} is {row.state}; it cannot become {wanted.value}.")
    health.send_away(row, verdict, said, actor=actor, changes=changes)


def _return(row: Device, said: str, actor: Actor, changes: Changes) -> None:
    if row.state == DeviceState.SUSPECT:
        move = machine.move(row, DEVICE, DeviceState.HEALTHY, reason="Returned", message=said, fault_at=None)
        record_move(move, actor=actor, tenant_id=None, subject_label=row.uuid)
        changes.platform("devices")
        changes.wake(CAPACITY_CHANGED)
        return
    if row.state == DeviceState.HEALTHY:
        raise errors.StaleTransition(f"{row.product} {row.uuid} is in service already.")
    if row.state == DeviceState.RECOVERING:
        span = f"{faults.PROBATION.total_seconds() / 60:g} minutes"
        raise errors.StaleTransition(
            f"{row.product} {row.uuid} is on its way back: it is in service once it was quiet for {span}."
        )
    health.recover(row, "Returned", said, actor=actor, changes=changes)


@retry_on_conflict
def _decide(actor: Actor, device: Device, act: Callable[[Device, Changes], None]) -> Device:
    access.require_platform_admin(actor)
    with transaction.atomic():
        row = partitions.lock_device(device.id)
        changes = Changes()
        act(row, changes)
        changes.announce()
    return row
