"""How often the judge is wrong: A/A runs that it fails, and regressions that it finds, over simulated rollouts.

Traffic is 95/5 at 20 requests a second; the judge looks every two seconds for ten minutes, as the advance loop does.
What judges is the judge of the platform, look by look; runs are shared out over the machine's cores.
"""

import argparse
import concurrent.futures
import functools
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from rollouts.judge.checks import Tolerance
from rollouts.judge.evidence import Evidence, empty
from rollouts.judge.verdict import Outcome, Question, judge

LOOKS: Final = 300
SECONDS_PER_LOOK: Final = 2
RATE: Final = 20
SHARE: Final = 0.05
SLO: Final = {"ttft_p95_ms": 700.0, "error_rate": 0.02}


class Side(NamedTuple):
    """How a side behaves: multiples of the usual durations, and the chance that a request fails."""

    errors: float = 0.005
    ttft: float = 1.0
    itl: float = 1.0
    tokens: float = 1.0


REGRESSIONS: Final = {
    "errors 0.5 % -> 3 %": Side(errors=0.03),
    "errors 0.5 % -> 10 %": Side(errors=0.10),
    "TTFT x 1.25": Side(ttft=1.25),
    "TTFT x 1.5": Side(ttft=1.5),
    "TTFT x 2": Side(ttft=2.0),
    "ITL x 1.5": Side(itl=1.5),
    "answers cut to a tenth": Side(tokens=0.1),
}


def run(seed: int, candidate: Side) -> tuple[Outcome, int]:
    """One rollout step; its verdict and how many seconds it took."""
    rng = np.random.default_rng(seed)
    old, new = empty(), empty()
    for look in range(1, LOOKS + 1):
        fresh = int(rng.binomial(RATE * SECONDS_PER_LOOK, SHARE))
        new = seen(rng, candidate, fresh, new)
        old = seen(rng, Side(), RATE * SECONDS_PER_LOOK - fresh, old)
        last = look == LOOKS
        question = Question(min_requests=50, held=last, overdue=last)
        verdict = judge(old, new, question, SLO, Tolerance())
        if verdict.outcome is Outcome.FAIL or last:
            return verdict.outcome, look * SECONDS_PER_LOOK
    raise AssertionError("the last look ends the run")


def seen(rng: np.random.Generator, side: Side, count: int, into: Evidence) -> Evidence:
    """``count`` requests of a side, counted into ``into``; those that fail have no durations."""
    failed = int(rng.binomial(count, side.errors))
    good = count - failed
    ttft = side.ttft * 250 * np.exp(rng.normal(0, 0.4, good))
    itl = side.itl * 25 * np.exp(rng.normal(0, 0.2, good))
    tokens = np.maximum(1, np.rint(side.tokens * 120 * np.exp(rng.normal(0, 0.7, good))))
    for histogram, values in (
        (into.ttft, ttft), (into.itl, itl), (into.e2e, ttft + itl * (tokens - 1)), (into.tokens, tokens)
    ):  # fmt: skip
        for value in values.tolist():
            histogram.add(value)
    return Evidence(into.requests + count, into.errors + failed, into.ttft, into.itl, into.e2e, into.tokens)


def outcomes(pool: concurrent.futures.Executor, seeds: range, side: Side) -> list[tuple[Outcome, int]]:
    """Verdict and seconds of each run."""
    return list(pool.map(functools.partial(run, candidate=side), seeds, chunksize=10))


def percent(outcomes: Sequence[Outcome], which: Outcome) -> float:
    """Share of ``which``, in percent."""
    return round(100 * sum(1 for outcome in outcomes if outcome is which) / len(outcomes), 2)


def main() -> None:
    """Print the table and, as the last line, one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--power-runs", type=int, default=100)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    began = time.monotonic()
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count() or 1, mp_context=context) as pool:
        same = [outcome for outcome, _ in outcomes(pool, range(options.runs), Side())]
        results = {
            name: outcomes(pool, range(10_000, 10_000 + options.power_runs), side) for name, side in REGRESSIONS.items()
        }
    figures: dict[str, object] = {
        "aa_runs": options.runs,
        "aa_false_rollbacks_percent": percent(same, Outcome.FAIL),
        "aa_inconclusive_percent": percent(same, Outcome.INCONCLUSIVE),
    }
    print(f"{'A/A, failed':32} {figures['aa_false_rollbacks_percent']:6} % of {options.runs}")
    print(f"{'A/A, not clear':32} {figures['aa_inconclusive_percent']:6} %")
    power: dict[str, dict[str, float]] = {}
    for name, ended in results.items():
        found = sorted(seconds for outcome, seconds in ended if outcome is Outcome.FAIL)
        said = [outcome for outcome, _ in ended]
        row = {"found_percent": percent(said, Outcome.FAIL), "paused_percent": percent(said, Outcome.INCONCLUSIVE)}
        if found:
            row["median_seconds"] = found[len(found) // 2]
        power[name] = row
        at = f"{row['median_seconds']} s" if found else "-"
        print(f"{name:32} {row['found_percent']:6} % rolled back (median {at}), {row['paused_percent']} % paused")
    figures["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps({**figures, "power": power}))


if __name__ == "__main__":
    main()
