"""An engine without a model: speaks the engine's HTTP, behaves as the artifact ``behave.json`` says.

Started as the agent starts a real one (``-m runtime.engine --spec FILE``); reads what it needs from the spec. While it
runs, a file ``control.json`` in its private folder changes what it says.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec
import uvicorn

from runtime.base import lifeline
from runtime.wire import codec
from runtime.wire.inference import EngineAddress, EngineSpec, EngineState
from runtime.wire.memory import MemoryLedger
from runtime.wire.reports import EngineStats, Phase

spec = codec.decode(Path(sys.argv[sys.argv.index("--spec") + 1]).read_bytes(), EngineSpec)
model = Path(spec.model_path)
folder = Path(spec.address_file).parent
behave = json.loads((model / "behave.json").read_text()) if (model / "behave.json").exists() else {}
started = time.time()
counters = {"verified": 0, "draining": False}


def control():
    try:
        return behave | json.loads((folder / "control.json").read_text())
    except FileNotFoundError:
        return behave


def phase():
    if counters["draining"]:
        return Phase.DRAINING
    now = control()
    if "phase" in now:
        return Phase(now["phase"])
    return Phase.LOADING if time.time() < started + now.get("load_seconds", 0) else Phase.READY


def state():
    now = control()
    return EngineState(
        replica_id=spec.replica_id,
        generation=spec.generation,
        phase=phase(),
        reason=now.get("reason", ""),
        message=now.get("message", ""),
        progress=0.5,
        ledger=MemoryLedger(total_bytes=spec.memory_bytes, weights_bytes=1000),
        stats=EngineStats(
            num_requests_running=now.get("running", 0), max_num_seqs=4, requests_total=counters["verified"]
        ),
    )


async def app(scope, receive, send):
    assert scope["type"] == "http"
    headers = dict(scope["headers"])
    while (await receive()).get("more_body"):
        continue
    for _ in range(2000):
        if not control().get("silent"):
            break
        await asyncio.sleep(0.05)
    status, body = answer(scope["method"], scope["path"], headers.get(b"authorization", b"").decode())
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})


def answer(method, path, authorization):
    if authorization != f"Bearer {spec.token}":
        return 401, b"{}"
    match method, path:
        case "GET", "/internal/v1/state":
            return 200, codec.encode(state())
        case "POST", "/internal/v1/drain":
            counters["draining"] = True
            return 202, b"{}"
        case "POST", "/v1/completions":
            counters["verified"] += 1
            if control().get("no_inference"):
                return 500, b'{"error": {"message": "the runner is broken"}}'
            choice = {"index": 0, "text": "x", "finish_reason": "length"}
            return 200, json.dumps({"choices": [choice], "usage": {"completion_tokens": 1}}).encode()
    return 404, b"{}"


async def main():
    if behave.get("crash"):
        print("out of luck: token " + spec.token, flush=True)
        sys.exit(behave["crash"])
    lifeline.watch()
    if behave.get("child"):
        child = await asyncio.create_subprocess_exec("sleep", "600")
        (folder / "child.pid").write_text(str(child.pid))
    sock = socket.socket()
    sock.bind((spec.host, 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    if behave.get("ignore_term"):
        await asyncio.sleep(0.2)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    address = EngineAddress(
        url=f"http://{spec.advertise_host}:{sock.getsockname()[1]}", pid=os.getpid(), started=started
    )
    target = Path(spec.address_file)
    target.with_suffix(".new").write_bytes(msgspec.json.encode(address))
    target.with_suffix(".new").replace(target)
    (folder / "environ.json").write_text(json.dumps(dict(os.environ)))
    print("listening", flush=True)
    await serving


asyncio.run(main())
