"""Requests held back: order, bounds, shedding, deadlines, leaving; and the limit that keeps an SLO."""

import asyncio
from pathlib import Path

import pytest

from runtime.base.clock import FakeClock
from runtime.gateway import credits
from runtime.gateway.adaptive import FIRST_LIMIT, MOST, AdaptiveLimit
from runtime.gateway.asks import NOTHING, Ask, Outcome, Slot
from runtime.gateway.holding import RANKS, Line, Waiter
from runtime.gateway.metrics import Metrics
from runtime.gateway.refusals import Reason, Refusal
from runtime.gateway.settings import Settings
from runtime.gateway.table import Snapshot
from runtime.gateway.traffic import Traffic
from runtime.wire.inference import HEADER_CREDITS, PRIORITIES
from runtime.wire.routes import Slo, Variant
from tests.build.gateway_peers import a_replica, a_table, a_variant, an_endpoint


def waiter(tenant="acme", priority="default", **changes) -> Waiter:
    given = {"rank": RANKS[priority], "weight": 1.0, "cost": 10.0, "since": 0.0, **changes}
    return Waiter(tenant, **given)


class TestLine:
    def drain(self, line: Line, count: int) -> list[str]:
        served = []
        for _ in range(count):
            first = line.first()
            line.serve(first, 0.0)
            served.append(first.tenant_id)
        return served

    def test_tenants_within_a_class_are_served_by_their_weights_whoever_came_first(self):
        line = Line(most=1000, most_per_tenant=1000)
        for _ in range(100):
            line.push(waiter("heavy"))
        for _ in range(50):
            line.push(waiter("light", weight=2.0))
        served = self.drain(line, 60)
        assert served.count("light") == pytest.approx(40, abs=1)

    def test_shares_are_of_tokens_and_not_of_requests(self):
        line = Line(most=1000, most_per_tenant=1000)
        for _ in range(100):
            line.push(waiter("long", cost=100.0))
            line.push(waiter("short", cost=10.0))
        served = self.drain(line, 55)
        assert served.count("short") == pytest.approx(50, abs=1)

    def test_who_comes_late_has_no_claim_on_what_it_did_not_ask_for(self):
        line = Line(most=1000, most_per_tenant=1000)
        for _ in range(100):
            line.push(waiter("early"))
        self.drain(line, 50)
        for _ in range(20):
            line.push(waiter("late"))
        assert self.drain(line, 20).count("late") == pytest.approx(10, abs=1)

    def test_the_most_critical_class_goes_first(self):
        line = Line(most=100, most_per_tenant=100)
        for priority in PRIORITIES:
            line.push(waiter(priority, priority))
        assert self.drain(line, 3) == ["critical", "default", "sheddable"]

    def test_the_least_critical_leave_first_and_only_for_those_above_them(self):
        line = Line(most=10, most_per_tenant=100)
        low = [waiter(f"tenant-{number}", "sheddable") for number in range(5)]
        assert [line.push(one) for one in low] == [None] * 5
        extra = waiter("more", "sheddable")
        assert line.push(extra) is extra  # its class has its share of the room
        for _ in range(3):
            assert line.push(waiter("beta")) is None
        assert [line.push(waiter("beta")) is None for _ in range(2)] == [True, True]
        critical = [line.push(waiter("gamma", "critical")) for _ in range(6)]
        assert all(shed.rank == RANKS["sheddable"] for shed in critical[:5])
        assert critical[5].rank == RANKS["default"]
        assert len(line) == 10

    def test_a_tenant_fills_its_own_room_only(self):
        line = Line(most=100, most_per_tenant=3)
        for _ in range(3):
            assert line.push(waiter()) is None
        again = waiter()
        assert line.push(again) is again
        assert line.push(waiter("beta")) is None

    def test_the_wait_told_is_the_pace_of_the_class_times_those_ahead(self):
        line = Line(most=100, most_per_tenant=100)
        assert line.wait(RANKS["default"], 0.0) is None
        for _ in range(20):
            line.push(waiter())
        for number in range(1, 11):
            line.serve(line.first(), number * 0.5)
        assert line.wait(RANKS["default"], 5.0) == pytest.approx(11 * 0.5)
        assert line.wait(RANKS["critical"], 5.0) is None

    def test_a_class_that_gets_no_turn_knows_it(self):
        line = Line(most=100, most_per_tenant=100)
        line.push(waiter(priority="sheddable"))
        for number in range(1, 11):
            line.push(waiter(priority="critical", since=number))
            line.serve(line.first(), number + 0.1)
        assert line.wait(RANKS["sheddable"], 10.0) == pytest.approx(20.0)
        assert line.wait(RANKS["critical"], 10.2) == pytest.approx(0.1)

    def test_who_will_not_be_served_in_time_is_known_before_the_time_is_over(self):
        line = Line(most=100, most_per_tenant=100)
        waiters = [waiter(since=number / 100, until=30.0) for number in range(20)]
        for one in waiters:
            line.push(one)
        line.serve(line.first(), 2.0)  # one in two seconds: 14 more in the 28 that are left
        assert line.hopeless(2.0) == waiters[:14:-1]


