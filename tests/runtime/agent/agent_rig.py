"""A small control plane, a fake engine and helpers for tests of the agent."""

import asyncio
import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
from aiohttp import WSMsgType, web

from runtime.agent import files, identity
from runtime.agent.main import serve
from runtime.agent.settings import GIB, AgentSettings
from runtime.agent.views import Policy
from runtime.wire import codec
from runtime.wire.assignments import ArtifactRef, Desired, DeviceGrant, EngineConfig, NodeAssignments, ReplicaAssignment
from runtime.wire.errors import ErrorBody, ErrorCode
from runtime.wire.joining import Hint, JoinReply, JoinRequest
from runtime.wire.reports import NodeReport, Phase, ReportReply

ROOT = Path(__file__).resolve().parents[3]
TOKEN = "mpj_abcdefghijkl_" + "j" * 43
CREDENTIAL = "mpn_abcdefghijkl_" + "c" * 43
ENGINE_TOKEN = "secret-of-the-replica"
FAST = Policy(
    backoff_first=0.2,
    backoff_limit=0.8,
    degraded_after=0.5,
    silent_limit=60.0,  # a busy machine must not look like a dead engine
    verify_pause=0.1,
    verify_failures=3,
    term_grace=1.0,
    kill_grace=1.0,
)


async def eventually(check, *, seconds=30.0, what=""):
    """Wait for ``check()`` to be true, looking again and again; its last value is returned."""
    loop = asyncio.get_running_loop()
    limit = loop.time() + seconds
    while True:
        value = check()
        if value:
            return value
        assert loop.time() < limit, f"did not come about: {what or check}"
        await asyncio.sleep(0.05)


