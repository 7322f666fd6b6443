"""How much of a cluster the planner leaves unused: the published fragmentation protocol, on the production planner.

Reads ``*node_list*.csv`` (sn, cpu_milli, memory_mib, gpu, model) and every ``*pod_list*.csv`` (cpu_milli, memory_mib,
num_gpu, gpu_milli, and gpu_spec where there is one) of a folder.

Protocol, per list and seed (42 and up): shuffle the list; append random clones of its pods until they ask for 130 % of
the GPUs; place them one by one in that order. Nothing departs and nothing is moved; no pod is refused while a node
fits, and one that is refused is not tried again. Unallocated GPU % = (GPUs - GPUs given away) / GPUs, taken at the
arrival that brings what was asked for to 100 % of the GPUs (and 110 %, 130 %), refused pods included in what was asked
for. Shares are thousandths of a GPU. Every node has a CPU beside its GPUs, for pods without one.

Decisions enter where the control plane enters: ``Planner.decide`` on a ``Snapshot``. A decision's time is the wall time
of that call, refusals with their verdicts on every device included.

Ties: the lowest cost wins. Between equal costs the node with the least left over (free GPU and free CPU together), then
the first by name, then the first device by position. None is broken at random, so a seed gives the same figures on any
machine; the seeds differ in the order of the pods alone.

What the planner knows of the demand: ``--demand known`` (default) the list, as in the published runs; ``past`` only
what has been asked for so far in the run, learned again at every doubling; a name: another list, a wrong mix.
Prints tables, and one JSON object as its last line.
"""

import argparse
import csv
import json
import multiprocessing
import os
import random
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scheduling.answers import Ask
from scheduling.demand import NO_DEMAND, Demand, Shape
from scheduling.need import Need
from scheduling.plan import Planner
from scheduling.snapshot import DeviceView, NodeView, Snapshot

MIB = 1024**2
#: A GPU of the lists is divided into thousandths and nothing else: one byte each.
GPU_BYTES = 1000
FIRST_SEED = 42
LOADS = (1.0, 1.1, 1.3)
FIRST_LESSON = 8


class Pod(NamedTuple):
    """A line of a pod list. ``spec`` are the models that it may run on; empty: any."""

    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    spec: frozenset[str]

    @property
    def demand(self) -> int:
        """Thousandths of GPUs."""
        return self.gpus * self.gpu_milli

    @property
    def shape(self) -> str:
        if not self.gpus:
            return "no GPU"
        if self.gpus > 1:
            return f"{self.gpus} GPUs"
        return "one GPU" if self.gpu_milli >= GPU_BYTES else "a part of a GPU"

    def needs(self) -> dict[str, Need]:
        host = self.memory_mib * MIB
        if not self.gpus:
            return {"cpu": Need(kind="cpu", memory_bytes=host, host_bytes=host, millicpus=self.cpu_milli)}
        return {
            "cuda": Need(
                kind="cuda", memory_bytes=self.gpu_milli, host_bytes=host, millicpus=self.cpu_milli,
                devices=self.gpus, products=self.spec,
            )
        }  # fmt: skip


def read_nodes(path: Path) -> Snapshot:
    """A node list as the planner's snapshot. Every node has a CPU beside its GPUs, for pods without one."""
    nodes, devices = {}, []
    with path.open(newline="") as lines:
        for number, row in enumerate(csv.DictReader(lines), 1):
            memory = _number(row["memory_mib"]) * MIB
            node = NodeView(
                id=uuid.UUID(int=number), name=row["sn"], state="ready", memory_bytes=memory,
                memory_available_bytes=memory, held_host_bytes=0, millicpus=_number(row["cpu_milli"]), held_millicpus=0,
            )  # fmt: skip
            nodes[node.id] = node
            for slot in range(_number(row["gpu"])):
                devices.append(_device(node, slot, "cuda", row["model"], GPU_BYTES))
            devices.append(_device(node, 99, "cpu", "CPU", memory))
    return Snapshot(nodes, tuple(devices))


def _device(node: NodeView, slot: int, kind: str, product: str, memory: int) -> DeviceView:
    return DeviceView(
        id=uuid.UUID(int=node.id.int * 100 + slot), node_id=node.id, uuid=f"{node.name}-{slot:02}", kind=kind,
        product=product, state="healthy", message="", present=True, memory_bytes=memory, held_bytes=0,
        link_domain=node.name if kind == "cuda" else "",
    )  # fmt: skip


