"""What happened to devices, acted on: events are kept, the policy is asked, devices move; and time heals.

:func:`hear` runs in the transaction of a report, under the node's lock. :func:`heal` is the loop: quiet devices are
trusted again. Nobody has to write into the database for a repaired device to come back.
"""

import datetime
import itertools
import math
import uuid
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any, Final

from django.db import transaction
from django.db.models import Q

from fleet import faults
from fleet.changes import CAPACITY_CHANGED, DEVICES_SICK, Changes
from fleet.facts import HealthFacts
from fleet.faults import Action, Repair, Verdict
from fleet.models import Device, HealthEvent, Node
from fleet.states import DEVICE, DeviceState
from kernel import clock, errors, machine
from kernel.actors import Actor, system
from kernel.conflicts import retry_on_conflict
from ledger import hints, outbox
from ledger.record import record_move

ACTOR: Final = system("fleet.health")
#: The same thing of the same device within this time is one event that says how often.
FOLD: Final = datetime.timedelta(minutes=1)
#: The fact behind a process that survives being killed.
STUCK: Final = "engine_unkillable"
_DRAWN: Final = {DeviceState.HEALTHY, DeviceState.SUSPECT, DeviceState.RECOVERING}


def hear(
    node: Node,
    rows: Mapping[str, Device],
    heard: Sequence[HealthFacts],
    *,
    rebooted: datetime.datetime | None,
    actor: Actor,
    changes: Changes,
) -> None:
    """Act on the facts of a report that are new, in their order; see which repairs are done. The caller announces.

    ``rows`` are the node's devices by UUID, as the same report has left them. ``rebooted`` is when the node was last
    seen before its machine was started again, ``None`` when it was not: what is not surely older than the restart is
    taken as newer, since a device that is called repaired too early hurts.
    """
    new = sorted((fact for fact in heard if fact.sequence > node.health_sequence), key=lambda fact: fact.sequence)
    seen = rebooted.timestamp() if rebooted is not None else -math.inf
    before = list(itertools.takewhile(lambda fact: fact.at <= seen, new))
    for fact in before:
        _act(node, rows.get(fact.device_uuid), fact, actor, changes)
    if rebooted is not None:
        _see_repairs(rows, {}, rebooted=True, actor=actor, changes=changes)
    for fact in new[len(before) :]:
        _act(node, rows.get(fact.device_uuid), fact, actor, changes)
    over: dict[str, set[str]] = {}
    for fact in new:
        if not fact.active:
            over.setdefault(fact.device_uuid, set()).add(fact.code)
    _see_repairs(rows, over, rebooted=False, actor=actor, changes=changes)
    if new:
        Node.objects.filter(id=node.id).update(health_sequence=new[-1].sequence)
        node.health_sequence = new[-1].sequence
        changes.platform("devices")


def note_stuck(node: Node, replica_ids: Collection[uuid.UUID], *, actor: Actor, changes: Changes) -> None:
    """Send away the devices of replicas whose engines do not end even when killed; in the transaction of a report."""
    held = Q(partitions__replica_id__in=replica_ids) | Q(instances__partitions__replica_id__in=replica_ids)
    rows = Device.objects.filter(held, node=node, parent=None, state__in=_DRAWN)
    verdict = faults.judge(STUCK)
    for row in rows.order_by("uuid").distinct():
        message = f"An engine on it does not end even when killed: it {verdict.plain}."
        data = {"action": verdict.action.name.lower()}
        event = HealthEvent.objects.create(
            at=clock.now(), node=node, device=row, code=verdict.reason, message=message, data=data
        )
        if send_away(row, verdict, message, actor=actor, changes=changes):
            _note_sent(event)


def _see_repairs(
    rows: Mapping[str, Device], over: Mapping[str, Set[str]], *, rebooted: bool, actor: Actor, changes: Changes
) -> None:
    for name, row in rows.items():
        if row.state == DeviceState.QUARANTINED and _repaired(row, rebooted, over.get(name, frozenset())):
            recover(row, "Repaired", _repaired_words(), actor=actor, changes=changes)


#: Facts whose end proves that the device was reset.
_RESET_PROOFS: Final = frozenset({"returned", "recovery_action", "remap_pending"})


