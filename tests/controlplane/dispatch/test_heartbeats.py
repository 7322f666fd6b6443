"""Reports that wait together: which are heartbeats, what those write, and what becomes of the others."""

import threading

import msgspec
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from dispatch.api import heartbeats as door
from dispatch.reports import UNKILLABLE
from fleet import care, heartbeats, pacing
from fleet.models import Device, Node
from kernel import clock, scope
from runtime.wire import codec
from runtime.wire.devices import HealthCode, HealthFact
from runtime.wire.reports import Phase
from scheduling import cycle as scheduling
from serving import services
from serving.models import Replica
from serving.observing import MEASURE_EVERY
from serving.reconcile import cycle as reconcile
from telemetry import series
from telemetry.models import Sample
from tests.build import catalog
from tests.build.controlplane import actor_for, make_tenant, make_user, owner_of
from tests.build.machines import FakeAgent

pytestmark = pytest.mark.django_db


def machines(count, devices=1):
    """Agents whose first report has left nothing to do."""
    made = [FakeAgent() for _ in range(count)]
    for agent in made:
        agent.devices = [FakeAgent.device() for _ in range(devices)]
        agent.join()
        agent.report()
    return made


def heard(*agents, **changes):
    """Which of the agents' next reports are answered together."""
    calls = [door.Call(f"Bearer {agent.credential}", codec.encode(agent.draft(**changes))) for agent in agents]
    return [reply is not None for reply in door.answer(calls)]


def later(seconds):
    return clock.frozen(clock.now() + seconds)


def test_many_heartbeats_cost_as_much_as_one():
    agents = machines(4, devices=8)
    pacing.current()  # counts the nodes once in a while
    counted = []
    for some in (agents[:1], agents):
        with CaptureQueriesContext(connection) as seen:
            assert all(heard(*some))
        counted.append(len(seen))
    assert counted == [6, 6], "a transaction (two), nodes locked, replicas, nodes written, generations"


def test_a_heartbeat_renews_the_lease_and_says_how_far_the_node_is():
    (agent,) = machines(1)
    before = Node.objects.get()
    with later(heartbeats.DETAILS_EVERY / 2):
        assert heard(agent, applied_generation=7) == [True]
        node = Node.objects.get()
        assert node.lease_expires_at == clock.now() + pacing.current().lease
    assert (node.sequence, node.applied_generation) == (before.sequence + 1, 7)
    assert (node.details_at, node.looked_at) == (before.details_at, before.looked_at)


def test_what_drifts_is_written_now_and_then_and_the_whole_is_looked_at_less_often():
    agents = machines(2, devices=3)
    for agent, celsius in zip(agents, (40.0, 50.0), strict=True):
        agent.devices = [msgspec.structs.replace(each, temperature_c=celsius) for each in agent.devices]
    assert all(heard(*agents))
    assert set(Device.objects.values_list("temperature_c", flat=True)) == {None}
    with later(heartbeats.DETAILS_EVERY):
        assert all(heard(*agents))
    for agent, celsius in zip(agents, (40.0, 50.0), strict=True):
        assert set(Device.objects.filter(node_id=agent.id).values_list("temperature_c", flat=True)) == {celsius}
    with later(heartbeats.DETAILS_EVERY * heartbeats.LOOK_EVERY):
        assert not any(heard(*agents))
        agents[0].report()
        assert heard(*agents) == [True, False]


@pytest.mark.parametrize("news", ["device", "file", "health", "sick"])
def test_what_says_something_new_is_left_to_be_read_but_the_node_is_there(news):
    agent, other = machines(2)
    before, changes = Node.objects.get(id=agent.id), {}
    match news:
        case "device":
            agent.devices = [msgspec.structs.replace(agent.devices[0], problem="It is hot.")]
        case "file":
            changes = {"stored_sha256": ["a" * 64]}
        case "health":
            changes = {"health": [HealthFact(sequence=1, code=HealthCode.DRIVER, at=0.0, message="gone")]}
        case "sick":
            device = Device.objects.get(node_id=agent.id)
            care.quarantine(actor=actor_for(make_user(admin=True)), device=device)
    with later(heartbeats.DETAILS_EVERY / 2):
        assert heard(other, agent, **changes) == [not changes, False]
        node = Node.objects.get(id=agent.id)
        assert node.lease_expires_at == clock.now() + pacing.current().lease
    assert (node.sequence, node.settled) == (before.sequence, before.settled), "the report itself is still to be read"


