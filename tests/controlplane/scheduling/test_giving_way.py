"""Preemption and reclaim on real rows: who goes, what they are told, and that it comes to rest."""

import datetime
import random

import pytest

from fleet.models import Partition
from kernel import actors, clock, errors, scope
from ledger.models import AuditEvent
from quotas.amount import Amount, Kind
from quotas.selectors import lines_of
from quotas.services import set_group, set_quota
from runtime.wire.devices import DeviceKind
from scheduling import cycle, giving_way, reading
from scheduling.fit import fit
from scheduling.plan import plan
from serving import services
from serving.models import Deployment, Priority, Replica
from serving.reconcile import cycle as serving
from tenants.roles import Role
from tests.build import catalog
from tests.build.controlplane import actor_for, make_member, make_tenant, owner_of
from tests.build.machines import GIB, FakeAgent

pytestmark = pytest.mark.django_db
START = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
#: Room for one replica of the small version and not for two.
ONE = GIB * 7 // 10


def agent(name="", **facts):
    made = FakeAgent(name, **facts)
    made.join()
    made.report()
    return made


def deploy(tenant, version, endpoint, priority=None, replicas=1):
    return services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name=endpoint, model=version.model.name,
        version=version.number, config={}, replicas=replicas, priority=priority,
    )  # fmt: skip


def quota(tenant, guaranteed=None, **facts):
    firm = {} if guaranteed is None else {Kind.HBM_BYTES: Amount.limit(guaranteed)}
    set_quota(actor=actors.system("tests"), tenant=tenant, changes={}, guaranteed=firm, **facts)


def of(deployment):
    with scope.all_tenants():
        return list(Replica.objects.filter(deployment=deployment).order_by("id"))


def states(deployment):
    return [row.state for row in of(deployment)]


@pytest.fixture
def acme():
    return make_tenant("acme")


def test_a_lower_priority_drains_for_a_higher_one_and_waits_with_the_reason(acme):
    version = catalog.checked_version(acme)
    node = agent(memory_bytes=ONE)
    low = deploy(acme, version, "batch", "low")
    cycle.run()
    node.cycle()
    high = deploy(acme, version, "chat", "high")
    cycle.run()
    gone, next_ = of(low)
    assert (gone.state, gone.reason) == ("draining", "Preempted")
    assert gone.message == "It gave its place to chat, which has a higher priority."
    assert (next_.state, next_.explanation["gave_way"]) == ("pending", gone.message)
    (asking,) = of(high)
    assert (asking.state, asking.reason) == ("pending", "MakingRoom")
    assert AuditEvent.objects.filter(action="replica.draining", reason="Preempted").count() == 1

    cycle.run()  # it is still draining: nobody else goes, and its own successor takes nothing
    assert [states(low), states(high)] == [["draining", "pending"], ["pending"]]
    node.cycle()
    cycle.run()
    assert [states(low), states(high)] == [["stopped", "pending"], ["assigned"]]
    waits = of(low)[1]
    assert waits.reason == "InsufficientDeviceMemory"
    assert waits.message.startswith("It gave its place to chat, which has a higher priority. ")
    serving.run()
    cycle.run()
    assert [states(low), states(high)] == [["stopped", "pending"], ["assigned"]]


def test_who_finds_a_place_elsewhere_serves_until_its_successor_does(acme):
    version = catalog.checked_version(acme)
    large = agent("large", memory_bytes=2 * GIB)
    low = deploy(acme, version, "batch", "low")
    cycle.run()
    large.cycle()
    small = agent("small", memory_bytes=ONE)
    high = services.deploy_version(
        actor=actor_for(owner_of(acme)), tenant=acme, endpoint_name="chat", model=version.model.name,
        version=version.number, config={"kv_cache_gib": 0.6}, replicas=1, priority="high",
    )  # fmt: skip
    cycle.run()
    first, next_ = of(low)
    assert (first.state, first.moving["reason"]) == ("ready", "Preempted")
    assert next_.state == "pending"
    assert of(high)[0].reason == "MakingRoom"
    assert AuditEvent.objects.filter(action="replica.moving").count() == 1
    cycle.run()
    serving.run()
    assert [states(low), states(high)] == [["ready", "assigned"], ["pending"]]
    assert str(of(low)[1].node_id) == small.id
    small.cycle()
    serving.run()
    assert states(low) == ["draining", "ready"]
    large.cycle()
    cycle.run()
    assert [states(low), states(high)] == [["stopped", "ready"], ["assigned"]]
    assert AuditEvent.objects.filter(action="replica.moving").count() == 1