class Stage:
    """Traffic of one endpoint on a clock moved by hand."""

    def __init__(self, *variants: Variant, grant: int = 2, slo: Slo = Slo(), **changes):
        self.clock = FakeClock(1000.0)
        self.generation = 0
        self.slo = slo
        settings = Settings(control_url="http://control", directory=Path("/nonexistent"), **changes)
        self.metrics = Metrics()
        self.traffic = Traffic(settings, self.clock, self.metrics, lambda: self.snapshot)
        self.change(*(variants or (a_variant(a_replica("http://engine")),)))
        self.grant(grant)

    def change(self, *variants: Variant) -> None:
        self.generation += 1
        endpoint = an_endpoint("chat", *variants, slo=self.slo)
        self.snapshot = Snapshot(a_table(endpoint, generation=self.generation))
        self.endpoint = endpoint

    def grant(self, count: int) -> None:
        found = self.traffic.pool.take(self.ask()) if self.endpoint.variants[0].replicas else None
        if isinstance(found, Slot):
            self.traffic.release(found, NOTHING)
        for state in self.traffic.pool.replicas.values():
            self.traffic.hear(state, credits.of_answer({HEADER_CREDITS: str(count)}))

    def ask(self, tenant="acme", **changes) -> Ask:
        now = self.clock.monotonic()
        given = {"tenant_id": tenant, "salt": "s", "since": now, "until": now + 3600, **changes}
        return Ask(self.endpoint, b'{"prompt":"hello"}', **given)

    async def call(self, **changes) -> asyncio.Task[Slot]:
        task = asyncio.create_task(self.traffic.place(self.ask(**changes)))
        await asyncio.sleep(0)
        return task


async def test_beyond_the_grant_requests_wait_and_go_as_slots_come_back():
    stage = Stage(grant=2)
    calls = [await stage.call() for _ in range(4)]
    assert [call.done() for call in calls] == [True, True, False, False]
    assert stage.traffic.waiting("deployment-1") == 2
    stage.traffic.release(calls[0].result(), NOTHING)
    await asyncio.sleep(0)
    assert [call.done() for call in calls] == [True, True, True, False]
    stage.grant(3)
    await asyncio.sleep(0)
    assert calls[3].done()
    assert stage.traffic.held == 0
    for call in calls[1:]:
        stage.traffic.release(call.result(), NOTHING)
    assert stage.traffic.outstanding("replica-1") == 0


async def test_at_the_limit_of_one_replica_the_other_takes_it_before_anything_waits():
    stage = Stage(a_variant(a_replica("http://a", 1), a_replica("http://b", 2)), grant=1)
    calls = [await stage.call() for _ in range(3)]
    assert [call.done() for call in calls] == [True, True, False]
    assert {call.result().choice.replica.replica_id for call in calls[:2]} == {"replica-1", "replica-2"}
    calls[2].cancel()


