"""From wire messages to what the rooms understand (pure). Ids that are no ids are dropped: they can be nobody's."""

import math
import uuid
from typing import Any

import msgspec

from fleet.facts import DeviceFacts, HealthFacts, HostFacts, NodeFacts
from runtime.wire import codec
from runtime.wire.devices import OFF_THE_BUS, DeviceReport, HealthCode, HealthFact
from runtime.wire.reports import NodeReport, ReplicaReport
from serving.observing import Observation

MAX_REPLICAS_PER_NODE = 512
MAX_HEALTH_FACTS = 512
_KEPT = (
    "architecture", "serial", "numa_node", "nvlink", "paths", "ecc", "remap", "throttle", "recovery_action",
    "problem",
)  # fmt: skip


def node_facts(report: NodeReport) -> NodeFacts:
    """The node's part of a report."""
    host = report.host
    return NodeFacts(
        agent_version=report.agent_version,
        boot_id=report.boot_id[:80],
        agent_id=report.agent_id[:80],
        sequence=report.sequence,
        data_address=report.data_address,
        applied_generation=report.applied_generation,
        host=HostFacts(
            hostname=host.hostname,
            os=host.os,
            cpus=max(host.cpus, 0),
            memory_bytes=max(host.memory_bytes, 0),
            memory_available_bytes=max(host.memory_available_bytes, 0),
            disk_free_bytes=max(host.disk_free_bytes, 0),
            cpu_used=_number(host.cpu_used),
        ),
        devices=tuple(_device(device) for device in report.devices),
        stored_sha256=frozenset(digest for digest in report.stored_sha256 if len(digest) == 64),
        health=tuple(_health(fact) for fact in report.health[:MAX_HEALTH_FACTS]),
        health_dropped=max(report.health_dropped, 0),
    )


def observations(report: NodeReport) -> list[Observation]:
    """The replicas of a report, at most :data:`MAX_REPLICAS_PER_NODE`."""
    found = [_replica(replica) for replica in report.replicas[:MAX_REPLICAS_PER_NODE]]
    return [observation for observation in found if observation is not None]


def _device(device: DeviceReport) -> DeviceFacts:
    return DeviceFacts(
        uuid=device.uuid,
        kind=device.kind.value,
        product=device.product,
        memory_bytes=device.memory_bytes,
        memory_used_bytes=max(device.memory_used_bytes, 0),
        compute_capability=device.compute_capability,
        driver_version=device.driver_version,
        pci_bus_id=device.pci_bus_id,
        utilization=_number(device.utilization),
        temperature_c=_number(device.temperature_c),
        power_w=_number(device.power_w),
        power_limit_w=_number(device.power_limit_w),
        problem=device.problem,
        stand_in=device.stand_in,
        more=_more(device),
    )


def _more(device: DeviceReport) -> dict[str, Any]:
    """What is kept as it came; what drifts is left out, so that the row is written when something has changed."""
    plain = _plain(device) or {}
    kept = {name: plain[name] for name in _KEPT if plain.get(name)}
    if device.mig is not None:
        instances = [msgspec.structs.replace(each, memory_used_bytes=0) for each in device.mig.instances]
        kept["mig"] = _plain(msgspec.structs.replace(device.mig, instances=instances))
    return kept


def _health(fact: HealthFact) -> HealthFacts:
    """A device that its driver calls lost is lost; one that merely could not be read may be well."""
    code = fact.code.value
    if fact.code is HealthCode.LOST and fact.message != OFF_THE_BUS:
        code = "unreadable"
    return HealthFacts(
        sequence=fact.sequence,
        code=code,
        at=_number(fact.at) or 0.0,
        device_uuid=fact.device_uuid,
        message=fact.message[:500],
        xid=fact.xid,
        count=max(fact.count, 0),
        active=fact.active,
        gpu_instance_id=fact.gpu_instance_id,
    )


def _replica(replica: ReplicaReport) -> Observation | None:
    try:
        replica_id = uuid.UUID(replica.replica_id)
    except ValueError:
        return None
    return Observation(
        replica_id=replica_id,
        generation=replica.generation,
        phase=replica.phase.value,
        reason=replica.reason,
        message=replica.message,
        progress=_number(replica.progress),
        address=replica.address if replica.address.startswith("http://") else "",
        restarts=replica.restarts,
        ledger=_plain(replica.ledger),
        stats=_plain(replica.stats),
        level=_number(replica.ledger.level) if replica.ledger is not None else None,
        log_tail=tuple(replica.log_tail),
    )


def _plain(message: object) -> dict[str, Any] | None:
    if message is None:
        return None
    plain = codec.to_plain(message)  # type: ignore[arg-type]
    return plain if isinstance(plain, dict) else None


def _number(value: float | None) -> float | None:
    """JSON knows no infinity, and a chart has no use for one."""
    return value if value is not None and math.isfinite(value) else None
