"""The life of the process: what is seen while it starts, why it fails, how it ends."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from runtime.engine import settings
from runtime.engine.errors import EXIT_START_FAILED, StartError
from runtime.engine.process import EngineProcess
from runtime.wire.assignments import EngineConfig
from runtime.wire.inference import EngineAddress, EngineSpec, EngineState
from runtime.wire.memory import Watermarks
from runtime.wire.reports import Phase
from tests.build.engines import DEFAULT_SPEC, ROOT, engine_process, wait_for

pytestmark = pytest.mark.engine


def read_state(url: str) -> EngineState:
    with urllib.request.urlopen(url + "/internal/v1/state", timeout=10) as reply:
        return msgspec.json.decode(reply.read(), type=EngineState)


def spec_for(model: Path, folder: Path, **fields: Any) -> EngineSpec:
    """The spec of an engine that runs in this process."""
    values: dict[str, Any] = {**DEFAULT_SPEC, "model_path": str(model), "format": "huggingface", "token": ""}
    return EngineSpec(**{**values, "address_file": str(folder / "address.json"), **fields})


def test_from_start_to_drained_end(llama_folder: Path) -> None:
    with engine_process(llama_folder, token="") as handle:
        first = handle.state()
        assert first.phase in (Phase.LOADING, Phase.WARMING)
        assert handle.call("GET", "/health")[0] == 503
        status, data = handle.call("POST", "/v1/completions", {"model": "tiny", "prompt": "x"})
        assert status == 503
        assert json.loads(data)["error"]["code"].startswith("engine_")
        address = msgspec.json.decode((handle.folder / "address.json").read_bytes(), type=EngineAddress)
        assert address.pid == handle.process.pid
        assert address.started == psutil.Process(address.pid).create_time()
        handle.wait_ready()
        answers: list[int] = []
        long = {"model": "tiny", "prompt": "x", "max_tokens": 450, "ignore_eos": True}

        def ask() -> None:
            status, data = handle.call("POST", "/v1/completions", long)
            answers.append(json.loads(data)["usage"]["completion_tokens"] if status == 200 else -status)

        asker = threading.Thread(target=ask)
        asker.start()
        wait_for(lambda: handle.state().stats.num_requests_running)
        assert handle.call("POST", "/internal/v1/drain")[0] == 202
        assert handle.state().phase is Phase.DRAINING
        assert handle.call("POST", "/v1/completions", long)[0] == 503
        children = psutil.Process(handle.process.pid).children()
        handle.process.send_signal(signal.SIGTERM)
        assert handle.process.wait(60) == 0
        asker.join()
        assert answers == [450]
        assert not (handle.folder / "address.json").exists()
        psutil.wait_procs(children, timeout=10)
        assert not any(child.is_running() for child in children)


async def test_what_does_not_fit_says_so_with_the_numbers(llama_folder: Path, tmp_path: Path) -> None:
    process = EngineProcess(spec_for(llama_folder, tmp_path, memory_bytes=64 << 20), linger_seconds=1.0)
    running = asyncio.create_task(process.run())
    await asyncio.to_thread(wait_for, (tmp_path / "failure.json").exists)
    state = await asyncio.to_thread(read_state, process.address)
    assert (state.phase, state.reason) == (Phase.FAILED, "DoesNotFit")
    assert "64 MiB" in state.message
    assert await running == EXIT_START_FAILED


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        pytest.param({"config": EngineConfig(dtype="int3")}, "UnsupportedDtype", id="dtype"),
        pytest.param({"config": EngineConfig(quantization="q9")}, "UnsupportedQuantization", id="quantization"),
        pytest.param({"config": EngineConfig(max_model_len=100_000)}, "ContextTooLong", id="context"),
        pytest.param({"config": EngineConfig(max_num_seqs=-1)}, "InvalidConfig", id="negative"),
        pytest.param({"config": EngineConfig(kv_block_tokens=5000)}, "InvalidConfig", id="huge blocks"),
        pytest.param({"config": EngineConfig(watermarks=Watermarks(low=0.9))}, "InvalidConfig", id="watermarks"),
        pytest.param({"device_kind": "simulated"}, "UnsupportedDevice", id="device"),
        pytest.param({"device_kind": "cuda"}, "NoDevice", id="no GPU"),
        pytest.param({"model_path": "/nowhere"}, "ModelNotFound", id="no model"),
        pytest.param({"format": "onnx"}, "UnknownFormat", id="format"),
    ],
)
async def test_what_cannot_be_served_says_why(
    llama_folder: Path, tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    process = EngineProcess(spec_for(llama_folder, tmp_path, **fields), linger_seconds=0.0)
    assert await process.run() == EXIT_START_FAILED
    state = msgspec.json.decode((tmp_path / "failure.json").read_bytes(), type=EngineState)
    assert (state.phase, state.reason) == (Phase.FAILED, reason)
    assert state.message


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(tenant_kv_share=0.0),
        EngineConfig(tenant_kv_share=1.5),
        EngineConfig(queue_timeout_seconds=-1.0),
        EngineConfig(queue_timeout_seconds=float("inf")),
    ],
)
def test_odd_shares_and_timeouts_are_no_config(config: EngineConfig) -> None:
    with pytest.raises(StartError, match="has to be"):
        settings.effective(config)


def test_limits_of_zero_are_the_engines_choice() -> None:
    zeros = EngineConfig(max_num_seqs=0, max_num_batched_tokens=0, max_waiting=0, kv_block_tokens=0)
    assert settings.effective(zeros) == EngineConfig()


def test_a_spec_that_cannot_be_read(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "runtime.engine", "--spec", str(spec)], cwd=ROOT, capture_output=True, check=False
    )
    assert done.returncode == EXIT_START_FAILED
    assert b"spec_unreadable" in done.stderr


def test_serve_shows_progress_and_how_to_call_it(llama_folder: Path) -> None:
    command = [sys.executable, "-m", "runtime.engine.serve", str(llama_folder), "--port", "0", "--memory", "1"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = process.stdout.readline() + process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        progress = process.stderr.read()
    assert f"Serving {llama_folder.name} (context 512 tokens) at http://127.0.0.1:" in shown
    assert "curl -N http://127.0.0.1:" in shown
    assert "loading" in progress


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [(".", 1, "neither a .gguf file nor a folder"), ("mistyped.gguf", 2, "There is nothing at")],
)
def test_serve_says_what_is_wrong(tmp_path: Path, name: str, code: int, reason: str) -> None:
    command = [sys.executable, "-m", "runtime.engine.serve", str(tmp_path / name)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr.startswith("Error: ")
    assert reason in done.stderr