def test_who_cannot_be_replaced_in_time_goes_all_the_same(acme):
    version = catalog.checked_version(acme)
    with clock.frozen(START):
        large = agent("large", memory_bytes=GIB)
        low = deploy(acme, version, "batch", "low")
        cycle.run()
        large.cycle()
        Replica._base_manager.update(moving_at=START, moving={"reason": "Preempted", "message": "Wanted."})
        serving.run()
        assert states(low) == ["ready", "pending"]
    with clock.frozen(START + datetime.timedelta(seconds=301)):
        serving.run()
        assert states(low) == ["draining", "pending"]
        assert of(low)[0].message == "Wanted."


def two_tenants(**terms):
    """``other`` holds the only place; ``acme`` asks for one."""
    acme, other = make_tenant("acme"), make_tenant("other")
    quota(other, **terms)
    node = agent(memory_bytes=ONE)
    borrower = deploy(other, catalog.checked_version(other), "theirs")
    cycle.run()
    node.cycle()
    entitled = deploy(acme, catalog.checked_version(acme), "mine")
    return node, borrower, entitled


ROOM = "Deployed all the same, others make room for it: lower priorities, and what is above a guarantee."


def dry_run(deployment):
    version = deployment.revision.version
    return fit(
        actor=actor_for(owner_of(deployment.tenant)), tenant=deployment.tenant, model=version.model.name,
        version=version.number, config={},
    )  # fmt: skip


def test_what_is_borrowed_is_claimed_back_without_naming_anybody():
    node, borrower, entitled = two_tenants(guaranteed=0)
    asked = dry_run(entitled)
    assert (asked.fits, asked.makes_room, asked.message.startswith(ROOM)) == (False, True, True)  # before it is, too
    assert "theirs" not in asked.message
    cycle.run()
    gone = of(borrower)[0]
    assert (gone.state, gone.reason, gone.message) == ("draining", "Reclaimed", giving_way.RECLAIMED_TEXT)
    told = str([(row.message, row.explanation) for row in of(borrower)])
    assert [word in told for word in ("mine", "acme")] == [False, False]
    assert "theirs" not in str([(row.message, row.explanation) for row in of(entitled)])
    node.cycle()
    for _ in range(3):
        serving.run()
        cycle.run()
        node.cycle()
    assert states(entitled) == ["ready"]
    assert states(borrower) == ["stopped", "pending"]  # and does not take it back
    ended = of(borrower)[0]
    assert (ended.reason, ended.message) == ("Reclaimed", giving_way.RECLAIMED_TEXT)  # its owner still reads why


def test_what_is_cleared_for_a_guarantee_goes_to_its_tenant_and_stays_there():
    """``acme`` asks besides for more than is guaranteed to it, and ``other`` finds its own more important than that."""
    acme, other = make_tenant("acme"), make_tenant("other")
    node = agent(memory_bytes=ONE)
    deploy(other, catalog.checked_version(other), "theirs", "high", replicas=2)
    cycle.run()
    node.cycle()
    quota(other, guaranteed=0)
    quota(acme, guaranteed=Partition.objects.get().memory_bytes)
    version = catalog.checked_version(acme)
    services.deploy_version(
        actor=actor_for(owner_of(acme)), tenant=acme, endpoint_name="more", model=version.model.name,
        version=version.number, config={"kv_cache_gib": 0.01}, replicas=1,
    )  # fmt: skip
    deploy(acme, version, "mine", "low")
    for _round in range(8):
        cycle.run()
        serving.run()
        node.cycle()
    with scope.all_tenants():
        (placed,) = Replica.objects.filter(state="ready")
    assert placed.tenant_id == acme.id
    assert AuditEvent.objects.filter(action="replica.draining", reason="Reclaimed").count() == 1


@pytest.mark.parametrize(("guaranteed", "gone"), [(0, 2), (3, 1)], ids=["both", "within the guarantee"])
def test_no_more_go_while_the_first_still_drain(guaranteed, gone):
    """Several on one node, over several rounds: each that asks waits for one of them."""
    acme, other = make_tenant("acme"), make_tenant("other")
    node = FakeAgent()
    node.devices = [node.device(memory_bytes=ONE) for _number in range(4)]
    node.join()
    node.report()
    borrower = deploy(other, catalog.checked_version(other), "theirs", replicas=4)
    cycle.run()
    node.cycle()
    held = Partition.objects.first().memory_bytes
    quota(other, guaranteed=guaranteed * held)
    entitled = deploy(acme, catalog.checked_version(acme), "mine", replicas=2)
    for _round in range(3):
        cycle.run()
        serving.run()
        assert states(borrower).count("draining") == gone
    for _round in range(4):
        node.cycle()
        serving.run()
        cycle.run()
    assert states(entitled).count("ready") == gone
    assert AuditEvent.objects.filter(action="replica.draining", reason="Reclaimed").count() == gone


