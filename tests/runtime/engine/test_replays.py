"""The replays behind the benchmarks, on traces small enough to check by hand."""

import gzip
import json
import statistics
from pathlib import Path

import pytest

from runtime.engine.causal.fairness import Arrivals, LeastCounter, VirtualTokenCounters
from runtime.engine.causal.scheduler import MAX_PREEMPTIONS, StepPlan, Work
from runtime.engine.causal.sequences import SamplingParams, Sequence
from tests.benchmarks import fairness, preemption, prefix_cache, vtc_trace
from tests.benchmarks.vtc_trace import CostModel, Response

COSTS = CostModel(0.03, 0.0002, 0.02, 0.0005, 0.000002)
SLOW = CostModel(1.0, 0.002, 0.4, 0.02, 0.0)


def response(tenant: str, asked: float, first: float, ended: float, prompt: int = 100, output: int = 100) -> Response:
    return Response(tenant, prompt, output, asked, first, ended)


def crowd() -> list[Response]:
    """One client floods for ten minutes, three others ask now and then."""
    rows = [response("flood", n * 2.0, 0.0, 0.0, 60, 60) for n in range(300)]
    for number, name in enumerate(("a", "b", "c")):
        rows += [response(name, 5.0 + number + n * 10.0, 0.0, 0.0, 60, 60) for n in range(59)]
    return sorted(rows, key=lambda row: row.asked)


def test_the_measure_is_zero_when_everybody_gets_what_they_ask_for() -> None:
    rows = [response(name, n * 30.0, n * 30.0, n * 30.0 + 30.0) for n in range(21) for name in ("a", "b")]
    assert max(vtc_trace.differences(rows)) == pytest.approx(0.0, abs=1e-9)


def test_the_measure_counts_what_is_missing_to_the_best_served() -> None:
    served = [response("a", float(n), float(n), n + 1.0) for n in range(600)]
    starved = [response("b", float(n), 10_000.0, 10_001.0) for n in range(600)]
    found = vtc_trace.differences(served + starved)
    assert found[5] == pytest.approx(300.0, rel=0.05)  # one request of cost 300 a second, none of it served


def test_counters_are_fairer_than_arrival_at_the_same_throughput() -> None:
    results = {}
    for order in (VirtualTokenCounters(), LeastCounter(), Arrivals()):
        rows, seconds, _ = fairness.play(crowd(), order, SLOW)
        results[type(order)] = (statistics.mean(vtc_trace.differences(rows)), vtc_trace.throughput(rows, seconds))
    ours, first_come = results[VirtualTokenCounters], results[Arrivals]
    assert ours[0] < 0.6 * first_come[0]
    assert ours[1] == pytest.approx(first_come[1], rel=0.02)


def test_the_cost_profile_is_fitted_back(tmp_path: Path) -> None:
    profile = {
        str(i): {
            str(o): [
                b := 10_000 // (i + o),
                (0.03 + 0.0002 * b * i) / b,
                (0.02 + 0.0005 * b + 0.000002 * b * (i + (o + 1) / 2)) * o / b,
            ]
            for o in (1, 64, 256)
        }
        for i in (8, 64, 512)
    }
    (tmp_path / vtc_trace.PROFILE).write_text(json.dumps(profile))
    fitted = vtc_trace.fit(tmp_path)
    for name in ("prefill_fixed", "prefill_token", "decode_fixed", "decode_row", "decode_context"):
        assert getattr(fitted, name) == pytest.approx(getattr(COSTS, name), rel=1e-6)


def test_a_mixed_step_reads_the_weights_once() -> None:
    def work(tokens: int, start: int) -> Work:
        sequence = Sequence(id=0, arrival=0, tokens=[0] * 500, max_total=501, sampling=SamplingParams())
        return Work(sequence, start, tokens, samples=True, blocks=[])

    decode = COSTS.seconds(StepPlan((work(1, 99),)))
    prefill = COSTS.seconds(StepPlan((work(100, 0),)))
    mixed = COSTS.seconds(StepPlan((work(1, 99), work(100, 0))))
    overhead = vtc_trace.OVERHEAD_SECONDS
    assert decode == pytest.approx(overhead + 0.02 + 0.0005 + 100 * 0.000002)
    assert mixed == pytest.approx(decode + prefill - overhead - 0.02)


def test_refused_requests_are_left_out_of_a_measured_run(tmp_path: Path) -> None:
    row = {"adapter_dir": "a", "prompt_len": 3, "output_len": 5, "req_time": 2.0}
    rows = [
        {**row, "first_token_latency": 0.5, "request_latency": 1.5},
        {**row, "first_token_latency": -1, "request_latency": -1},
    ]
    with gzip.open(tmp_path / "real_FCFS.json.gz", "wt") as file:
        json.dump({"result": {"total_time": 9.0, "responses": rows}}, file)
    assert vtc_trace.load(tmp_path, "FCFS") == ([Response("a", 3, 5, 2.0, 2.5, 3.5)], 9.0)


def test_prefixes_are_found_as_long_as_the_pool_holds_them() -> None:
    prompts = [[0, 1, 2], [0, 1, 3], [0, 4], [0, 1, 2]]
    assert prefix_cache.replay(prompts, 100) == pytest.approx((0 + 2 + 1 + 3) / 11)
    assert prefix_cache.replay(prompts, 1) == pytest.approx(3 / 11)  # only the common beginning


def test_a_trace_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / prefix_cache.FILE
    path.write_text("\n".join(json.dumps({"timestamp": at, "hash_ids": [at]}) for at in (3, 1, 2)))
    assert prefix_cache.read(path) == [[1], [2], [3]]
    assert prefix_cache.read(path, 2) == [[1], [3]]


def test_with_three_times_the_work_nobody_gives_way_too_often_and_something_always_moves() -> None:
    served, engine, scheduler = preemption.play(preemption.chats(200, seed=3), headroom=0)
    assert max(item.preemptions for item in served) <= MAX_PREEMPTIONS
    assert sum(item.preemptions for item in served) == scheduler.preemptions_total > 0
    assert engine.longest_stand_still == 0
    assert all(item.ended_at > item.arrival.at for item in served)
    assert scheduler.pool.used == 0