def read_pods(path: Path) -> list[Pod]:
    """A pod list. Where no share is given, a GPU is asked for as a whole; "nan" is how some lists say nothing."""
    with path.open(newline="") as lines:
        return [_pod(row) for row in csv.DictReader(lines)]


def _pod(row: dict[str, str]) -> Pod:
    gpus = _number(row["num_gpu"])
    share = (_number(row["gpu_milli"]) or GPU_BYTES) if gpus else 0
    spec = (row.get("gpu_spec") or "").split("|")
    return Pod(
        _number(row["cpu_milli"]), _number(row["memory_mib"]), gpus, share,
        frozenset(name for name in spec if name not in ("", "nan")),
    )  # fmt: skip


def _number(text: str) -> int:
    return 0 if text in ("", "nan") else int(float(text))


def arrivals(pods: Sequence[Pod], capacity: int, seed: int) -> list[Pod]:
    """The list shuffled, and random clones of its pods until they ask for 130 % of ``capacity``."""
    draw = random.Random(seed)
    found = list(pods)
    draw.shuffle(found)
    asked = sum(pod.demand for pod in found)
    if not (asked and capacity):
        raise SystemExit("There is no GPU in the node list, or none is asked for in the pod list.")
    while asked < LOADS[-1] * capacity:
        pod = draw.choice(pods)
        found.append(pod)
        asked += pod.demand
    return found


class Run(NamedTuple):
    """One list and seed."""

    unallocated: dict[float, float]
    seconds: list[float]
    failed: Counter[str]
    arrived: Counter[str]
    reasons: Counter[str]


def replay(snapshot: Snapshot, pods: Sequence[Pod], demand: Demand | None) -> Run:
    """Place ``pods`` in order. ``demand`` ``None``: learn it from what has arrived."""
    capacity = sum(device.memory_bytes for device in snapshot.devices if device.kind == "cuda")
    planner = Planner(snapshot, demand or NO_DEMAND)
    run = Run({}, [], Counter(), Counter(), Counter())
    past: Counter[Shape] = Counter()
    arrived = allocated = 0
    lesson = FIRST_LESSON
    for number, pod in enumerate(pods, 1):
        ask = Ask(
            replica_id=uuid.UUID(int=number), generation=1, deployment_id=uuid.UUID(int=number), needs=pod.needs()
        )
        begin = time.perf_counter()
        answer = planner.decide(ask)
        run.seconds.append(time.perf_counter() - begin)
        arrived += pod.demand
        run.arrived[pod.shape] += 1
        if answer.places:
            allocated += pod.demand
        else:
            run.failed[pod.shape] += 1
            run.reasons[answer.reason] += 1
        for load in LOADS:
            if load not in run.unallocated and arrived >= load * capacity:
                run.unallocated[load] = 100 * (capacity - allocated) / capacity
        if demand is None:
            past[next(iter(ask.needs.values())).shape] += 1
            if number == lesson:
                planner.board.learn(Demand.of(past))
                lesson *= 2
    return run


class Task(NamedTuple):
    """One list and seed, as a process of its own reads them."""

    folder: str
    nodes: str
    name: str
    seed: int
    demand: str


def measure(task: Task) -> Run:
    """Replay one list and seed."""
    folder = Path(task.folder)
    snapshot = read_nodes(_node_list(folder, task.nodes))
    capacity = sum(device.memory_bytes for device in snapshot.devices if device.kind == "cuda")
    lists = dict(_pod_lists(folder))
    known = {"past": None, "known": task.name}.get(task.demand, task.demand)
    demand = mix(lists[known]) if known is not None else None
    return replay(snapshot, arrivals(lists[task.name], capacity, task.seed), demand)


def mix(pods: Sequence[Pod]) -> Demand:
    """The demand that a list stands for."""
    return Demand.seen(next(iter(pod.needs().values())).shape for pod in pods)