def _repaired(row: Device, rebooted: bool, over: Set[str]) -> bool:
    """Whether what the device waits for has been seen. ``over`` are the codes of what has just ended."""
    if not row.present or faults.standing(row.facts):
        return False
    match row.repair:
        case Repair.CONDITION:
            return rebooted or bool(over)
        case Repair.RESET:
            return rebooted or bool(over & _RESET_PROOFS)
        case Repair.REBOOT:
            return rebooted or "returned" in over
        case _:
            return False


def _repaired_words() -> str:
    return f"It answers again after a repair; nothing is placed on it for {_minutes(faults.PROBATION)} more."


def _act(node: Node, row: Device | None, fact: HealthFacts, actor: Actor, changes: Changes) -> None:
    recovery = str(row.facts.get("recovery_action", "")) if row is not None else ""
    reason = faults.reason_of(fact.code, fact.xid)
    verdict = faults.judge(
        fact.code,
        xid=fact.xid,
        active=fact.active,
        recovery_action=recovery,
        recent=_recent(row, reason) if row is not None else 0,
    )
    event = _note(node, row, fact, verdict)
    if row is None or verdict.action < Action.SUSPECT:
        return
    Device.objects.filter(id=row.id).update(fault_at=clock.now())
    row.fault_at = clock.now()
    message = _told(fact, verdict)
    if verdict.action is Action.SUSPECT:
        _suspect(row, verdict.reason, message, actor)
    elif send_away(row, verdict, message, actor=actor, changes=changes):
        _note_sent(event)


def _told(fact: HealthFacts, verdict: Verdict) -> str:
    """What its node said, as a sentence; the number of an Xid says little to people, so its meaning stands beside."""
    if fact.code == "xid" or not fact.message:
        return f"{fact.message or verdict.reason}: it {verdict.plain}."
    return f"{fact.message[:1].upper()}{fact.message[1:]}."


def _recent(row: Device, reason: str) -> int:
    """How often the same happened within the window; a folded event counts as often as it says."""
    rows = HealthEvent.objects.filter(device=row, code=reason, at__gt=clock.now() - faults.WINDOW)
    return sum(int(data.get("times", 1)) for data in rows.values_list("data", flat=True))


def _note_sent(event: HealthEvent) -> None:
    """The device left service by this event: what :func:`_tried_often` counts."""
    event.data = {**event.data, "sent": int(event.data.get("sent", 0)) + 1}
    event.save(update_fields=["data"])


def _note(node: Node, row: Device | None, fact: HealthFacts, verdict: Verdict) -> HealthEvent:
    """Keep the event; a flood of the same is one row a minute, with the strongest of what was decided."""
    now = clock.now()
    at = _moment(fact.at, now)
    code = verdict.reason if fact.active else f"{verdict.reason}Over"[:64]
    last = HealthEvent.objects.filter(node=node, device=row, code=code, at__gt=now - FOLD).first()
    if last is not None:
        before = Action[str(last.data.get("action", Action.IGNORE.name)).upper()]
        last.data = {
            **last.data, "times": int(last.data.get("times", 1)) + 1, "sequence": fact.sequence,
            "action": max(before, verdict.action).name.lower(),
        }  # fmt: skip
        last.save(update_fields=["data"])
        return last
    data: dict[str, Any] = {"sequence": fact.sequence, "action": verdict.action.name.lower(), "count": fact.count}
    if row is None and fact.device_uuid:
        data["uuid"] = fact.device_uuid[:96]
    if fact.gpu_instance_id is not None:
        data["gpu_instance_id"] = fact.gpu_instance_id
    return HealthEvent.objects.create(at=at, node=node, device=row, code=code, message=fact.message, data=data)


def _moment(at: float, now: datetime.datetime) -> datetime.datetime:
    """The node's clock, as far as it can be believed: a fact is neither of tomorrow nor of last week."""
    oldest, newest = (now - datetime.timedelta(days=1)).timestamp(), now.timestamp()
    if not math.isfinite(at):
        return now
    return datetime.datetime.fromtimestamp(min(max(at, oldest), newest), datetime.UTC)


def _suspect(row: Device, reason: str, message: str, actor: Actor) -> None:
    if row.state == DeviceState.HEALTHY:
        move = machine.move(row, DEVICE, DeviceState.SUSPECT, reason=reason, message=message)
        record_move(move, actor=actor, tenant_id=None, subject_label=row.uuid)
    elif row.state == DeviceState.SUSPECT:
        Device.objects.filter(id=row.id).update(reason=reason, message=message)
        row.reason, row.message = reason, message