def full_group():
    """``other`` has borrowed all of a group's memory on two of four devices; ``acme`` of the same group has nothing."""
    acme, other = make_tenant("acme"), make_tenant("other")
    node = FakeAgent()
    node.devices = [node.device(memory_bytes=ONE) for _number in range(4)]
    node.join()
    node.report()
    borrower = deploy(other, catalog.checked_version(other), "theirs", replicas=2)
    cycle.run()
    node.cycle()
    held = Partition.objects.first().memory_bytes
    set_group(actor=actors.system("tests"), name="labs", changes={Kind.HBM_BYTES: Amount.of(2 * held)})
    quota(other, guaranteed=0, group="labs")
    quota(acme, guaranteed=held, group="labs")
    return node, borrower, deploy(acme, catalog.checked_version(acme), "mine", replicas=2)


def test_what_is_guaranteed_in_a_full_group_is_claimed_back_from_who_borrowed_there():
    """One for the one that is guaranteed, though devices are free; the other of the two that ask is over its quota."""
    node, borrower, entitled = full_group()
    asked = dry_run(entitled)
    assert (asked.fits, asked.message.startswith(ROOM)) == (False, True)
    for _round in range(2):  # while it drains nobody else goes
        cycle.run()
        serving.run()
        assert sorted(states(borrower)) == ["draining", "pending", "ready"]
        first, second = of(entitled)
        assert (first.reason, second.reason) == ("MakingRoom", "QuotaExceeded")
        assert first.message.startswith("Others end to make room for it; it starts when they have. The quota on device")
    gone = next(row for row in of(borrower) if row.state == "draining")
    assert (gone.reason, gone.message) == ("Reclaimed", giving_way.RECLAIMED_TEXT)
    for _round in range(3):
        node.cycle()
        serving.run()
        cycle.run()
    assert sorted(states(entitled)) == ["pending", "ready"]
    assert sorted(states(borrower)) == ["pending", "ready", "stopped"]
    waits = [row for deployment in (borrower, entitled) for row in of(deployment) if row.state == "pending"]
    assert [row.reason for row in waits] == ["QuotaExceeded", "QuotaExceeded"]
    assert AuditEvent.objects.filter(action="replica.draining", reason="Reclaimed").count() == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda acme, other: quota(acme, guaranteed=0), id="nothing is guaranteed any more"),
        pytest.param(lambda acme, other: quota(other, group=""), id="the borrower has left the group"),
        pytest.param(lambda acme, other: quota(other, guaranteed=GIB), id="nothing is borrowed any more"),
    ],
)
def test_what_has_changed_in_a_group_since_the_plan_stops_it(change):
    _node, borrower, entitled = full_group()
    answers = plan(reading.take(holders_of=[entitled.tenant_id]), cycle.waiting())
    (answer,) = [each for each in answers if each.relief is not None]
    set_group(actor=actors.system("tests"), name="labs", changes={Kind.HBM_BYTES: Amount.of(2 * GIB)})
    change(entitled.tenant, borrower.tenant)
    assert giving_way.give_way(answer) == 0
    assert states(borrower) == ["ready", "ready"]


@pytest.mark.parametrize("terms", [{}, {"guaranteed": GIB}], ids=["all is guaranteed", "enough is guaranteed"])
def test_what_is_guaranteed_is_never_taken(terms):
    _node, borrower, entitled = two_tenants(**terms)
    cycle.run()
    assert states(borrower) == ["ready"]
    (asking,) = of(entitled)
    assert (asking.state, asking.reason) == ("pending", "InsufficientDeviceMemory")


def test_a_guarantee_that_rose_since_the_plan_stops_it():
    _node, borrower, entitled = two_tenants(guaranteed=0)
    snapshot = reading.take(holders_of=[entitled.tenant_id])
    (answer,) = plan(snapshot, cycle.waiting())
    assert len(answer.relief.victims) == 1
    quota(borrower.tenant, guaranteed=GIB)
    assert giving_way.give_way(answer) == 0
    assert states(borrower) == ["ready"]


