"""Orders among tenants: counters, lifting, weights; and what they do to the service of tenants that flood."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.causal.blocks import BlockPool
from runtime.engine.causal.fairness import MAX_IDLE_TENANTS, Arrivals, LeastCounter, TenantOrder, VirtualTokenCounters
from runtime.engine.causal.scheduler import Scheduler
from runtime.engine.causal.sequences import SamplingParams, Sequence
from runtime.engine.causal.waiting import WaitingQueue
from tests.benchmarks.simulation import Arrival, SimulatedEngine

PROMPT, OUTPUT = 8, 8
COST = PROMPT + 2 * OUTPUT


def waiting(number: int, tenant: str, *, weight: float = 1.0, priority: int = 1) -> Sequence:
    return Sequence(
        id=number,
        arrival=number,
        tokens=[1] * PROMPT,
        max_total=PROMPT + OUTPUT,
        sampling=SamplingParams(),
        tenant=tenant,
        weight=weight,
        priority=priority,
    )


def test_the_smallest_counter_is_next_and_equal_ones_go_by_arrival() -> None:
    order = VirtualTokenCounters()
    queue = WaitingQueue(order)
    for number, tenant in enumerate("abab"):
        queue.push(waiting(number, tenant))
    order.charge("a", 10)
    turns = []
    while (head := queue.next()) is not None:
        queue.remove(head)
        turns.append(head.id)
        order.charge(head.tenant, 10)
    assert turns == [1, 0, 3, 2]


def test_idle_time_is_no_credit() -> None:
    order = VirtualTokenCounters()
    queue = WaitingQueue(order)
    queue.push(waiting(0, "busy"))
    order.charge("busy", 1000)
    queue.push(waiting(1, "late"))
    assert order.rank("late") == 1000
    order.charge("late", 5)
    assert queue.next() is not None
    assert queue.next().tenant == "busy"  # type: ignore[union-attr]


def test_who_has_something_running_but_nothing_waiting_is_lifted_too() -> None:
    order = VirtualTokenCounters()
    queue = WaitingQueue(order)
    first = waiting(0, "quick")
    queue.push(first)
    queue.remove(first)  # it runs now
    queue.push(waiting(1, "busy"))
    order.charge("busy", 500)
    queue.push(waiting(2, "quick"))
    assert order.rank("quick") == 500


def test_with_nobody_waiting_the_last_served_counts() -> None:
    order = VirtualTokenCounters()
    order.arrive("a", 1.0, ())
    order.charge("a", 300)
    order.served("a")
    order.arrive("b", 1.0, ())
    assert order.rank("b") == 300


def test_a_counter_is_never_lowered_by_lifting() -> None:
    order = VirtualTokenCounters()
    order.arrive("rich", 1.0, ())
    order.charge("rich", 900)
    order.arrive("poor", 1.0, ())
    order.arrive("rich", 1.0, ["poor"])
    assert order.rank("rich") == 900


def test_tenants_that_are_gone_are_forgotten() -> None:
    order = VirtualTokenCounters()
    order.arrive("first", 1.0, ())
    order.charge("first", 50)
    for number in range(MAX_IDLE_TENANTS + 10):
        order.arrive(f"t{number}", 1.0, ())
    assert order.rank("first") == 0
    assert len(order._counters) <= MAX_IDLE_TENANTS
    order.charge("first", 7)  # what it still has running harms nothing
    assert order.rank("first") == 0


def test_classes_stand_above_turns() -> None:
    order = VirtualTokenCounters()
    queue = WaitingQueue(order)
    queue.push(waiting(0, "a", priority=0))
    queue.push(waiting(1, "a", priority=1))
    queue.push(waiting(2, "b", priority=2))
    order.charge("b", 10_000)
    assert [seq.id for seq in queue] == [2, 1, 0]
    assert queue.next({"b"}).id == 1  # type: ignore[union-attr]
    assert queue.oldest().id == 0  # type: ignore[union-attr]


def service(order: TenantOrder, loads: dict[str, tuple[int, float]], until: float) -> dict[str, float]:
    """Cost served by ``until`` for tenants who all send ``loads[tenant]`` = (requests, weight) at the beginning."""
    scheduler = Scheduler(
        BlockPool(400, 4, prefix_cache=False),
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_waiting=10_000,
        order=order,
    )
    engine = SimulatedEngine(scheduler, lambda _plan: 1.0)
    arrivals = [
        Arrival(0.0, tenant, PROMPT, OUTPUT, weight=weight)
        for tenant, (count, weight) in loads.items()
        for _ in range(count)
    ]
    done = dict.fromkeys(loads, 0.0)
    for item in engine.run(arrivals):
        if item.ended_at <= until:
            done[item.arrival.tenant] += COST
    return done


def test_a_flood_takes_nothing_from_a_tenant_that_wants_less() -> None:
    loads = {"flood": (200, 1.0), "modest": (40, 1.0)}
    fair, first_come = service(VirtualTokenCounters(), loads, 120), service(Arrivals(), loads, 120)
    assert abs(fair["flood"] - fair["modest"]) <= 4 * COST
    assert first_come["modest"] == 0


def test_weights_divide_what_there_is() -> None:
    done = service(VirtualTokenCounters(), {"one": (200, 1.0), "three": (200, 3.0)}, 400)
    assert 2.6 <= done["three"] / done["one"] <= 3.4


@settings(max_examples=25, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from("abcd"), st.integers(1, 30), st.integers(1, 12)),
        min_size=1,
        max_size=40,
    )
)
def test_any_order_serves_everything_in_the_same_total_work(requests: list[tuple[int, str, int, int]]) -> None:
    for order in (VirtualTokenCounters(), LeastCounter(), Arrivals()):
        scheduler = Scheduler(BlockPool(16, 4), max_num_seqs=3, max_num_batched_tokens=16, max_waiting=100, order=order)
        engine = SimulatedEngine(scheduler, lambda _plan: 1.0)
        served = engine.run([Arrival(float(at), tenant, p, o) for at, tenant, p, o in requests])
        assert all(item.ended_at >= item.first_token_at > item.arrival.at for item in served)
        assert engine.longest_stand_still == 0


@settings(max_examples=25, deadline=None)
@given(loads=st.lists(st.integers(30, 60), min_size=2, max_size=5), until=st.integers(20, 120))
def test_backlogged_tenants_never_drift_apart(loads: list[int], until: int) -> None:
    """The paper's bound: 2 × max(input cost, output cost × tokens that fit at once), whatever the number of tenants."""
    done = service(VirtualTokenCounters(), {f"t{n}": (count, 1.0) for n, count in enumerate(loads)}, until)
    bound = 2 * max(PROMPT, 2 * 4 * (PROMPT + OUTPUT))
    assert max(done.values()) - min(done.values()) <= bound + COST
