"""How often the judge is wrong: A/A runs that it fails, and regressions that it finds, over simulated rollouts.

Traffic is 95/5 at 20 requests a second; the judge looks every two seconds for ten minutes, as the advance loop does.
"""

import argparse
import json
import math
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

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


def request(rng: random.Random, side: Side, into: Evidence) -> Evidence:
    """One request, counted into ``into``."""
    if rng.random() < side.errors:
        return Evidence(into.requests + 1, into.errors + 1, into.ttft, into.itl, into.e2e, into.tokens)
    ttft = side.ttft * 250 * math.exp(rng.gauss(0, 0.4))
    itl = side.itl * 25 * math.exp(rng.gauss(0, 0.2))
    tokens = max(1, round(side.tokens * 120 * math.exp(rng.gauss(0, 0.7))))
    into.ttft.add(ttft)
    into.itl.add(itl)
    into.e2e.add(ttft + itl * (tokens - 1))
    into.tokens.add(tokens)
    return Evidence(into.requests + 1, into.errors, into.ttft, into.itl, into.e2e, into.tokens)


def run(seed: int, candidate: Side) -> tuple[Outcome, int]:
    """One rollout step; its verdict and how many seconds it took."""
    rng = random.Random(seed)
    old, new = empty(), empty()
    for look in range(1, LOOKS + 1):
        for _ in range(RATE * SECONDS_PER_LOOK):
            if rng.random() < SHARE:
                new = request(rng, candidate, new)
            else:
                old = request(rng, Side(), old)
        last = look == LOOKS
        question = Question(min_requests=50, held=last, overdue=last)
        verdict = judge(old, new, question, SLO, Tolerance())
        if verdict.outcome is Outcome.FAIL or last:
            return verdict.outcome, look * SECONDS_PER_LOOK
    raise AssertionError("the last look ends the run")


def percent(outcomes: Sequence[Outcome], which: Outcome) -> float:
    """Share of ``which``, in percent."""
    return round(100 * sum(1 for outcome in outcomes if outcome is which) / len(outcomes), 2)


def main() -> None:
    """Print the table and, as the last line, one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--power-runs", type=int, default=100)
    options = parser.parse_args()
    same = [run(seed, Side())[0] for seed in range(options.runs)]
    figures: dict[str, object] = {
        "aa_runs": options.runs,
        "aa_false_rollbacks_percent": percent(same, Outcome.FAIL),
        "aa_inconclusive_percent": percent(same, Outcome.INCONCLUSIVE),
    }
    print(f"{'A/A, failed':32} {figures['aa_false_rollbacks_percent']:6} % of {options.runs}")
    print(f"{'A/A, not clear':32} {figures['aa_inconclusive_percent']:6} %")
    power: dict[str, dict[str, float]] = {}
    for name, side in REGRESSIONS.items():
        results = [run(10_000 + seed, side) for seed in range(options.power_runs)]
        found = sorted(seconds for outcome, seconds in results if outcome is Outcome.FAIL)
        row = {"found_percent": percent([outcome for outcome, _ in results], Outcome.FAIL)}
        if found:
            row["median_seconds"] = found[len(found) // 2]
        power[name] = row
        print(f"{name:32} {row['found_percent']:6} % found, median {row.get('median_seconds', '-')} s")
    print(json.dumps({**figures, "power": power}))


if __name__ == "__main__":
    main()
