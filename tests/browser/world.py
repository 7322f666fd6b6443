"""What the browser tests find when they open the console: run as a program in a process of its own.

``python -m tests.browser.world seed`` makes it and prints JSON; ``… validate`` is what the worker does in a loop.
"""

import json
import sys
from typing import Any

import django

GIB = 1024**3
ADMIN, OWNER, DEVELOPER, VIEWER, STRANGER, LEAVER, FORGETFUL = (
    f"{name}@harbor.example" for name in ("admin", "maya", "lin", "vic", "stranger", "noa", "otto")
)


def seed() -> dict[str, Any]:
    """Two tenants, people with every role, a ready model, a node with two devices, a deployment with replicas."""
    from kernel import actors
    from quotas.amount import Amount, Kind
    from quotas.services import set_group, set_quota
    from tenants.roles import Role
    from tests.build import controlplane as build

    owner = build.make_user(OWNER, name="Maya Okafor")
    build.make_user(ADMIN, admin=True, name="Priya Nair")
    harbor = build.make_tenant("harbor", owner=owner, name="Harbor Support")
    build.make_member(harbor, Role.ADMIN, build.make_user(DEVELOPER, name="Lin Yao"))
    build.make_member(harbor, Role.VIEWER, build.make_user(VIEWER, name="Vic Ibsen"))
    build.make_member(harbor, Role.VIEWER, build.make_user(LEAVER, name="Noa Lind"))
    lantern = build.make_tenant("lantern", owner=build.make_user(STRANGER), name="Lantern Search")
    build.make_member(lantern, Role.VIEWER, build.make_user(FORGETFUL, name="Otto Falk"))
    _fleet()
    actor = build.actor_for(owner)
    facts = {**_deployed(harbor, actor), "foreign": _deployed(lantern, build.actor_for(build.owner_of(lantern)))}
    set_group(actor=actors.system("tests"), name="ports", changes={Kind.REPLICAS: Amount.of(90)})
    storage = {Kind.STORAGE_BYTES: Amount.of(1024**2)}
    set_quota(actor=actors.system("tests"), tenant=lantern, changes=storage, group="ports")
    return {**facts, **_rollouts(harbor, actor)}


def _rollouts(tenant: Any, actor: Any) -> dict[str, Any]:
    """A canary in its second step, one that went back, and an experiment, each behind an endpoint of its own."""
    import datetime

    from kernel import clock
    from rollouts.experiments import start_experiment
    from serving.services import deploy_version
    from tests.build.rollouts import Story

    ago = datetime.timedelta(minutes=26)
    canary, failed, split = (
        Story(tenant, actor, endpoint=name, model=f"{name}-model", start=clock.now() - ago)
        for name in ("helpdesk", "search", "summary")
    )
    canary.live(2)
    running = canary.roll_out(config={"max_num_seqs": 48}, hold_seconds=600, min_requests=40)
    canary.live(24, worse=1.05)
    back = failed.roll_out(shares=(50, 100))
    failed.live(3, failing=0.6)
    second = deploy_version(
        actor=actor, tenant=tenant, endpoint_name="summary", model="summary-model", version=2, config={}, replicas=1,
        weight=0,
    )  # fmt: skip
    split.make_ready()
    with clock.frozen(clock.now() - datetime.timedelta(minutes=10)):
        experiment = start_experiment(
            actor=actor, tenant=tenant, endpoint=split.endpoint, name="Shorter answers", candidate_id=second.id,
            share=500, seconds=3600,
        )  # fmt: skip
    split.now = clock.now() - datetime.timedelta(minutes=9)
    split.live(8, worse=0.8)
    return {"rollout": str(running.id), "rolled_back": str(back.id), "experiment": str(experiment.id)}


