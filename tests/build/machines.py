"""A scripted agent and a scripted gateway: they speak the internal API over HTTP as the real ones do, step by step.

Nothing runs behind them. A test decides what an agent's replicas do; the agent obeys its assignments otherwise.
"""

import itertools
import uuid
from typing import Any, TypeVar

import msgspec
from django.http import HttpResponse
from django.test import Client

from dispatch.api import heartbeats
from fleet import joining
from fleet.models import MachineKind
from kernel import actors
from runtime.wire import codec
from runtime.wire.assignments import Desired, NodeAssignments, ReplicaAssignment
from runtime.wire.devices import DeviceKind, DeviceReport, HostReport
from runtime.wire.errors import ErrorBody
from runtime.wire.joining import JoinReply, JoinRequest
from runtime.wire.memory import MemoryLedger
from runtime.wire.reports import EngineStats, NodeReport, Phase, ReplicaReport, ReportReply
from runtime.wire.routes import GatewayReply, GatewayReport, RouteTable

GIB = 1024**3
_count = itertools.count(1)
T = TypeVar("T", bound=msgspec.Struct)


class Refused(Exception):
    """The control plane refused; ``body`` says why."""

    def __init__(self, status: int, body: ErrorBody) -> None:
        super().__init__(f"{status} {body.code}: {body.message}")
        self.status = status
        self.body = body


def join_token(kind: MachineKind = MachineKind.NODE) -> str:
    """A fresh one-time token."""
    return joining.create_join_token(actor=actors.system("tests"), kind=kind)[1]


class Machine:
    """What agent and gateway have in common."""

    kind: MachineKind
    base = ""

    def __init__(self, name: str = "", machine_id: str = "") -> None:
        self.name = name or f"machine-{next(_count)}"
        self.machine_id = machine_id or str(uuid.uuid4())
        self.id = ""
        self.credential = ""
        self.http = Client()

    def join(self, token: str = "") -> "Machine":
        """Trade a token for a credential."""
        asked = JoinRequest(
            token=token or join_token(self.kind), name=self.name, machine_id=self.machine_id, version="0.1.0"
        )
        reply = self.post("/join", asked, JoinReply)
        self.id, self.credential = reply.id, reply.credential
        return self

    def post(self, path: str, message: msgspec.Struct, kind: type[T]) -> T:
        """POST a struct; raises :class:`Refused`."""
        body = codec.encode(message)
        answer = self.http.post(self.base + path, body, content_type="application/json", headers=self.headers())
        return self._read(answer, kind)

    def get(self, path: str, kind: type[T], **headers: str) -> T:
        """GET a struct; raises :class:`Refused`."""
        return self._read(self.http.get(self.base + path, headers={**self.headers(), **headers}), kind)

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.credential}"} if self.credential else {}

    @staticmethod
    def _read(answer: HttpResponse, kind: type[T]) -> T:
        if answer.status_code not in (200, 201):
            raise Refused(answer.status_code, codec.decode(answer.content, ErrorBody))
        return codec.decode(answer.content, kind)