def send_away(row: Device, verdict: Verdict, message: str, *, actor: Actor, changes: Changes) -> bool:
    """Quarantine or retire ``row`` and let its replicas leave; from the same transaction on no gateway sends to one
    whose device is dead. True when it was in service until now."""
    drawn = row.state in _DRAWN
    repair = Repair.PERSON if _tried_often(row, verdict.reason) else verdict.repair
    if repair is Repair.PERSON and verdict.repair is not Repair.PERSON:
        message += f" It was sent away for this {faults.TRIES} times: a person must decide."
    to = DeviceState.RETIRED if verdict.action is Action.RETIRE else DeviceState.QUARANTINED
    if row.state in _DRAWN or (row.state == DeviceState.QUARANTINED and to is DeviceState.RETIRED):
        dead = verdict.dead or row.dead
        move = machine.move(row, DEVICE, to, reason=verdict.reason, message=message, repair=repair.value, dead=dead)
        record_move(move, actor=actor, tenant_id=None, subject_label=row.uuid)
    elif row.state == DeviceState.QUARANTINED and _worse(verdict, repair, row):
        dead = verdict.dead or row.dead
        values = {"reason": verdict.reason, "message": message, "repair": repair.value, "dead": dead}
        Device.objects.filter(id=row.id).update(**values)
        for name, value in values.items():
            setattr(row, name, value)
    else:
        return False
    changes.wake(DEVICES_SICK)
    changes.platform("devices")
    if row.dead:
        changes.routes()
    return drawn


_LADDER: Final = (Repair.CONDITION, Repair.RESET, Repair.REBOOT, Repair.PERSON)


def _worse(verdict: Verdict, repair: Repair, row: Device) -> bool:
    known = _LADDER.index(Repair(row.repair)) if row.repair else -1
    return (verdict.dead and not row.dead) or _LADDER.index(repair) > known


def _tried_often(row: Device, reason: str) -> bool:
    """Whether the device was sent away for ``reason`` so often that another repair of the same kind is in vain."""
    if row.state not in (DeviceState.RECOVERING, DeviceState.HEALTHY, DeviceState.SUSPECT):
        return False
    rows = HealthEvent.objects.filter(device=row, code=reason, at__gt=clock.now() - faults.MEMORY, data__has_key="sent")
    return sum(int(data["sent"]) for data in rows.values_list("data", flat=True)) + 1 >= faults.TRIES


def recover(row: Device, reason: str, message: str, *, actor: Actor, changes: Changes) -> None:
    """Begin the probation of a device that was repaired, or that a person believes in."""
    if row.dead:
        changes.routes()
    changes.platform("devices")
    move = machine.move(
        row, DEVICE, DeviceState.RECOVERING, reason=reason, message=message, dead=False, repair="", fault_at=clock.now()
    )
    record_move(move, actor=actor, tenant_id=None, subject_label=row.uuid)


def heal() -> int:
    """Trust quiet devices again; return how many came back."""
    now = clock.now()
    suspects = Q(state=DeviceState.SUSPECT, fault_at__lte=now - faults.QUIET)
    recovering = Q(state=DeviceState.RECOVERING, fault_at__lte=now - faults.PROBATION)
    ids = list(Device.objects.filter(suspects | recovering, present=True).order_by("uuid").values_list("id", flat=True))
    return sum(_trust(device_id) for device_id in ids)


@retry_on_conflict
def _trust(device_id: Any) -> int:
    with transaction.atomic():
        row = Device.objects.select_for_update(no_key=True).filter(id=device_id).first()
        if row is None or row.reason in ("ProblemReported", "MemoryShrunk", "DeviceMissing"):
            return 0
        if row.state not in (DeviceState.SUSPECT, DeviceState.RECOVERING) or faults.standing(row.facts):
            return 0
        try:
            said = "No fault for a while."
            move = machine.move(row, DEVICE, DeviceState.HEALTHY, reason="Quiet", message=said, fault_at=None)
        except errors.StaleTransition:
            return 0
        record_move(move, actor=ACTOR, tenant_id=None, subject_label=row.uuid)
        outbox.emit(CAPACITY_CHANGED, {})
        hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": "devices"})
        return 1


def _minutes(span: datetime.timedelta) -> str:
    return f"{span.total_seconds() / 60:g} minutes"