async def test_a_client_who_goes_leaves_the_line_at_once_and_loses_no_slot():
    stage = Stage(grant=1)
    first, second, third = [await stage.call() for _ in range(3)]
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert stage.traffic.held == 1
    # A slot that arrives at the very moment at which its taker leaves goes on to the next.
    stage.traffic.release(first.result(), NOTHING)
    third.cancel()
    await asyncio.gather(third, return_exceptions=True)
    assert stage.traffic.held == 0
    assert stage.traffic.outstanding("replica-1") == 0
    assert (await stage.call()).done()


async def test_a_slot_is_not_given_to_one_who_was_cancelled_a_moment_before():
    stage = Stage(grant=1)
    first, second, third = [await stage.call() for _ in range(3)]
    second.cancel()  # its place shows it at once; it hears of it itself at the loop's next turn
    stage.traffic.release(first.result(), NOTHING)
    await asyncio.gather(second, return_exceptions=True)
    assert second.cancelled()
    assert stage.traffic.held == 0
    stage.traffic.release(third.result(), NOTHING)
    assert stage.traffic.outstanding("replica-1") == 0


@pytest.mark.parametrize("change", ["deadline", "gone"])
async def test_what_is_told_to_one_who_was_cancelled_a_moment_before_harms_nobody(change):
    stage = Stage(grant=1)
    await stage.call()
    leaving, staying = [await stage.call(until=stage.clock.monotonic() + 5) for _ in range(2)]
    leaving.cancel()
    if change == "deadline":
        stage.clock.advance(6)
    else:
        stage.change(a_variant())
    stage.traffic.tick()
    await asyncio.gather(leaving, return_exceptions=True)
    with pytest.raises(Refusal):
        await staying
    assert stage.traffic.held == 0


async def test_a_deadline_ends_the_waiting_and_so_does_patience():
    stage = Stage(grant=1, hold_seconds=30.0)
    await stage.call()
    hurried = await stage.call(until=stage.clock.monotonic() + 5)
    patient = await stage.call()
    stage.clock.advance(6)
    stage.traffic.tick()
    with pytest.raises(Refusal) as late:
        await hurried
    assert (late.value.reason, late.value.status) == (Reason.DEADLINE, 504)
    stage.clock.advance(25)
    stage.traffic.tick()
    with pytest.raises(Refusal) as busy:
        await patient
    assert (busy.value.status, busy.value.retry_after) == (503, 5)
    assert stage.traffic.held == 0


async def test_requests_wait_for_a_replica_that_is_coming_and_go_when_it_is_there():
    cold = Variant(deployment_id="deployment-1", revision_id="r", version=1, weight=100, replicas=[], coming=1)
    stage = Stage(cold)
    calls = [await stage.call() for _ in range(3)]
    assert not any(call.done() for call in calls)
    stage.change(a_variant(a_replica("http://engine")))
    stage.traffic.tick()
    await asyncio.sleep(0)
    assert all(isinstance(call.result(), Slot) for call in calls)


async def test_when_nothing_is_coming_any_more_the_held_are_told():
    cold = Variant(deployment_id="deployment-1", revision_id="r", version=1, weight=100, replicas=[], coming=1)
    stage = Stage(cold)
    call = await stage.call()
    stage.change(a_variant())
    stage.traffic.tick()
    with pytest.raises(Refusal) as refused:
        await call
    assert refused.value.reason is Reason.NOT_READY


async def test_a_sleeping_replica_is_asked_to_wake_and_the_request_waits():
    asleep = a_replica("http://engine")
    asleep = type(asleep)(**{**{name: getattr(asleep, name) for name in asleep.__struct_fields__}, "asleep": True})
    stage = Stage(a_variant(asleep))
    call = await stage.call()
    assert not call.done()
    assert list(stage.traffic.to_wake) == ["replica-1"]
    stage.traffic.pool.replicas["replica-1"].awake = True
    stage.traffic.kick_all()
    await asyncio.sleep(0)
    assert call.done()


