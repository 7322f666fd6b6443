"""The gateway's choice of replicas without a gateway around it, on a clock moved by hand."""

from collections.abc import Container
from pathlib import Path
from typing import Any

from runtime.base.clock import FakeClock
from runtime.gateway.asks import Ask, Slot
from runtime.gateway.metrics import Metrics
from runtime.gateway.pool import Blocked, Pool
from runtime.gateway.replicas import Replica
from runtime.gateway.settings import Settings
from runtime.wire.routes import EndpointEntry, ReplicaRoute
from tests.build.gateway_peers import a_replica


def replicas(count: int, start: int = 1) -> list[ReplicaRoute]:
    """Routes to replicas with numbers from ``start``."""
    return [a_replica("http://engine", number) for number in range(start, start + count)]


class Stage:
    """A pool over one endpoint; settings may be given."""

    def __init__(self, endpoint: EndpointEntry, **changes: Any) -> None:
        self.endpoint = endpoint
        self.clock = FakeClock(1000.0)
        settings = Settings(control_url="http://control", directory=Path("/nonexistent"), **changes)
        self.woken: list[Replica] = []
        self.pool = Pool(settings, self.clock, Metrics(), snapshot=lambda: None, wake=self.woken.append)

    def ask(self, text: str = "", **changes: Any) -> Ask:
        """A request with ``text`` for a prompt."""
        body = b'{"model":"chat","prompt":"' + text.encode() + b'"}'
        given: dict[str, Any] = {"tenant_id": "acme", "salt": "salt", "since": 0.0, "until": 1e12, **changes}
        return Ask(self.endpoint, body, **given)

    def take(self, text: str = "", lines: Container[str] = (), **changes: Any) -> Slot | Blocked:
        """Take a slot for such a request."""
        return self.pool.take(self.ask(text, **changes), lines)

    def place(self, text: str = "", **changes: Any) -> str:
        """Take a slot and return the id of its replica."""
        slot = self.take(text, **changes)
        assert isinstance(slot, Slot)
        return slot.choice.replica.replica_id
