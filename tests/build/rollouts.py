"""Rollouts with a past: made by the services and the loop on a clock that is moved, with traffic that ended."""

import datetime
import random
import uuid
from collections.abc import Mapping
from typing import Any

from fleet.models import Device, DeviceKind, Node
from kernel import clock, ids, scope
from kernel.actors import Actor
from rollouts import advance, services
from rollouts.models import Rollout
from rollouts.planning import Wish
from serving.models import Deployment, Endpoint, Replica
from serving.services import deploy_version
from serving.states import ReplicaState
from telemetry import outcomes
from telemetry.outcomes import Ended
from tenants.models import Tenant
from tests.build import catalog

GIB = 1024**3
TICK = datetime.timedelta(minutes=1)


class Story:
    """An endpoint whose traffic moves. ``now`` is where the clock stands; :meth:`live` lets time pass with traffic."""

    def __init__(
        self, tenant: Tenant, actor: Actor, *, endpoint: str, model: str, start: datetime.datetime, replicas: int = 2
    ) -> None:
        self.tenant, self.actor, self.now = tenant, actor, start
        self.chance = random.Random(7)
        made = catalog.make_model(tenant, model, actor)
        self.model = model
        self.one = catalog.checked_version(tenant, model=made)
        self.two = catalog.checked_version(tenant, model=made)
        with clock.frozen(self.now):
            self.baseline = deploy_version(
                actor=actor, tenant=tenant, endpoint_name=endpoint, model=model, version=self.one.number, config={},
                replicas=replicas,
            )  # fmt: skip
        self.endpoint = Endpoint._base_manager.get(id=self.baseline.endpoint_id)
        self.make_ready()

    def make_ready(self) -> int:
        """Every replica that is wanted serves, with some memory in use; how many are new."""
        node = Node.objects.first() or a_node()
        with scope.tenant(self.tenant.id):
            rows = list(Replica.objects.filter(deployment__endpoint=self.endpoint, state=ReplicaState.PENDING))
            for row in rows:
                Replica.objects.filter(id=row.id).update(
                    state=ReplicaState.READY, reason="", node=node, ledger=ledger(self.chance.uniform(0.15, 0.42)),
                    stats={"num_requests_running": 3, "max_num_seqs": 32, "tokens_per_second": 40.0},
                    state_changed_at=self.now, observed_at=self.now,
                )  # fmt: skip
        return len(rows)

    def roll_out(self, **changes: Any) -> Rollout:
        """Start a rollout of the second version."""
        values: dict[str, Any] = {"hold_seconds": 600, "min_requests": 100, "shares": (5, 25, 50, 100)} | changes
        wish = Wish(model=self.model, version=self.two.number, **values)
        with clock.frozen(self.now):
            return services.create_rollout(actor=self.actor, tenant=self.tenant, endpoint=self.endpoint, wish=wish)

    def weights(self) -> Mapping[uuid.UUID, int]:
        """Who gets how much now."""
        with scope.tenant(self.tenant.id):
            rows = Deployment.objects.filter(endpoint=self.endpoint)
            return dict(rows.values_list("id", "weight"))

    def live(self, minutes: float, *, per_tick: int = 120, worse: float = 1.0, failing: float = 0.0005) -> None:
        """Let ``minutes`` pass: requests end on both sides by their weights, the loop looks, replicas get ready.

        ``worse`` is how much slower the second version is; ``failing`` how often it fails.
        """
        for _ in range(round(minutes * 60 / TICK.total_seconds())):
            weights = self.weights()
            total = sum(weights.values()) or 1
            ended = []
            for key, weight in weights.items():
                is_new = key != self.baseline.id
                expected = per_tick * weight / total
                count = int(expected) + (self.chance.random() < expected % 1)
                ended += [self._one(key, worse if is_new else 1.0, failing if is_new else 0.0005) for _ in range(count)]
            outcomes.write(ended)
            self.now += TICK
            self.look()

    def look(self) -> None:
        """The loop; once more when replicas got ready meanwhile."""
        with clock.frozen(self.now):
            advance.run()
        if self.make_ready():
            with clock.frozen(self.now):
                advance.run()

    def _one(self, key: uuid.UUID, worse: float, failing: float) -> Ended:
        ttft = self.chance.lognormvariate(5.0, 0.35) * worse
        tokens = max(1, round(self.chance.lognormvariate(5.0, 0.6)))
        at = self.now + self.chance.random() * TICK
        return Ended(
            deployment_id=key, started_at=at, failed=self.chance.random() < failing,
            duration_ms=ttft + tokens * self.chance.uniform(17, 22), ttft_ms=ttft, completion_tokens=tokens,
        )  # fmt: skip


def a_node() -> Node:
    """A machine with one device that has room."""
    now = clock.now()
    node = Node.objects.create(
        name="mill-1", machine_id=str(ids.new_id()), state="ready", state_changed_at=now, created_at=now, cpus=64,
        memory_bytes=512 * GIB, memory_available_bytes=500 * GIB, last_seen_at=now, hostname="mill-1.internal",
    )  # fmt: skip
    Device.objects.create(
        node=node, uuid="CPU-mill-1", kind=DeviceKind.CPU, product="Memory", memory_bytes=256 * GIB,
        state_changed_at=now,
    )  # fmt: skip
    return node


def ledger(used: float) -> dict[str, Any]:
    """A memory ledger of a device of 24 GiB whose KV cache holds ``used`` of it."""
    return {
        "total_bytes": 24 * GIB, "weights_bytes": 9 * GIB, "workspace_bytes": GIB, "other_bytes": GIB // 4,
        "kv_total_bytes": 13 * GIB, "kv_used_bytes": int(used * 24 * GIB), "kv_cached_bytes": int(0.12 * 24 * GIB),
        "watermarks": {"low": 0.75, "high": 0.88, "critical": 0.95},
    }  # fmt: skip