async def test_overload_sheds_the_least_critical_and_serves_the_most_critical():
    stage = Stage(grant=1, hold_total=10, hold_per_tenant=10)
    running = await stage.call()
    low = [await stage.call(priority="sheddable") for _ in range(5)]
    top = [await stage.call(priority="critical") for _ in range(8)]
    await asyncio.sleep(0)
    shed = [call for call in low if call.done()]
    assert len(shed) == 3
    for call in shed:
        assert call.exception().reason is Reason.OVERLOADED
        assert 1 <= call.exception().retry_after <= 60
    for call in top:
        stage.traffic.release(running.result(), NOTHING)
        await asyncio.sleep(0)
        running = call
        assert call.done()


async def test_who_could_not_be_served_in_time_is_told_at_once():
    stage = Stage(grant=1, hold_seconds=5.0)
    running = await stage.call()
    waiting = [await stage.call() for _ in range(20)]
    for call in waiting[:5]:
        stage.clock.advance(1.0)
        stage.traffic.release(running.result(), NOTHING)
        await asyncio.sleep(0)
        running = call
    late = await stage.call()
    assert late.exception().reason is Reason.OVERLOADED
    assert late.exception().retry_after == pytest.approx(16, abs=1)
    assert not (await stage.call(priority="critical")).done()  # who goes first has nobody to wait for
    for call in waiting[5:]:
        call.cancel()


async def test_the_held_of_all_deployments_together_are_bounded():
    cold = [
        Variant(deployment_id=f"deployment-{n}", revision_id="r", version=n, weight=100, replicas=[], coming=1)
        for n in (1, 2)
    ]
    stage = Stage(*cold, hold_total=6)
    calls = [await stage.call(draw=(number % 2) / 2) for number in range(10)]
    assert sum(not call.done() for call in calls) == 6
    assert all(call.exception().status == 503 for call in calls if call.done())
    for call in calls:
        call.cancel()


async def test_the_slo_limits_what_is_in_flight_and_the_rest_waits():
    stage = Stage(slo=Slo(ttft_p95_ms=100.0), grant=10_000)
    calls = [await stage.call() for _ in range(FIRST_LIMIT + 3)]
    assert sum(call.done() for call in calls) == FIRST_LIMIT
    (shown,) = stage.traffic.limits()
    assert (shown.limit, shown.in_flight, shown.queued) == (FIRST_LIMIT, FIRST_LIMIT, 3)
    for call in calls[:4]:
        stage.traffic.release(call.result(), Outcome(e2e_ms=50.0, ttft_ms=50.0))
    await asyncio.sleep(0)
    assert all(call.done() for call in calls)


class TestAdaptive:
    def settle(self, capacity: int, promise_ms: float = 100.0, seconds: int = 120) -> list[int]:
        """Limits over time before a server that needs 80 ms up to ``capacity`` requests, and then ever longer."""
        limit = AdaptiveLimit(Slo(ttft_p95_ms=promise_ms))
        seen = []
        for second in range(seconds):
            in_flight = limit.limit  # more is always offered
            took = 80.0 * max(1.0, in_flight / capacity)
            for _ in range(30):
                limit.observe(float(second) * 1.1, ttft_ms=took, itl_ms=None, e2e_ms=5000.0, in_flight=in_flight)
            seen.append(limit.limit)
        return seen

    @pytest.mark.parametrize("capacity", [4, 40, 400])
    def test_it_finds_the_working_point_from_above_and_below(self, capacity):
        late = self.settle(capacity)[-40:]
        assert capacity * 0.7 <= sum(late) / len(late) <= capacity * 1.3

    def test_without_load_it_does_not_grow(self):
        limit = AdaptiveLimit(Slo(e2e_p95_ms=1000.0))
        for number in range(1000):
            limit.observe(number * 0.1, ttft_ms=None, itl_ms=None, e2e_ms=10.0, in_flight=3)
        assert limit.limit == FIRST_LIMIT

    def test_without_a_promise_there_is_no_limit_of_its_own(self):
        limit = AdaptiveLimit(Slo(error_rate=0.01))
        for number in range(100):
            limit.observe(float(number), ttft_ms=9e9, itl_ms=9e9, e2e_ms=9e9, in_flight=9)
        assert limit.limit == MOST

    def test_it_never_closes_for_good(self):
        assert min(self.settle(1, promise_ms=1.0)) == 1