class FakeAgent(Machine):
    """An agent with one device. ``replicas`` is what it reports; :meth:`obey` follows the assignments."""

    kind = MachineKind.NODE
    base = "/internal/v1/nodes"

    def __init__(
        self,
        name: str = "",
        *,
        machine_id: str = "",
        kind: DeviceKind = DeviceKind.CPU,
        memory_bytes: int = 8 * GIB,
        cpus: int = 8,
        host_bytes: int = 32 * GIB,
    ) -> None:
        super().__init__(name, machine_id)
        self.devices = [self.device(kind, memory_bytes)]
        self.cpus, self.host_bytes = cpus, host_bytes
        self.replicas: dict[str, ReplicaReport] = {}
        self.applied = 0
        self.agent_id = str(uuid.uuid4())
        self.boot_id = str(uuid.uuid4())
        self.stored: list[str] = []
        self.rank_address = ""
        self._sequence = itertools.count(1)

    @staticmethod
    def device(kind: DeviceKind = DeviceKind.CPU, memory_bytes: int = 8 * GIB, **facts: Any) -> DeviceReport:
        """A device with a UUID of its own."""
        return DeviceReport(
            uuid=f"{kind}-{uuid.uuid4()}", kind=kind, product=f"Test {kind}", memory_bytes=memory_bytes, **facts
        )

    def restart(self) -> None:
        """The agent process starts anew; what runs goes on."""
        self.agent_id = str(uuid.uuid4())
        self._sequence = itertools.count(1)

    def draft(self, **changes: Any) -> NodeReport:
        """The next report, not sent yet."""
        values: dict[str, Any] = {
            "agent_version": "0.1.0",
            "boot_id": self.boot_id,
            "agent_id": self.agent_id,
            "sequence": next(self._sequence),
            "data_address": "127.0.0.1",
            "rank_address": self.rank_address,
            "applied_generation": self.applied,
            "host": HostReport(
                hostname=self.name, os="Linux", cpus=self.cpus, memory_bytes=self.host_bytes,
                memory_available_bytes=self.host_bytes,
            ),
            "devices": self.devices,
            "replicas": list(self.replicas.values()),
            "stored_sha256": self.stored,
        }  # fmt: skip
        return NodeReport(**{**values, **changes})

    def report(self, **changes: Any) -> ReportReply:
        """Send a report: as in the web process, what is a heartbeat is answered as one."""
        draft = self.draft(**changes)
        call = heartbeats.Call(self.headers().get("authorization", ""), codec.encode(draft))
        return heartbeats.answer([call])[0] or self.post("/report", draft, ReportReply)

    def assignments(self) -> NodeAssignments:
        """Read what to run."""
        return self.get("/assignments", NodeAssignments)

    def obey(self, phase: Phase = Phase.READY, **facts: Any) -> NodeAssignments:
        """Read the assignments and act: new ones get to ``phase`` at once, drained and stopped ones end, others go."""
        wanted = self.assignments()
        self.applied = wanted.generation
        known = {item.replica_id: item for item in wanted.replicas}
        self.replicas = {key: seen for key, seen in self.replicas.items() if key in known}
        for item in wanted.replicas:
            if item.desired is not Desired.RUN:
                if item.replica_id in self.replicas:
                    self.set(item, Phase.STOPPED, reason="Drained")
            elif item.replica_id not in self.replicas or self.replicas[item.replica_id].generation != item.generation:
                self.set(item, phase, **facts)
        return wanted

    def set(self, item: ReplicaAssignment, phase: Phase, **facts: Any) -> ReplicaReport:
        """Let a replica be in ``phase`` from the next report on."""
        if phase in (Phase.READY, Phase.DEGRADED, Phase.WARMING):
            facts = {"address": f"http://127.0.0.1:{40000 + len(self.replicas)}", **measured(), **facts}
        seen = ReplicaReport(replica_id=item.replica_id, generation=item.generation, phase=phase, **facts)
        self.replicas[item.replica_id] = seen
        return seen

    def change(self, replica_id: str, phase: Phase, **facts: Any) -> None:
        """Change what is reported about a known replica."""
        self.replicas[replica_id] = msgspec.structs.replace(self.replicas[replica_id], phase=phase, **facts)

    def cycle(self, phase: Phase = Phase.READY) -> None:
        """What an agent does all the time: read, act, report."""
        self.obey(phase)
        self.report()


def measured() -> dict[str, Any]:
    """A ledger and figures such as an engine reports them."""
    return {
        "ledger": MemoryLedger(total_bytes=1000, weights_bytes=400, kv_total_bytes=300, kv_used_bytes=100),
        "stats": EngineStats(num_requests_running=2, tokens_per_second=12.5, requests_total=7),
    }


class FakeGateway(Machine):
    """A gateway that reads tables and acknowledges them."""

    kind = MachineKind.GATEWAY
    base = "/internal/v1/gateways"

    def __init__(self, name: str = "", machine_id: str = "") -> None:
        super().__init__(name, machine_id)
        self.table: RouteTable | None = None

    def routes(self) -> RouteTable:
        """Read the table."""
        self.table = self.get("/routes", RouteTable)
        return self.table

    def report(self, **changes: Any) -> GatewayReply:
        """Heartbeat, acknowledging the table read last."""
        values: dict[str, Any] = {
            "gateway_id": self.id,
            "version": "0.1.0",
            "url": "http://127.0.0.1:8101",
            "applied_generation": self.table.generation if self.table else 0,
            "table_age_seconds": 0.5,
            "in_flight": 0,
            "journal_pending": 0,
        }
        return self.post("/report", GatewayReport(**{**values, **changes}), GatewayReply)

    def urls_of(self, name: str) -> list[str]:
        """Where requests for the endpoint ``name`` go now."""
        found = next(entry for entry in self.routes().endpoints if entry.name == name)
        return [replica.url for variant in found.variants for replica in variant.replicas]
