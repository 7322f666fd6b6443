"""How often sequences give way when three times more KV is asked for than there is, simulated.

Requests with lengths like those of chats come so fast that whatever may run would hold three times the pool; some
tenants are heavy, some ask for little; a tenth is critical, a fifth sheddable. The scheduler is the product's own; a
step costs a fixed time and time per token. Prints a histogram of preemptions per request, and one JSON object as its
last line.
"""

import argparse
import json
import random
from collections import Counter
from typing import Final

from runtime.engine.causal.blocks import BlockPool
from runtime.engine.causal.scheduler import HEADROOM_TOKENS, MAX_PREEMPTIONS, Scheduler, StepPlan
from runtime.wire.inference import PRIORITIES
from tests.benchmarks.simulation import Arrival, Served, SimulatedEngine

BLOCK_TOKENS: Final = 16
OVERSUBSCRIBED: Final = 3.0
_SLOTS: Final = 64
_TENANTS: Final = 12
_CLASSES: Final = (2, 7, 1)  # of ten: sheddable, default, critical


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--headroom-tokens", type=int, default=HEADROOM_TOKENS)
    options = parser.parse_args()
    arrivals = chats(options.requests, options.seed)
    served, engine, scheduler = play(arrivals, options.headroom_tokens)
    histogram = Counter(item.preemptions for item in served)
    blocks = scheduler.pool.total
    print(f"{len(served)} requests, KV asked for {OVERSUBSCRIBED:g} x the pool of {blocks} blocks (simulated)")
    for count in range(MAX_PREEMPTIONS + 1):
        share = histogram[count] / len(served)
        print(f"{count:>3} preemptions {histogram[count]:>6}  {share:>6.1%}  {'#' * round(share * 60)}")
    tokens = sum(item.arrival.prompt + item.arrival.output for item in served)
    summary = {
        "simulated": True,
        "requests": len(served),
        "preempted_share": round(1.0 - histogram[0] / len(served), 4),
        "most_preemptions": max(histogram),
        "histogram": {str(count): histogram[count] for count in sorted(histogram)},
        "longest_stand_still_steps": engine.longest_stand_still,
        "tokens_per_second": round(tokens / engine.now, 1),
    }
    print(json.dumps(summary))


def chats(count: int, seed: int) -> list[Arrival]:
    """``count`` requests at once: lengths log-normal as in public chat traces, tenants with unequal appetites."""
    draw = random.Random(seed)
    weights = [1.0 / (number + 1) for number in range(_TENANTS)]
    return [
        Arrival(
            at=number * 1e-3,
            tenant=f"tenant-{draw.choices(range(_TENANTS), weights)[0]}",
            prompt=max(1, min(1024, int(draw.lognormvariate(4.2, 1.1)))),
            output=max(1, min(1024, int(draw.lognormvariate(5.2, 0.8)))),
            priority=draw.choices(range(len(PRIORITIES)), _CLASSES)[0],
        )
        for number in range(count)
    ]


def play(arrivals: list[Arrival], headroom: int) -> tuple[list[Served], SimulatedEngine, Scheduler]:
    """Serve ``arrivals`` with a pool that holds a third of what full slots would need."""
    mean = sum(item.prompt + item.output for item in arrivals) / len(arrivals)
    largest = max(item.prompt + item.output for item in arrivals)
    blocks = max(int(_SLOTS * mean / OVERSUBSCRIBED), largest + BLOCK_TOKENS) // BLOCK_TOKENS
    scheduler = Scheduler(
        BlockPool(blocks, BLOCK_TOKENS, prefix_cache=False),
        max_num_seqs=_SLOTS,
        max_num_batched_tokens=512,
        max_waiting=len(arrivals),
        headroom_tokens=headroom,
    )
    engine = SimulatedEngine(scheduler, _seconds)
    return engine.run(arrivals), engine, scheduler


def _seconds(plan: StepPlan) -> float:
    return 0.02 + 0.0003 * plan.num_tokens


if __name__ == "__main__":
    main()