def test_what_is_old_of_another_agent_or_of_nobody_renews_nothing():
    (agent,) = machines(1)
    before = Node.objects.get()
    with later(heartbeats.DETAILS_EVERY / 2):
        assert heard(agent, sequence=before.sequence) == [False]
        assert heard(agent, agent_id="another") == [False]
        strangers = [door.Call("Bearer mpn_nobody", codec.encode(agent.draft())), door.Call("", b"{")]
        assert door.answer(strangers) == [None, None]
        assert Node.objects.get().lease_expires_at == before.lease_expires_at
    Node.objects.update(state="lost", returns_to="ready")
    assert heard(agent) == [False]
    assert Node.objects.get().state == "lost", "coming back is more than a heartbeat"


def test_of_two_reports_of_one_agent_the_newer_counts():
    (agent,) = machines(1)
    newer = Node.objects.get().sequence + 2
    assert heard(agent, agent, sequence=newer) == [True, False]
    assert Node.objects.get().sequence == newer


def serving_machines(count):
    """Agents that run a ready replica each, which has been measured."""
    agents = machines(count)
    tenant = make_tenant("acme")
    version = catalog.checked_version(tenant)
    services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name="chat", model=version.model.name,
        version=version.number, config={"isolation": "exclusive"}, replicas=count,
    )  # fmt: skip
    reconcile.run()
    assert scheduling.run() == count
    for agent in agents:
        agent.obey()
        agent.report()
        agent.report()
    return agents


def replica_of(agent):
    with scope.all_tenants():
        return Replica.objects.get(node_id=agent.id)


def busy(agent, waiting):
    """The agent's replica, with as many requests in its queue."""
    (known,) = agent.replicas.values()
    agent.change(
        known.replica_id, Phase.READY, stats=msgspec.structs.replace(known.stats, num_requests_waiting=waiting)
    )


def test_replicas_that_do_what_they_did_are_heard_together_and_their_numbers_are_written_now_and_then():
    agents = serving_machines(3)
    for agent in agents:
        busy(agent, 5)
    assert all(heard(*agents))
    assert [replica_of(agent).stats["num_requests_waiting"] for agent in agents] == [0, 0, 0]
    with later(MEASURE_EVERY):
        assert all(heard(*agents))
        for agent in agents:
            row = replica_of(agent)
            assert (row.stats["num_requests_waiting"], row.observed_at) == (5, clock.now())
    with later(series.INTERVAL + MEASURE_EVERY):
        agents[0].report()
        with CaptureQueriesContext(connection) as seen:
            assert all(heard(*agents))
        assert len([query for query in seen if "serving_replica" in query["sql"]]) == 3, (
            "nodes with replicas beside, replicas, numbers"
        )
        assert Sample.objects.filter(at=series.interval_of(clock.now())).count() == 3


@pytest.mark.parametrize("news", ["failed", "gone", "moved", "log", "larger", "older", "unkillable"])
def test_a_replica_with_news_is_left_to_be_read(news):
    agent, other = serving_machines(2)
    (known,) = agent.replicas.values()
    row = replica_of(agent)
    match news:
        case "failed":
            agent.change(known.replica_id, Phase.FAILED, reason="Crashed", message="It ended.")
        case "gone":
            agent.replicas.clear()
        case "moved":
            agent.change(known.replica_id, Phase.READY, address="http://127.0.0.1:1")
        case "log":
            agent.change(known.replica_id, Phase.READY, log_tail=["a line"])
        case "larger":
            larger = msgspec.structs.replace(known.ledger, weights_bytes=known.ledger.weights_bytes + 1)
            agent.change(known.replica_id, Phase.READY, ledger=larger)
        case "older":
            agent.replicas[known.replica_id] = msgspec.structs.replace(known, generation=known.generation + 1)
        case "unkillable":
            agent.change(known.replica_id, Phase.READY, reason=UNKILLABLE)
    assert heard(agent, other) == [False, True]
    after = replica_of(agent)
    assert (after.state, after.address, after.log_tail) == (row.state, row.address, row.log_tail)


@pytest.mark.django_db(transaction=True)
def test_a_value_that_no_column_takes_spoils_no_other_report():
    agents = machines(3)
    host = msgspec.structs.replace(agents[1].draft().host, memory_available_bytes=1 << 63)
    calls = [door.Call(f"Bearer {agent.credential}", codec.encode(agent.draft())) for agent in agents]
    calls[1] = door.Call(calls[1].authorization, codec.encode(agents[1].draft(host=host)))
    assert [reply is not None for reply in door.answer(calls)] == [True, False, True]


@pytest.mark.django_db(transaction=True)
def test_a_node_that_somebody_else_holds_is_not_waited_for():
    agents = machines(2)
    held, done = threading.Event(), threading.Event()

    def hold():
        with transaction.atomic():
            Node.objects.select_for_update().get(id=agents[0].id)
            held.set()
            done.wait(20)
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(20)
    try:
        assert heard(*agents) == [False, True]
    finally:
        done.set()
        holder.join()
