"""Devices that do not exist, from a description: for development, demos and scale tests.

They are labelled ``simulated`` wherever they are shown. Both files are read again when they change, so that a person
or a test can make a device sick; what MIG layouts were made of them is kept in a file, as a driver would keep it.
"""

import threading
import uuid as uuids
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from runtime.agent import files
from runtime.agent.devices import description, simulated_facts
from runtime.agent.devices.description import Gpu
from runtime.agent.devices.port import GpuInstance, MigError, Observed
from runtime.agent.devices.simulated_facts import Cut, Cuts
from runtime.agent.errors import SettingsError
from runtime.agent.settings import GIB
from runtime.base import logs
from runtime.wire.devices import DeviceReport, HealthCode, HostReport, RdmaRail

log = logs.get(__name__)
MAX_EVENTS: Final = 256


class SimulatedSource:
    """Reads the description at start, so that a mistake in it is found then; a later one keeps the last good state.

    ``seed`` makes the UUIDs; ``state`` is the file that keeps MIG layouts; ``stand_ins``: simulated engines may run.

    Raises:
        SettingsError: a file cannot be read or does not fit.
    """

    name = "simulated"

    def __init__(
        self,
        path: Path,
        *,
        seed: str,
        changes: Path | None = None,
        state: Path | None = None,
        stand_ins: bool = False,
    ) -> None:
        self._path = path
        self._seed = seed
        self._changes = changes
        self._state = state
        self.stand_ins = stand_ins
        self._lock = threading.Lock()
        self._stamp: tuple[float, ...] = ()
        self._events: deque[Observed] = deque(maxlen=MAX_EVENTS)
        self._xids: dict[str, int] = {}
        self._cuts = (files.read_struct(state, Cuts) if state else None) or Cuts()
        try:
            self._stamp = self._stamps()
            self._machine = description.load(path, seed=seed, changes=changes)
        except (OSError, SettingsError) as exc:
            raise SettingsError(f"MILLPOND_SIMULATE: {exc}") from exc
        for gpu in self._machine.devices:
            self._xids[gpu.uuid] = len(gpu.xids)  # as a driver: only what happens from now on is an event
            if gpu.mig_enabled:
                self._cut(gpu.uuid).enabled = True

    def scan(self) -> list[DeviceReport]:
        with self._lock:
            self._reload()
            machine = self._machine
            cuts = self._cuts.devices
            return [
                simulated_facts.report(machine, gpu, cuts.get(gpu.uuid, Cut()), stand_in=self.stand_ins)
                for gpu in machine.devices
            ]

    def take(self) -> list[Observed]:
        with self._lock:
            self._reload()
            taken = list(self._events)
            self._events.clear()
            return taken

    def host(self, real: HostReport) -> HostReport:
        """``real`` with what the description says of the machine."""
        facts, rails = self._machine.host, self._machine.rails
        if facts is None:
            return real
        nodes = facts.numa_nodes
        ports = [
            RdmaRail(
                name=f"mlx5_{index}",
                link_layer=rails.link_layer,
                active=True,
                rate_gbps=rails.rate_gbps,
                numa_node=index * nodes // rails.count,
            )
            for index in range(rails.count if rails else 0)
            if rails
        ]
        return msgspec.structs.replace(
            real,
            cpus=facts.cpus,
            memory_bytes=facts.memory_gib * GIB,
            memory_available_bytes=int(facts.memory_gib * GIB * 0.95),
            numa_nodes=nodes,
            rails=ports,
        )

    # Reading the files again

    def _stamps(self) -> tuple[float, ...]:
        times = [self._path.stat().st_mtime_ns]
        if self._changes is not None and self._changes.exists():
            times.append(self._changes.stat().st_mtime_ns)
        return tuple(times)

    def _reload(self) -> None:
        try:
            stamp = self._stamps()
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._machine = description.load(self._path, seed=self._seed, changes=self._changes)
        except (OSError, SettingsError) as exc:  # an editor may be writing: keep the last good state
            log.warning("simulated_description_unreadable", error=str(exc))
            return
        for gpu in self._machine.devices:
            seen = self._xids.get(gpu.uuid, 0)
            for xid in gpu.xids[seen:]:
                message = f"the driver reported Xid {xid} (simulated)"
                self._events.append(Observed(code=HealthCode.XID, device_uuid=gpu.uuid, xid=xid, message=message))
            self._xids[gpu.uuid] = len(gpu.xids)

    # MIG: the same port as a real driver's

    def enabled(self, uuid: str) -> bool:
        with self._lock:
            self._gpu(uuid)
            return self._cut(uuid).enabled

    def pending(self, uuid: str) -> bool:
        return self.enabled(uuid)

    def enable(self, uuid: str, on: bool) -> None:
        with self._lock:
            gpu, cut = self._gpu(uuid), self._cut(uuid)
            if gpu.processes:
                raise MigError("DeviceInUse", "MIG cannot be switched while a process holds the GPU (simulated)")
            if gpu.reset_pending:
                raise MigError("ResetRequired", "MIG is switched at the next reset of the GPU (simulated)")
            if cut.enabled != on:
                cut.enabled, cut.instances = on, {}
                self._save()

    def instances(self, uuid: str) -> list[GpuInstance]:
        with self._lock:
            self._gpu(uuid)
            return [
                GpuInstance(id=number, profile_id=profile, start=start)
                for number, (profile, start, _) in sorted(self._cut(uuid).instances.items())
            ]

    def create(self, uuid: str, profile_id: int, start: int) -> GpuInstance:
        with self._lock:
            gpu, cut = self._gpu(uuid), self._cut(uuid)
            rows = {row.id: row for row in gpu.mig.profiles} if gpu.mig else {}
            row = rows.get(profile_id)
            if row is None or start not in row.starts:
                raise MigError("IllegalPlacement", f"profile {profile_id} cannot begin at slice {start} (simulated)")
            taken = {
                slice_
                for profile, begin, _ in cut.instances.values()
                for slice_ in range(begin, begin + rows[profile].memory)
            }
            same = sum(profile == profile_id for profile, _, _ in cut.instances.values())
            if not cut.enabled or same >= row.max or taken & set(range(start, start + row.memory)):
                raise MigError("NoRoom", f"profile {profile_id} does not fit at slice {start} (simulated)")
            number = next(number for number in range(1, 64) if number not in cut.instances)
            cut.instances[number] = (profile_id, start, f"MIG-{uuids.uuid4()}")
            self._save()
            return GpuInstance(id=number, profile_id=profile_id, start=start)

    def destroy(self, uuid: str, instance_id: int) -> None:
        with self._lock:
            self._gpu(uuid)
            if self._cut(uuid).instances.pop(instance_id, None) is not None:
                self._save()

    def _gpu(self, uuid: str) -> Gpu:
        for gpu in self._machine.devices:
            if gpu.uuid == uuid:
                if gpu.lost:
                    raise MigError("DeviceLost", "the GPU has fallen off the bus (simulated)")
                if gpu.mig is None:
                    raise MigError("MigUnsupported", "this GPU cannot be cut: it has no MIG (simulated)")
                return gpu
        raise MigError("DeviceMissing", f"device {uuid} is not on this node")

    def _cut(self, uuid: str) -> Cut:
        return self._cuts.devices.setdefault(uuid, Cut())

    def _save(self) -> None:
        if self._state is not None:
            files.write_struct(self._state, self._cuts)