def _fleet() -> None:
    from fleet.models import Device, DeviceKind, Node
    from kernel import clock, ids

    now = clock.now()
    node = Node.objects.create(
        name="machine-1", machine_id=str(ids.new_id()), state="ready", state_changed_at=now, created_at=now, cpus=8,
        memory_bytes=64 * GIB, memory_available_bytes=48 * GIB, last_seen_at=now, hostname="machine-1.internal",
    )  # fmt: skip
    for number, size in enumerate((12 * GIB, GIB // 4)):
        Device.objects.create(
            node=node, uuid=f"CPU-{number}", kind=DeviceKind.CPU, product=f"Memory {number}", memory_bytes=size,
            state_changed_at=now,
        )  # fmt: skip


def _deployed(tenant: Any, actor: Any) -> dict[str, Any]:
    from kernel import clock, scope
    from serving import services
    from serving.models import Replica
    from tests.build import catalog

    version = catalog.checked_version(tenant, model=catalog.make_model(tenant, "tiny-chat", actor))
    made = services.deploy_version(
        actor=actor,
        tenant=tenant,
        endpoint_name="chat",
        model="tiny-chat",
        version=version.number,
        config={},
        replicas=2,
    )
    with scope.tenant(tenant.id):
        replica = Replica.objects.filter(deployment=made)[0]
        Replica.objects.filter(id=replica.id).update(
            ledger={
                "total_bytes": 12 * GIB, "weights_bytes": 3 * GIB, "workspace_bytes": GIB, "kv_total_bytes": 6 * GIB,
                "kv_used_bytes": 2 * GIB, "kv_cached_bytes": GIB,
                "watermarks": {"low": 0.75, "high": 0.88, "critical": 0.95},
            },
            stats={"num_requests_running": 3, "num_requests_waiting": 0, "max_num_seqs": 32, "tokens_per_second": 41.5},
            log_tail=["ready", "WARNING admission closed"], observed_at=clock.now(),
        )  # fmt: skip
    return {"tenant": tenant.slug, "deployment": str(made.id), "model": "tiny-chat", "version": version.number}


def costs(email: str, paths: list[str]) -> list[dict[str, Any]]:
    """Queries, milliseconds, bytes and status of pages, each asked for the second time."""
    import time

    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from tenants.models import User

    client = Client()
    client.force_login(User.objects.get(email=email))
    found = []
    for path in paths:
        client.get(path)
        with CaptureQueriesContext(connection) as asked:
            client.get(path)
        queries = len(asked)  # before the next request, which empties the log it is counted from
        began = time.perf_counter()
        answer = client.get(path)
        spent = round(1000 * (time.perf_counter() - began), 1)
        found.append({"queries": queries, "ms": spent, "bytes": len(answer.content), "status": answer.status_code})
    return found


def say(text: str) -> None:
    """Tell the test, and wait for it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    sys.stdin.readline()


def canary(ending: str) -> None:
    """A canary in its first step; told to go on, requests end and the judge decides: ``passes`` or ``fails``."""
    import datetime

    from kernel import clock
    from tenants.models import Tenant, User
    from tests.build.controlplane import actor_for
    from tests.build.rollouts import Story

    tenant = Tenant.objects.get(slug="harbor")
    actor = actor_for(User.objects.get(email=OWNER))
    start = clock.now() - datetime.timedelta(minutes=40)
    story = Story(tenant, actor, endpoint=f"canary-{ending}", model=f"canary-{ending}-model", start=start)
    story.live(2)
    made = story.roll_out(shares=(50, 100), hold_seconds=300, min_requests=100)
    story.live(1)
    say(str(made.id))
    story.live(20, failing=0.5 if ending == "fails" else 0.0005)


def serve(engine: str) -> str:
    """Endpoints ``talk`` (two revisions, the second without a share) and ``talk-two``, whose replicas are the engine at
    ``engine``, and a token for a gateway.
    """
    from django.db import transaction

    from fleet.models import MachineKind, Node
    from kernel import scope
    from ledger import generations
    from serving.models import Replica
    from serving.services import deploy_version
    from tenants.models import Tenant, User
    from tests.build.controlplane import actor_for
    from tests.build.gateway_engine import ENGINE_TOKEN
    from tests.build.machines import join_token

    tenant = Tenant.objects.get(slug="harbor")
    actor = actor_for(User.objects.get(email=OWNER))
    for name, config, weight in (("talk", {}, 100), ("talk-two", {}, 100), ("talk", {"max_num_seqs": 48}, 0)):
        made = deploy_version(
            actor=actor, tenant=tenant, endpoint_name=name, model="tiny-chat", version=1, config=config, replicas=1,
            weight=weight,
        )  # fmt: skip
        with scope.tenant(tenant.id):
            Replica.objects.filter(deployment=made).update(
                state="ready", node=Node.objects.all()[0], address=engine, token=ENGINE_TOKEN
            )
    with transaction.atomic():
        generations.bump(generations.ROUTES)
    return join_token(MachineKind.GATEWAY)


def fleet() -> dict[str, Any]:
    """Instead of the usual world: two machines, of which one serves a deployment with two replicas."""
    from fleet.models import Node
    from scheduling import cycle
    from serving.services import deploy_version
    from tests.build import catalog
    from tests.build import controlplane as build
    from tests.build.machines import FakeAgent

    build.make_user(ADMIN, admin=True, name="Priya Nair")
    tenant = build.make_tenant("harbor", owner=build.make_user(OWNER), name="Harbor Support")
    actor = build.actor_for(build.owner_of(tenant))
    version = catalog.checked_version(tenant, model=catalog.make_model(tenant, "tiny-chat", actor))
    for name in ("mill-a", "mill-b"):
        agent = FakeAgent(name, machine_id=f"machine-{name}")
        agent.join()
        agent.report()
    made = deploy_version(
        actor=actor, tenant=tenant, endpoint_name="chat", model="tiny-chat", version=version.number, config={},
        replicas=2,
    )  # fmt: skip
    cycle.run()
    return {"deployment": str(made.id), "nodes": {row.name: str(row.id) for row in Node.objects.all()}}


def beat() -> None:
    """The loops and both machines of :func:`fleet`, until told to end."""
    from threading import Event, Thread

    from ledger import outbox
    from scheduling import cycle as scheduling
    from serving.reconcile import cycle as serving
    from tests.build.machines import FakeAgent

    agents = [FakeAgent(name, machine_id=f"machine-{name}") for name in ("mill-a", "mill-b")]
    for agent in agents:
        agent.join()  # the same machine again: a new credential
    over = Event()
    Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    while not over.wait(0.3):
        outbox.drain()
        serving.run()
        scheduling.run()
        for agent in agents:
            agent.cycle()


def validate() -> None:
    """Check what waits."""
    from catalog import completion, validation

    completion.verify_waiting()
    validation.validate_waiting()


def remove_member(email: str) -> None:
    """Take somebody out of the tenant harbor, as another member does."""
    from kernel import actors, scope
    from tenants import services
    from tenants.models import Member, Tenant

    tenant = Tenant.objects.get(slug="harbor")
    with scope.tenant(tenant.id):
        member = Member.objects.select_related("user").get(user__email=email)
    services.remove_member(actor=actors.system("tests"), tenant=tenant, member=member)


def age_sessions() -> None:
    """Let every proof of who is there be an hour old."""
    from django.contrib.sessions.backends.db import SessionStore
    from django.contrib.sessions.models import Session

    for row in Session.objects.all():
        store = SessionStore(row.session_key)
        records = store.get("account_authentication_methods") or []
        store["account_authentication_methods"] = [{**record, "at": record["at"] - 3600} for record in records]
        store.save()


def pause(rollout_id: str) -> None:
    """Pause a rollout, as another member does."""
    from kernel import scope
    from rollouts import services
    from rollouts.models import Rollout
    from tenants.models import User
    from tests.build.controlplane import actor_for

    with scope.all_tenants():
        rollout = Rollout.objects.select_related("tenant").get(id=rollout_id)
    services.pause(actor=actor_for(User.objects.get(email=OWNER)), tenant=rollout.tenant, rollout=rollout)


if __name__ == "__main__":
    from django.conf import settings

    django.setup()
    settings.ALLOWED_HOSTS = ["testserver"]  # machines call inside of this process
    if sys.argv[1] == "seed":
        sys.stdout.write(json.dumps(seed()))
    elif sys.argv[1] == "validate":
        validate()
    elif sys.argv[1] == "fleet":
        sys.stdout.write(json.dumps(fleet()))
    elif sys.argv[1] == "beat":
        beat()
    elif sys.argv[1] == "canary":
        canary(sys.argv[2])
    elif sys.argv[1] == "serve":
        sys.stdout.write(serve(sys.argv[2]))
    elif sys.argv[1] == "costs":
        sys.stdout.write(json.dumps(costs(sys.argv[2], sys.argv[3:])))
    elif sys.argv[1] == "age_sessions":
        age_sessions()
    elif sys.argv[1] == "pause":
        pause(sys.argv[2])
    else:
        remove_member(sys.argv[2])
