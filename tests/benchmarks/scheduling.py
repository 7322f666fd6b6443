"""A thousand replicas placed on ten thousand GPUs by the real loops, in a real database: seconds, and per replica.

Machines of eight simulated GPUs report for work; then deployments of replicas, each with a GPU of its own, are asked
for and settled, and the scheduling loop runs until nothing waits: snapshot, plan, and one transaction for each replica
(locks, quota, partition, audit, outbox, hints). Between its runs all machines say that they are still there, as many
together as the web process takes at a time. Ends with 1 unless every replica has a GPU that no other has. Prints a
table and, as its last line, one JSON object with the load of the machine. The database does not wait for its disk.
"""

import argparse
import gc
import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import django

from runtime.agent.devices import description
from runtime.agent.devices.simulated import SimulatedSource
from runtime.wire import codec
from tests import services

if TYPE_CHECKING:
    from tests.build.machines import FakeAgent

MACHINE: Final = "dgx-h100"
MOST_REPLICAS: Final = 50


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1250)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument(
        "--limited", action="store_true", help="give the tenant limits, so that what it holds is counted"
    )
    options = parser.parse_args()
    services.ensure()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    result = _measure(options.nodes, options.replicas, limited=options.limited)
    for name, value in result.items():
        print(f"{name:<26}{value}")
    print(json.dumps({**result, "load": round(os.getloadavg()[0], 1)}))
    return 0 if result["placed"] == options.replicas == result["gpus_taken"] else 1


def _measure(nodes: int, replicas: int, *, limited: bool) -> dict[str, Any]:
    from django.core.management import call_command
    from django.test.utils import setup_test_environment

    from fleet.models import Partition
    from kernel import scope
    from scheduling import cycle
    from serving.models import Replica
    from serving.reconcile import cycle as serving
    from serving.states import ReplicaState

    setup_test_environment()  # lets the machines call without a web server
    call_command("migrate", verbosity=0)
    began = time.perf_counter()
    agents = [_machine(number) for number in range(nodes)]
    reported = time.perf_counter()
    _deploy(replicas, limited=limited)
    serving.run()
    gc.collect()
    gc.freeze()  # the machines would be other processes: their objects are none of the loop's
    cycles: list[tuple[int, float]] = []
    beats: list[float] = []
    cpu = 0.0
    while True:
        beats.append(_beat(agents))
        before, busy = time.perf_counter(), time.process_time()
        placed = cycle.run()
        if not placed:
            break
        cycles.append((placed, time.perf_counter() - before))
        cpu += time.process_time() - busy
    seconds = sum(each for _, each in cycles)
    with scope.all_tenants():
        assigned = Replica.objects.filter(state=ReplicaState.ASSIGNED).count()
    return {
        "nodes": nodes,
        "gpus": sum(len(agent.devices) for agent in agents),
        "ms_to_join_and_report": round((reported - began) / nodes * 1000, 1),
        "ms_per_heartbeat": round(statistics.median(beats) / nodes * 1000, 2),
        "limited": limited,
        "replicas": replicas,
        "placed": assigned,
        "gpus_taken": Partition.objects.values("device").distinct().count(),
        "cycles": len(cycles),
        "seconds": round(seconds, 1),
        "cpu_ms_per_replica": round(cpu / max(assigned, 1) * 1000, 1),
        "ms_per_replica": _per_replica(cycles[:-1] or cycles),
        "ms_per_replica_first": _per_replica(cycles[:1]),
        "ms_per_replica_last": _per_replica(cycles[:-1][-1:] or cycles),
    }


def _per_replica(cycles: list[tuple[int, float]]) -> float:
    """Milliseconds, the median of ``cycles``; the last one of a run has few to share its snapshot among."""
    return round(statistics.median(seconds / count for count, seconds in cycles) * 1000, 1) if cycles else 0.0


def _machine(number: int) -> "FakeAgent":
    """A machine that has joined and reported once."""
    from tests.build.machines import FakeAgent

    agent = FakeAgent(f"n{number:04}", cpus=64, host_bytes=1 << 40)
    agent.devices = SimulatedSource(description.locate(MACHINE), seed=agent.name, stand_ins=True).scan()
    agent.join()
    agent.report()
    return agent


def _beat(agents: Sequence["FakeAgent"]) -> float:
    """Seconds that it takes to hear all machines again; those that are to run something are heard one by one."""
    from dispatch.api import heartbeats

    calls = [heartbeats.Call(f"Bearer {agent.credential}", codec.encode(agent.draft())) for agent in agents]
    began = time.perf_counter()
    for first in range(0, len(calls), heartbeats.MAX_TOGETHER):
        heartbeats.answer(calls[first : first + heartbeats.MAX_TOGETHER])
    return time.perf_counter() - began


def _deploy(replicas: int, *, limited: bool) -> None:
    from quotas import services as quotas
    from quotas.amount import UNLIMITED, Amount, Kind
    from serving import services as serving
    from tests.build import catalog
    from tests.build.controlplane import actor_for, make_tenant, make_user, owner_of

    tenant = make_tenant("acme")
    admin = actor_for(make_user(admin=True))
    most = Amount.of(1 << 50) if limited else UNLIMITED
    quotas.set_quota(actor=admin, tenant=tenant, changes=dict.fromkeys(Kind, most) | {Kind.REPLICAS: UNLIMITED})
    version = catalog.checked_version(tenant)
    for number, first in enumerate(range(0, replicas, MOST_REPLICAS)):
        serving.deploy_version(
            actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name=f"chat-{number}", model=version.model.name,
            version=version.number, config={"isolation": "exclusive"}, replicas=min(MOST_REPLICAS, replicas - first),
        )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