class ControlPlane:
    """The internal API for one node, with switches for everything that can go wrong."""

    def __init__(self):
        self.node_id = "node-1"
        self.generation = 1
        self.replicas = {}
        self.layouts = []
        self.artifacts = {}
        self.reports = []
        self.joins = []
        self.requests = []  # (path, range header)
        self.sockets = []
        self.down = False
        self.refusal = None  # ErrorCode for every authenticated call
        self.cuts = {}  # digest -> bytes before the connection breaks, once
        self.ranges = True
        self.interval = 0.2
        self.url = ""
        self._runner = None

    async def start(self, port=0):
        app = web.Application(client_max_size=8 * 1024 * 1024, middlewares=[self._gate])
        app.router.add_post("/internal/v1/nodes/join", self._join)
        app.router.add_post("/internal/v1/nodes/report", self._report)
        app.router.add_get("/internal/v1/nodes/assignments", self._assignments)
        app.router.add_get("/internal/v1/nodes/artifacts/{sha}", self._artifact)
        app.router.add_get("/internal/v1/nodes/hints", self._hints)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def stop(self):
        for socket in list(self.sockets):
            await socket.close()
        await self._runner.cleanup()

    def artifact(self, path, data):
        sha = hashlib.sha256(data).hexdigest()
        self.artifacts[sha] = data
        return ArtifactRef(path=path, sha256=sha, size=len(data))

    def assign(self, assignment):
        self.replicas[assignment.replica_id] = assignment
        self.generation += 1

    def change(self, replica_id, **fields):
        self.assign(msgspec.structs.replace(self.replicas[replica_id], **fields))

    def drop(self, replica_id):
        del self.replicas[replica_id]
        self.generation += 1

    async def hint(self):
        for socket in self.sockets:
            await socket.send_str(codec.encode(Hint(topic="assignments", generation=self.generation)).decode())

    def seen(self, replica_id):
        """The newest report of a replica, or None."""
        if not self.reports:
            return None
        return next((item for item in self.reports[-1].replicas if item.replica_id == replica_id), None)

    async def phase(self, replica_id, phase, *, reason=None, generation=None, seconds=30.0):
        """Wait until the replica is reported in ``phase``."""

        def check():
            seen = self.seen(replica_id)
            fits = seen and seen.phase is phase and (reason is None or seen.reason == reason)
            return seen if fits and (generation is None or seen.generation == generation) else None

        try:
            return await eventually(check, seconds=seconds)
        except AssertionError:
            raise AssertionError(f"wanted {phase} {reason or ''}, last seen {self.seen(replica_id)}") from None

    async def ready(self, replica_id, **more):
        return await self.phase(replica_id, Phase.READY, **more)

    @web.middleware
    async def _gate(self, request, handler):
        self.requests.append((request.path, request.headers.get("Range")))
        if self.down:
            return web.Response(status=503, text="down")
        if not request.path.endswith("/join"):
            if request.headers.get("Authorization") != f"Bearer {CREDENTIAL}":
                return self._error(401, ErrorCode.UNAUTHENTICATED)
            if self.refusal:
                return self._error(403, self.refusal)
        return await handler(request)

    def _error(self, status, code):
        return web.Response(status=status, body=codec.encode(ErrorBody(code=code, message=f"no: {code}")))

    async def _join(self, request):
        join = codec.decode(await request.read(), JoinRequest)
        self.joins.append(join)
        if join.token != TOKEN or len([item for item in self.joins if item.token == TOKEN]) > 1:
            return self._error(403, ErrorCode.TOKEN_USED)
        return web.Response(body=codec.encode(JoinReply(id=self.node_id, credential=CREDENTIAL)))

    async def _report(self, request):
        self.reports.append(codec.decode(await request.read(), NodeReport))
        reply = ReportReply(generation=self.generation, interval_seconds=self.interval, lease_seconds=15)
        return web.Response(body=codec.encode(reply))

    async def _assignments(self, request):
        return web.Response(
            body=codec.encode(
                NodeAssignments(
                    node_id=self.node_id,
                    generation=self.generation,
                    replicas=list(self.replicas.values()),
                    layouts=self.layouts,
                )
            )
        )

    async def _artifact(self, request):
        data = self.artifacts.get(request.match_info["sha"])
        if data is None:
            return self._error(404, ErrorCode.NOT_FOUND)
        asked = request.headers.get("Range")
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        headers = {"Content-Length": str(len(data) - start)}
        if asked and self.ranges:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        response = web.StreamResponse(status=206 if "Content-Range" in headers else 200, headers=headers)
        await response.prepare(request)
        body = data[start:]
        cut = self.cuts.pop(request.match_info["sha"], None)
        if cut is not None:
            body = body[:cut]
            await response.write(body)
            await asyncio.sleep(0.1)
            request.transport.abort()
            return response
        await response.write(body)
        return response

    async def _hints(self, request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets.append(socket)
        try:
            async for message in socket:
                if message.type is WSMsgType.ERROR:
                    break
        finally:
            self.sockets.remove(socket)
        return socket


class Rig:
    """One agent folder beside one control plane."""

    def __init__(self, folder, control):
        self.folder = files.private_folder(folder / "agent")
        self.control = control
        self.token_file = folder / "join-token"
        self.token_file.write_text(TOKEN + "\n")
        self.python = folder / "engine-python"
        self.python.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).parent / "fake_engine.py"}" "$@"\n'
        )
        self.python.chmod(0o755)
        self.spawned = set()
        self._stop = None
        self._task = None
        self._process = None
        self._lock = None

    @property
    def cpu_uuid(self):
        return identity.load(self.folder).cpu_uuid

    def settings(self, **more):
        base = {
            "control_url": self.control.url,
            "folder": self.folder,
            "node_name": "rig",
            "join_token_file": self.token_file,
            "cpu_memory_bytes": 2 * GIB,
            "engine_python": str(self.python),
            "disk_reserve_bytes": 0,
        }
        return AgentSettings(**(base | more))

    def replica(self, replica_id="r1", *, behave=None, artifacts=(), **fields):
        """An assignment of the fake engine to this node's CPU."""
        base = {
            "replica_id": replica_id,
            "generation": 1,
            "desired": Desired.RUN,
            "deployment_id": "d1",
            "revision_id": "rev1",
            "tenant_id": "t1",
            "served_name": "tiny",
            "format": "huggingface",
            "artifacts": [self.control.artifact("behave.json", json.dumps(behave or {}).encode()), *artifacts],
            "devices": [DeviceGrant(uuid=self.cpu_uuid, memory_bytes=GIB)],
            "config": EngineConfig(),
            "token": ENGINE_TOKEN,
            "drain_seconds": 5,
        }
        return ReplicaAssignment(**(base | fields))

    # The agent inside this process

    async def start(self, *, policy=FAST, **settings):
        self._stop = asyncio.Event()
        self._lock = identity.lock(self.folder)
        self._task = asyncio.create_task(serve(self.settings(**settings), self._stop, policy=policy))

    async def stop(self):
        if self._task:
            self._note_engines()
            self._stop.set()
            await asyncio.wait_for(self._task, 30)
            self._task = None
            os.close(self._lock)

    # The agent as a process of its own

    def launch(self, *, pass_fds=(), **more):
        env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "MILLPOND_CONTROL_URL": self.control.url,
            "MILLPOND_AGENT_DIR": str(self.folder),
            "MILLPOND_AGENT_JOIN_TOKEN_FILE": str(self.token_file),
            "MILLPOND_NODE_NAME": "rig",
            "MILLPOND_CPU_DEVICE_MEMORY_GIB": "2",
            "MILLPOND_ENGINE_PYTHON": str(self.python),
            "SECRET_OF_THE_AGENT": "do not pass on",
        } | more
        log = (self.folder.parent / "agent.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "runtime.agent"], env=env, cwd=ROOT, stderr=log, pass_fds=pass_fds
        )
        return self._process

    def kill(self, number=signal.SIGKILL):
        self._note_engines()
        self._process.send_signal(number)
        code = self._process.wait(30)
        self._process = None
        return code

    def agent_log(self):
        return (self.folder.parent / "agent.log").read_text()

    # Looking

    def engine_folder(self, replica_id="r1"):
        return self.folder / "replicas" / replica_id

    def engine_control(self, replica_id="r1", **fields):
        target = self.engine_folder(replica_id) / "work" / "control.json"
        target.with_suffix(".new").write_text(json.dumps(fields))
        target.with_suffix(".new").replace(target)

    def engines(self):
        """Pids of every live engine started from this folder."""
        from runtime.agent import processes

        found = set(processes.running_specs(self.folder / "replicas"))
        self.spawned |= found
        return found

    def _note_engines(self):
        self.engines()

    async def close(self):
        self.engines()
        await self.stop()
        if self._process:
            self.kill()
        for pid in self.engines() | self.spawned:
            try:
                if os.getsid(pid) == pid:
                    os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)
