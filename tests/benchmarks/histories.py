"""Random histories through the production planner: what must never happen is counted over thousands of them.

Each history is a small fleet with a clock that only it moves: nodes join, are lost and come back, GPUs fall ill, are
cut into instances and put together again while idle, quotas change, deployments of several tenants and priorities
start, grow and end. In every other one half of the replicas on GPUs are spread over nodes, nodes are drained, and who
must leave stays until a successor has all its places. In two of seven two of the tenants are in a group. Plans are made
from a snapshot and committed later, some after a crash or a change in between, by an in-memory model of the same checks
that the database makes. Seeds make every history repeatable.

Prints counts, the time of placing 1,000 replicas on 10,000 GPUs, and one JSON object as its last line.
"""

import argparse
import json
import multiprocessing
import os
import time
import uuid
from collections import Counter

from scheduling.answers import Ask
from scheduling.demand import Demand
from scheduling.need import Need
from scheduling.plan import Planner
from scheduling.snapshot import DeviceView, NodeView, Snapshot
from tests.build.histories import History

GIB = 1024**3
STEPS = 20


def scale(replicas: int, gpus: int) -> dict[str, float]:
    """Seconds to place ``replicas`` on ``gpus`` GPUs in nodes of eight, with a mixed demand."""
    nodes, devices = {}, []
    for number in range(1, gpus // 8 + 1):
        node = NodeView(
            id=uuid.UUID(int=number), name=f"n{number:05}", state="ready", memory_bytes=2048 * GIB,
            memory_available_bytes=2000 * GIB, held_host_bytes=0, millicpus=128_000, held_millicpus=0,
            fault_domain=f"rack-{number // 8}",
        )  # fmt: skip
        nodes[node.id] = node
        devices += [
            DeviceView(
                id=uuid.UUID(int=number * 100 + slot), node_id=node.id, uuid=f"GPU-{number:05}-{slot}", kind="cuda",
                product="H100", state="healthy", message="", present=True, memory_bytes=80 * GIB, held_bytes=0,
                link_domain=f"n{number:05}",
            )
            for slot in range(8)
        ]  # fmt: skip
    shapes = [(18, 1), (34, 1), (70, 1), (76, 2), (76, 4), (76, 8), (9, 1)]
    asks = []
    for number in range(replicas):
        gib, count = shapes[number % len(shapes)]
        need = Need(
            kind="cuda", memory_bytes=gib * GIB, host_bytes=4 * GIB * count, millicpus=4000 * count, devices=count,
            linked=count > 1,
        )  # fmt: skip
        deployment = uuid.UUID(int=number // 20 + 1)
        asks.append(
            Ask(
                replica_id=uuid.UUID(int=number + 1), generation=1, deployment_id=deployment, needs={"cuda": need},
                desired=20,
            )
        )  # fmt: skip
    begin = time.perf_counter()
    planner = Planner(Snapshot(nodes, tuple(devices)), Demand.seen(ask.needs["cuda"].shape for ask in asks))
    built = time.perf_counter()
    placed = sum(1 for ask in asks if planner.decide(ask).places)
    return {
        "scale_placed": placed,
        "scale_read_s": round(built - begin, 3),
        "scale_plan_s": round(time.perf_counter() - built, 3),
    }


def one(seed: int) -> tuple[int, Counter[str], Counter[str], str]:
    """One history, in a process of the pool: what was seen, and what was broken with the first details."""
    whole = seed % 2 == 0
    grouped = seed % 7 in (1, 3)
    history = (
        History(seed, grouped=grouped)
        if whole
        else History(seed, drains=True, follows=True, spread=0.5, grouped=grouped)
    )
    history.run(STEPS)
    return seed, history.seen, history.broken, history.first_wrong


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description="Random histories through the planner.")
    parser.add_argument("--count", type=int, default=int(os.environ.get("COUNT", "10000")), help="histories")
    parser.add_argument("--first", type=int, default=1, help="seed of the first")
    parser.add_argument("--no-scale", action="store_true", help="leave out the 10,000 GPUs")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="histories at a time")
    options = parser.parse_args()
    broken: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    begin = time.perf_counter()
    seeds = range(options.first, options.first + options.count)
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for seed, one_seen, one_broken, wrong in pool.imap_unordered(one, seeds, chunksize=20):
            seen += one_seen
            broken += one_broken
            if one_broken:
                print(f"seed {seed}: {dict(one_broken)} {wrong}", flush=True)
    seconds = time.perf_counter() - begin
    print(f"{options.count} histories of {STEPS} steps in {seconds:.1f} s")
    for name, count in sorted(seen.items()):
        print(f"  {name:<28}{count:>9}")
    result: dict[str, float] = {
        "histories": options.count,
        "two_owners": broken["two owners"],
        "overcommitted": broken["overcommitted"],
        "stuck_without_reason": broken["stuck without a reason"],
        "other": sum(broken.values())
        - broken["two owners"]
        - broken["overcommitted"]
        - broken["stuck without a reason"],
        "seconds": round(seconds, 1),
    }
    if not options.no_scale:
        result |= scale(1000, 10_000)
        print(f"1,000 replicas on 10,000 GPUs: {result['scale_read_s']} s to read, {result['scale_plan_s']} s to plan")
    print(json.dumps(result))
    if broken:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
