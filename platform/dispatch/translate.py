"""From wire messages to what the rooms understand (pure). Ids that are no ids are dropped: they can be nobody's."""

import functools
import hashlib
import math
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec

from fleet.facts import DeviceFacts, HealthFacts, HostFacts, LayoutFacts, NodeFacts
from fleet.heartbeats import Beat
from runtime.wire import codec
from runtime.wire.devices import OFF_THE_BUS, DeviceReport, HealthCode, HealthFact, HostReport, MigInstance
from runtime.wire.reports import NodeReport, ReplicaReport
from serving.observing import Observation

MAX_REPLICAS_PER_NODE = 512
MAX_HEALTH_FACTS = 512
MAX_WALLS = 32
MAX_RAILS = 64
MAX_PROCESSES = 64
_DRIFTING = ("hbm_bandwidth_used", "memory_temperature_c", "clocks", "pcie", "unreadable")
_KEPT = (
    "architecture", "serial", "numa_node", "nvlink", "paths", "ecc", "remap", "throttle", "recovery_action",
    "problem",
)  # fmt: skip


def beat(report: NodeReport) -> Beat:
    """The report as a heartbeat: the digest is of everything but replicas, health facts and what drifts."""
    host = msgspec.structs.replace(report.host, memory_available_bytes=0, disk_free_bytes=0, cpu_used=None)
    steady = msgspec.structs.replace(
        report, sequence=0, applied_generation=0, replicas=[], health=[], host=host,
        devices=[_steady(device) for device in report.devices],
    )  # fmt: skip
    return Beat(
        boot_id=report.boot_id[:80],
        agent_id=report.agent_id[:80],
        digest=hashlib.blake2b(codec.encode(steady), digest_size=16).hexdigest(),
        sequence=report.sequence,
        applied_generation=report.applied_generation,
        health_sequence=max((fact.sequence for fact in report.health), default=0),
        memory_available_bytes=max(report.host.memory_available_bytes, 0),
        disk_free_bytes=max(report.host.disk_free_bytes, 0),
        cpu_used=_number(report.host.cpu_used),
        facts=functools.partial(node_facts, report),
    )


def _steady(device: DeviceReport) -> DeviceReport:
    mig = device.mig
    if mig is not None:
        instances = [_still(each) for each in mig.instances]
        mig = msgspec.structs.replace(mig, instances=instances)
    return msgspec.structs.replace(
        device, memory_used_bytes=0, utilization=None, temperature_c=None, power_w=None, power_limit_w=None,
        hbm_bandwidth_used=None, memory_temperature_c=None, clocks=None, pcie=None, unreadable=[], processes=[],
        mig=mig,
    )  # fmt: skip


def _still(instance: MigInstance) -> MigInstance:
    """Without what drifts."""
    return msgspec.structs.replace(instance, memory_used_bytes=0, hbm_bandwidth_used=None)


def node_facts(report: NodeReport) -> NodeFacts:
    """The node's part of a report."""
    host = report.host
    return NodeFacts(
        agent_version=report.agent_version,
        boot_id=report.boot_id[:80],
        agent_id=report.agent_id[:80],
        sequence=report.sequence,
        data_address=report.data_address,
        rank_address=report.rank_address,
        applied_generation=report.applied_generation,
        host=HostFacts(
            hostname=host.hostname,
            os=host.os,
            cpus=max(host.cpus, 0),
            memory_bytes=max(host.memory_bytes, 0),
            memory_available_bytes=max(host.memory_available_bytes, 0),
            disk_free_bytes=max(host.disk_free_bytes, 0),
            cpu_used=_number(host.cpu_used),
            walls=tuple(
                {"name": wall.name[:40], "used": wall.used, "detail": wall.detail[:300]}
                for wall in host.walls[:MAX_WALLS]
            ),
            more=_host(host),
        ),
        devices=tuple(fact for device in report.devices for fact in (_device(device), *_instances(device))),
        stored_sha256=frozenset(digest for digest in report.stored_sha256 if len(digest) == 64),
        health=tuple(_health(fact) for fact in report.health[:MAX_HEALTH_FACTS]),
        health_dropped=max(report.health_dropped, 0),
        layouts=tuple(
            LayoutFacts(
                device_uuid=layout.device_uuid,
                generation=layout.generation,
                phase=layout.phase.value,
                message=layout.message[:500],
            )
            for layout in report.layouts[:MAX_REPLICAS_PER_NODE]
        ),
    )


def _host(host: HostReport) -> dict[str, Any]:
    """What is kept of the machine as it came."""
    rails = [_plain(rail) for rail in host.rails[:MAX_RAILS]]
    return {"numa_nodes": max(host.numa_nodes, 0), "rails": rails}


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
        readings=_readings(device),
    )


def _instances(device: DeviceReport) -> Iterator[DeviceFacts]:
    """The MIG instances of a device as devices of their own; one that nothing can run on only occupies slices."""
    mig = device.mig
    if mig is None or not mig.enabled:
        return
    of_slices = max((each.compute_slices for each in mig.profiles), default=0)
    free_from = 0
    for each in sorted(mig.instances, key=lambda instance: instance.start):
        if each.start < free_from:
            continue  # two instances cannot share a slice: one of them is a mistake
        free_from = each.start + max(each.memory_slices, 0)
        used = _number(each.hbm_bandwidth_used)
        if each.uuid and each.memory_bytes > 0 and each.memory_slices > 0:
            yield DeviceFacts(
                uuid=each.uuid,
                kind=device.kind.value,
                product=f"{device.product} MIG {each.profile}",
                memory_bytes=each.memory_bytes,
                memory_used_bytes=max(each.memory_used_bytes, 0),
                compute_capability=device.compute_capability,
                driver_version=device.driver_version,
                pci_bus_id=device.pci_bus_id,
                problem=device.problem,
                stand_in=device.stand_in,
                parent_uuid=device.uuid,
                slice_start=max(each.start, 0),
                slice_count=each.memory_slices,
                more={"compute_slices": each.compute_slices, "of_slices": of_slices, "profile": each.profile},
                readings={} if used is None else {"hbm_bandwidth_used": used},
            )


def _more(device: DeviceReport) -> dict[str, Any]:
    """What is kept as it came; what drifts is left out, so that the row is written when something has changed."""
    plain = _plain(device) or {}
    kept = {name: plain[name] for name in _KEPT if plain.get(name)}
    if device.mig is not None:
        instances = [_still(each) for each in device.mig.instances]
        kept["mig"] = _plain(msgspec.structs.replace(device.mig, instances=instances))
    return kept


def _readings(device: DeviceReport) -> dict[str, Any]:
    """What drifts, as it came; of many processes those with the most memory."""
    plain = _plain(device) or {}
    kept = {name: plain[name] for name in _DRIFTING if plain.get(name) is not None}
    found = sorted(device.processes, key=lambda each: -(each.memory_bytes or 0))[:MAX_PROCESSES]
    if found:
        kept["processes"] = [_plain(each) for each in found]
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
