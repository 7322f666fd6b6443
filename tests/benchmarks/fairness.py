"""Fairness among 27 real clients on one engine, simulated: three orders of the same scheduler on the same trace.

``make bench-fairness TRACES=FOLDER`` (or ``--traces``): the folder of the published runs, see ``vtc_trace``. First
come first served, least counter first and virtual token counters are policy objects of the product's scheduler; steps
take the time of the published cost profile. Measured rows of the published system stand beside them, as calibration.
Prints a table, and one JSON object as its last line. Differences are in cost (input + 2 × output tokens) per second.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Final

from runtime.engine.causal.blocks import BlockPool
from runtime.engine.causal.fairness import Arrivals, LeastCounter, TenantOrder, VirtualTokenCounters
from runtime.engine.causal.scheduler import Scheduler
from tests.benchmarks import vtc_trace
from tests.benchmarks.simulation import SimulatedEngine
from tests.benchmarks.vtc_trace import CostModel, Response

_ORDERS: Final[dict[str, type[TenantOrder]]] = {"FCFS": Arrivals, "LCF": LeastCounter, "VTC": VirtualTokenCounters}
_BLOCK_TOKENS: Final = 16
_HEAD: Final = (
    f"{'':<22}{'max':>8}{'average':>9}{'variance':>10}{'tok/s':>8}{'small TTFT':>12}{'p99':>8}{'preempted':>11}"
)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, default=os.environ.get("TRACES"), help="folder of the published runs")
    options = parser.parse_args()
    folder = options.traces
    if not folder or not (folder := vtc_trace.folder_of(Path(folder))).joinpath(vtc_trace.PROFILE).is_file():
        sys.exit("Give the folder of the published runs: make bench-fairness TRACES=FOLDER.")
    measured = {name: vtc_trace.load(folder, name) for name in _ORDERS}
    costs = vtc_trace.fit(folder)
    print(_HEAD)
    for name, (rows, seconds) in measured.items():
        _print_row(f"{name} measured", rows, seconds, 0)
    results = {}
    for name, order in _ORDERS.items():
        rows, seconds, preempted = play(measured["FCFS"][0], order(), costs)
        _print_row(f"{name} simulated", rows, seconds, preempted)
        results[name] = (statistics.mean(vtc_trace.differences(rows)), vtc_trace.throughput(rows, seconds))
    ours, fcfs = results["VTC"], results["FCFS"]
    summary = {
        "simulated": True,
        "avg_difference": round(ours[0], 1),
        "fcfs_avg_difference": round(fcfs[0], 1),
        "lcf_avg_difference": round(results["LCF"][0], 1),
        "throughput_ratio": round(ours[1] / fcfs[1], 4),
        "difference_ratio": round(ours[0] / fcfs[0], 4),
    }
    print(json.dumps(summary))


def play(trace: list[Response], order: TenantOrder, costs: CostModel) -> tuple[list[Response], float, int]:
    """Serve the requests of ``trace`` in ``order``: responses, seconds of the whole run, preemptions."""
    pool = BlockPool(vtc_trace.POOL_TOKENS // _BLOCK_TOKENS, _BLOCK_TOKENS, prefix_cache=False)
    scheduler = Scheduler(pool, max_num_seqs=128, max_num_batched_tokens=512, max_waiting=len(trace), order=order)
    engine = SimulatedEngine(scheduler, costs.seconds)
    served = engine.run(vtc_trace.arrivals(trace))
    return vtc_trace.responses(served), engine.now, scheduler.preemptions_total


def _print_row(name: str, rows: list[Response], seconds: float, preempted: int) -> None:
    found = vtc_trace.differences(rows)
    mean, p99 = vtc_trace.small_tenants_ttft(rows)
    print(
        f"{name:<22}{max(found):>8.1f}{statistics.mean(found):>9.1f}{statistics.pvariance(found):>10.0f}"
        f"{vtc_trace.throughput(rows, seconds):>8.0f}{mean:>11.1f}s{p99:>7.1f}s{preempted:>11}"
    )


if __name__ == "__main__":
    main()
