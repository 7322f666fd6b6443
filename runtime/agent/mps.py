"""MPS: one control daemon per GPU, so that a fault of one client reaches no more than the clients of its GPU.

The daemon outlives the agent, as engines do; who finds it running uses it. The limits are the driver's: each client is
started with a cap on its memory and, where wanted, on its share of the multiprocessors.
"""

import asyncio
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from runtime.agent import files, paths
from runtime.agent.errors import Fault
from runtime.base import logs
from runtime.wire.assignments import DeviceGrant
from runtime.wire.devices import Wall

log = logs.get(__name__)
PROGRAM: Final = "nvidia-cuda-mps-control"
CALL_SECONDS: Final = 10.0
MIB: Final = 1024 * 1024


class Mps:
    """The daemons of this node under ``folder``. ``several_users`` when engines run as users of their own.

    On a machine that is simulated whole (``pretended``) stand-ins share a GPU and no daemon is ever called, whatever is
    installed: none could serve a GPU that is not there. The wall says that it is simulated.
    """

    def __init__(
        self, folder: Path, *, program: str | None = None, several_users: bool = False, pretended: bool = False
    ) -> None:
        self._folder = folder
        self._pretended = pretended
        self._program = program or shutil.which(PROGRAM) or ""
        self._several_users = several_users
        self._lock = asyncio.Lock()

    @property
    def wall(self) -> Wall:
        """Whether shares of a GPU can be limited by the driver here."""
        if self._pretended:
            return Wall(name="mps", used=True, detail="simulated: stand-ins share a GPU, and no daemon runs")
        if self._program:
            return Wall(
                name="mps", used=True, detail="one control daemon per shared GPU; memory is limited by the driver"
            )
        return Wall(name="mps", used=False, detail=f"{PROGRAM} is not installed on this host")

    def environment(self, grant: DeviceGrant) -> dict[str, str]:
        """What a client of the GPU's daemon is started with. The limit is in whole MiB, never above the grant."""
        env = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self._pipe(grant.uuid)),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={grant.memory_bytes // MIB}M",
        }
        if 0 < grant.thread_percentage <= 100:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(grant.thread_percentage)
        return env

    async def ensure(self, uuid: str) -> None:
        """Have the daemon of the GPU run.

        Raises:
            Fault: ``MpsUnavailable``.
        """
        if self._pretended:
            return
        if not self._program:
            raise Fault("MpsUnavailable", f"this share needs MPS, and {PROGRAM} is not installed on this node")
        async with self._lock:
            if await self._alive(uuid):
                return
            for folder in (self._pipe(uuid), self._log(uuid)):
                files.private_folder(folder)
                if self._several_users:  # clients are other users: they must reach the pipes, and nothing else
                    folder.chmod(0o711)
            options = ["-d", *(["-multiuser-server"] if self._several_users else [])]
            code, output = await self._call(uuid, options)
            if code != 0 or not await self._alive(uuid):
                raise Fault(
                    "MpsUnavailable", f"the MPS daemon of this GPU did not start: {output or f'exit code {code}'}"
                )
            log.info("mps_started", uuid=uuid)

    async def stop_unused(self, used: Collection[str]) -> None:
        """End the daemons of GPUs that no replica shares now."""
        if not self._program or self._pretended or not self._folder.exists():
            return
        async with self._lock:
            for folder in sorted(self._folder.iterdir()):
                if folder.name not in used:
                    await self._call(folder.name, [], b"quit\n")
                    shutil.rmtree(folder, ignore_errors=True)
                    log.info("mps_stopped", uuid=folder.name)

    async def _alive(self, uuid: str) -> bool:
        if not self._pipe(uuid).exists():
            return False
        code, _ = await self._call(uuid, [], b"get_server_list\n")
        return code == 0

    async def _call(self, uuid: str, options: list[str], text: bytes | None = None) -> tuple[int, str]:
        """Run the control program; returns its exit code and last line."""
        process = await asyncio.create_subprocess_exec(
            self._program,
            *options,
            stdin=asyncio.subprocess.PIPE if text is not None else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._daemon_environment(uuid),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(CALL_SECONDS):
                output, _ = await process.communicate(text)
        except TimeoutError:
            process.kill()
            return 124, f"no answer within {CALL_SECONDS:g} s"
        lines = output.decode(errors="replace").strip().splitlines()
        return process.returncode or 0, logs.mask(lines[-1])[:200] if lines else ""

    def _daemon_environment(self, uuid: str, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        return {
            "PATH": inherited.get("PATH", os.defpath),
            "CUDA_VISIBLE_DEVICES": uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self._pipe(uuid)),
            "CUDA_MPS_LOG_DIRECTORY": str(self._log(uuid)),
        }

    def _pipe(self, uuid: str) -> Path:
        return self._folder / paths.safe_id(uuid) / "pipe"

    def _log(self, uuid: str) -> Path:
        return self._folder / paths.safe_id(uuid) / "log"