def test_a_priority_that_changed_since_the_plan_stops_it(acme):
    version = catalog.checked_version(acme)
    node = agent(memory_bytes=ONE)
    low = deploy(acme, version, "batch", "low")
    cycle.run()
    node.cycle()
    deploy(acme, version, "chat")
    (answer,) = plan(reading.take(holders_of=[acme.id]), cycle.waiting())
    services.scale(actor=actor_for(owner_of(acme)), tenant=acme, deployment=low, priority="normal")
    assert AuditEvent.objects.get(action="deployment.prioritized").data == {"before": "low", "after": "normal"}
    assert giving_way.give_way(answer) == 0
    assert states(low) == ["ready"]


def test_high_is_for_admins_and_a_successor_keeps_the_priority(acme):
    version = catalog.checked_version(acme)
    developer = actor_for(make_member(acme, Role.DEVELOPER))
    common = {"tenant": acme, "endpoint_name": "chat", "model": version.model.name, "version": 1, "config": {}}
    with pytest.raises(errors.Forbidden):
        services.deploy_version(actor=developer, **common, replicas=0, priority="high")
    with pytest.raises(errors.InvalidInput):
        services.deploy_version(actor=developer, **common, replicas=0, priority="urgent")
    first = deploy(acme, version, "chat", "high", replicas=0)
    second = services.deploy_version(actor=developer, **common, replicas=0)
    assert (first.priority, second.priority) == ("high", "high")
    with pytest.raises(errors.Forbidden):
        services.scale(actor=developer, tenant=acme, deployment=deploy(acme, version, "x"), priority="high")


def test_gpus_are_counted_by_share_and_refused_beyond_the_quota(acme):
    version = catalog.checked_version(acme)
    node = agent(kind=DeviceKind.CUDA, memory_bytes=8 * GIB)
    set_quota(actor=actors.system("tests"), tenant=acme, changes={Kind.GPU_MILLIS: Amount.of(1000)})
    first = deploy(acme, version, "chat")
    cycle.run()
    node.cycle()
    held = Partition.objects.get()
    share = -(-1000 * held.memory_bytes // held.device.memory_bytes)
    line = next(line for line in lines_of(acme) if line.kind is Kind.GPU_MILLIS)
    assert (states(first), line.used.number) == (["ready"], share)
    set_quota(actor=actors.system("tests"), tenant=acme, changes={Kind.GPU_MILLIS: Amount.of(share)})
    second = deploy(acme, version, "more")
    cycle.run()
    (row,) = of(second)
    assert (row.state, row.reason) == ("pending", "QuotaExceeded")
    assert row.message.startswith(f"The quota on GPUs is {share / 1000:g}; {share / 1000:g} are held")


@pytest.mark.parametrize("seed", range(2))
def test_random_histories_never_touch_a_guarantee_and_come_to_rest(seed):
    draw, moment = random.Random(seed), START
    tenants = [make_tenant(f"t{n}") for n in range(2)]
    versions = [catalog.checked_version(tenant) for tenant in tenants]
    with clock.frozen(moment):
        nodes = [agent(f"n{n}", memory_bytes=ONE * 2) for n in range(2)]
        made = []
        for step in range(10):
            which = draw.randrange(2)
            if len(made) < 4 or draw.random() < 0.3:
                made.append(deploy(tenants[which], versions[which], f"e{step}", draw.choice(Priority.values)))
            elif draw.random() < 0.5:
                quota(tenants[which], guaranteed=draw.choice([-1, 0, ONE, 3 * ONE]), weight=draw.choice([0, 100, 300]))
            before = {tenant.id: reading.tenants_of([tenant.id])[tenant.id] for tenant in tenants}
            cycle.run()
            check_guarantees(before)
            for node in nodes:
                node.cycle()
            serving.run()
        for _ in range(8):
            live = set(Partition.objects.values_list("replica_id", flat=True))
            cycle.run()
            for node in nodes:
                node.cycle()
            serving.run()
        assert set(Partition.objects.values_list("replica_id", flat=True)) == live
        with scope.all_tenants():
            waiting = Replica.objects.filter(state="pending")
            assert all(row.reason and row.message for row in waiting)
            assert not Replica.objects.filter(state="draining").exists()
            assert Deployment.objects.count() == len(made)


def check_guarantees(before):
    """Whoever had to give way for another tenant keeps what was guaranteed."""
    with scope.all_tenants():
        rows = Replica.objects.filter(state="draining", reason="Reclaimed")
        leaving = {row.tenant_id: [each.id for each in rows if each.tenant_id == row.tenant_id] for row in rows}
    for tenant_id, replica_ids in leaving.items():
        going = sum(Partition.objects.filter(replica_id__in=replica_ids).values_list("memory_bytes", flat=True))
        assert before[tenant_id].borrowed(going)