def main() -> None:
    """Measure and print."""
    options = _options()
    folder = Path(options.traces)
    snapshot = read_nodes(_node_list(folder, options.nodes))
    capacity = sum(device.memory_bytes for device in snapshot.devices if device.kind == "cuda")
    lists = dict(_pod_lists(folder))
    chosen = options.lists.split(",") if options.lists else list(lists)
    print(f"{len(snapshot.nodes)} nodes, {capacity // GPU_BYTES} GPUs; {options.seeds} seeds; demand: {options.demand}")
    print("Unallocated GPU %, mean over the seeds (standard deviation) by arrived load")
    print(f"{'list':<14}" + "".join(f"{load:>15.0%}" for load in LOADS) + f"{'p50 ms':>9}{'p99 ms':>9}")
    result: dict[str, Any] = {}
    seconds: list[float] = []
    runs: dict[str, list[Run]] = {}
    tasks = [
        Task(options.traces, options.nodes, name, FIRST_SEED + seed, options.demand)
        for name in chosen
        for seed in range(options.seeds)
    ]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for task, run in zip(tasks, pool.imap(measure, tasks), strict=True):
            here = runs.setdefault(task.name, [])
            here.append(run)
            if len(here) == options.seeds:
                seconds += [value for each in here for value in each.seconds]
                mean = statistics.mean(each.unallocated[1.0] for each in here)
                result[f"unallocated_{task.name}"] = round(mean, 3)
                _print_line(task.name, here)
    _print_failures(runs)
    result |= {"seeds": options.seeds, "demand": options.demand, **_quantiles(seconds)}
    print(json.dumps(result))


def _print_line(name: str, runs: Sequence[Run]) -> None:
    cells = ""
    for load in LOADS:
        values = [run.unallocated[load] for run in runs]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        cells += f"{statistics.mean(values):>8.2f} ({spread:.2f})"
    times = _quantiles([value for run in runs for value in run.seconds])
    print(f"{name:<14}{cells}{times['decision_p50_ms']:>9.2f}{times['decision_p99_ms']:>9.2f}", flush=True)


def _print_failures(runs: dict[str, list[Run]]) -> None:
    shapes = ["no GPU", "a part of a GPU", "one GPU", "2 GPUs", "4 GPUs", "8 GPUs"]
    print("\nPods without a place of those that arrived up to 130 %, all seeds")
    print(f"{'list':<14}" + "".join(f"{shape:>17}" for shape in shapes) + "   nearest refusals")
    for name, found in runs.items():
        failed = sum((run.failed for run in found), Counter[str]())
        arrived = sum((run.arrived for run in found), Counter[str]())
        reasons = sum((run.reasons for run in found), Counter[str]())
        cells = "".join(f"{f'{failed[shape]}/{arrived[shape]}':>17}" for shape in shapes)
        print(f"{name:<14}{cells}   {', '.join(f'{reason} {count}' for reason, count in reasons.most_common(4))}")


def _quantiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "decision_p50_ms": round(1000 * ordered[len(ordered) // 2], 3),
        "decision_p99_ms": round(1000 * ordered[int(len(ordered) * 0.99)], 3),
    }


def _pod_lists(folder: Path) -> Iterator[tuple[str, list[Pod]]]:
    found = sorted(folder.glob("*pod_list*.csv"))
    if not found:
        raise SystemExit(f"There is no *pod_list*.csv in {folder}.")
    for path in found:
        yield path.stem.partition("pod_list")[2].strip("_-") or path.stem, read_pods(path)


def _node_list(folder: Path, name: str) -> Path:
    if name:
        return folder / name
    found = sorted(folder.glob("*node_list*.csv"), key=lambda path: ("gpu_node" not in path.name, path.name))
    if not found:
        raise SystemExit(f"There is no *node_list*.csv in {folder}.")
    return found[0]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Unallocated GPUs under the production planner.")
    parser.add_argument("--traces", default=os.environ.get("TRACES", ""), help="folder with node and pod lists")
    parser.add_argument("--nodes", default="", help="name of the node list; default: the one of GPU nodes")
    parser.add_argument("--lists", default="", help="names of pod lists, by commas; default: all")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 42")
    parser.add_argument("--demand", default="known", help="known, past, or the name of another list")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="lists replayed at a time")
    options = parser.parse_args()
    if not options.traces:
        parser.error("where are the lists? make bench-placement TRACES=FOLDER")
    return options


if __name__ == "__main__":
    main()
