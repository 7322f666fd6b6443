"""Starting one engine: its device, its spec, its walls, its process. What is durable is written before it happens."""

import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from runtime.agent import files, isolation, launch, processes
from runtime.agent.errors import Fault, Retry
from runtime.agent.isolation import Walls
from runtime.agent.launch import Target
from runtime.agent.mps import Mps
from runtime.agent.records import ProcessRecord
from runtime.agent.replicas import Running, Slot
from runtime.agent.settings import AgentSettings
from runtime.base import lifeline, logs
from runtime.wire import codec
from runtime.wire.assignments import Share
from runtime.wire.devices import DeviceKind, DeviceReport
from runtime.wire.inference import EngineSpec

log = logs.get(__name__)


class Starter:
    """Starts engines and cleans up after them. ``changing`` is true for a GPU that is being cut anew."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        boot_id: str,
        walls: Walls,
        mps: Mps,
        changing: Callable[[str], bool] = lambda uuid: False,
    ) -> None:
        self._settings = settings
        self._boot_id = boot_id
        self._walls = walls
        self._mps = mps
        self._changing = changing

    async def prepare(self, slot: Slot) -> None:
        """Have what the engine needs beside its files: the MPS daemon of a GPU that it shares.

        Raises:
            Fault: ``MpsUnavailable``.
        """
        for grant in slot.assignment.devices:
            if grant.share is Share.MPS:
                await self._mps.ensure(grant.uuid)

    def start(self, slot: Slot, devices: Mapping[str, DeviceReport], *, taken: Collection[int]) -> None:
        """Start the engine of ``slot``; ``taken`` are the user numbers of all replicas here.

        Raises:
            Fault: it cannot run here now.
            OSError: the process could not be started.
        """
        target = launch.choose_device(
            slot.assignment,
            devices,
            simulated=self._settings.simulate_engines,
            rank_address=self._settings.rank_address,
        )
        if any(self._changing(grant.uuid) for grant in slot.assignment.devices):
            raise Fault("DeviceChanging", "the GPU is being cut anew: the replica starts after that", Retry.SOON)
        if not slot.uid:
            slot.uid = self._walls.free_uid(taken)
        spec = launch.build_spec(
            slot.assignment,
            target,
            folder=slot.folder.path,
            address=slot.folder.address,
            bind=self._settings.bind_host,
            advertise=self._settings.data_host,
            rank_address=self._settings.rank_address,
        )
        slot.running = self._spawn(slot, spec, target)

    def kill(self, slot: Slot) -> None:
        """End what is left in the replica's control group."""
        isolation.kill_group(self._walls, slot.id)

    def ended(self, slot: Slot) -> None:
        """The engine is gone: what it left in its control group ends, in whatever session, and the group goes."""
        isolation.kill_group(self._walls, slot.id)
        isolation.remove_group(self._walls, slot.id)

    def _spawn(self, slot: Slot, spec: EngineSpec, target: Target) -> Running:
        folder = slot.folder
        shutil.rmtree(folder.work, ignore_errors=True)  # nothing that the last engine left is followed or believed
        for path in (folder.work, folder.work / "tmp"):
            files.private_folder(path)
        files.write_private(folder.spec, codec.encode(spec))
        if slot.uid:
            self._give(slot)
        simulated = target.device.kind is DeviceKind.SIMULATED
        isolation.kill_group(self._walls, slot.id)  # of an engine that no agent saw end
        walls = isolation.walls_of(self._walls, slot.assignment, uid=slot.uid, device_kind=target.device.kind)
        more = self._mps.environment(target.grant) if target.grant.share is Share.MPS else {}
        fd = lifeline.inherited_fd()
        intent = ProcessRecord(generation=spec.generation, boot_id=self._boot_id, tied=fd is not None)
        slot.running = None
        folder.write(slot.record(intent))
        process = processes.spawn(
            isolation.command(launch.command(self._settings.engine_python, folder.spec, simulated=simulated), walls),
            env=launch.environment(spec, work=folder.work, more=more),
            folder=folder.work,
            log_file=folder.log,
            pass_fds=() if fd is None else (fd,),
        )
        log.info("engine_started", replica=slot.id, generation=spec.generation, pid=process.pid, uid=slot.uid)
        record = msgspec.structs.replace(intent, pid=process.pid, ticks=process.ticks)
        return Running(process=process, record=record, token=spec.token)

    def _give(self, slot: Slot) -> None:
        """Let the replica's user read its spec and its model, and own its work folder; nothing else."""
        folder, uid, weights = slot.folder, slot.uid, self._walls.weights_gid
        _own(folder.path, 0, uid, 0o750)
        _own(folder.spec, 0, uid, 0o440)
        for path in (folder.work, folder.work / "tmp"):
            _own(path, uid, uid, 0o700)
        for root, names, plain in os.walk(folder.model):
            _own(Path(root), 0, uid, 0o750)
            for name in plain:  # hard links into the store, which nobody but root can enter
                _own(Path(root) / name, 0, weights, 0o440)
            names.sort()


def _own(path: Path, uid: int, gid: int, mode: int) -> None:
    os.chown(path, uid, gid, follow_symlinks=False)
    path.chmod(mode)
