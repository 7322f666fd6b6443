"""Engines for tests: one inside the test's process, with a pool of chosen size; and one as a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from runtime.base import lifeline
from runtime.base.clock import Clock, SystemClock
from runtime.engine.causal import ledger, loader, measure
from runtime.engine.causal.blocks import BlockPool
from runtime.engine.causal.engine import CausalEngine
from runtime.engine.causal.gate import WatermarkGate
from runtime.engine.causal.jobs import Event, GenerationRequest, Job, JobEnded, Output
from runtime.engine.causal.runner import Runner
from runtime.engine.causal.scheduler import Scheduler
from runtime.engine.causal.sequences import SamplingParams
from runtime.engine.formats.opening import open_model
from runtime.engine.formats.source import ModelSource
from runtime.wire.assignments import EngineConfig
from runtime.wire.inference import EngineSpec, EngineState
from runtime.wire.memory import Watermarks
from runtime.wire.reports import Phase

GREEDY = SamplingParams(temperature=0.0)
DEFAULT_SPEC: dict[str, Any] = {
    "replica_id": "replica-1",
    "generation": 3,
    "served_name": "tiny",
    "device_kind": "cpu",
    "device_uuid": "CPU-test",
    "memory_bytes": 1 << 30,
    "token": "secret-token",
    "config": EngineConfig(kv_cache_bytes=8 << 20, num_threads=1, max_num_batched_tokens=64),
}
ROOT = Path(__file__).resolve().parents[2]


class QuietProbe:
    """A device on which nothing happens but what a test sets."""

    def __init__(self) -> None:
        self.unaccounted = 0

    def held_bytes(self) -> int:
        return 0

    def free_bytes(self) -> int:
        return 1 << 30

    def unaccounted_bytes(self, accounted: int) -> int:
        return self.unaccounted

    def give_back(self) -> None:
        return

    def start_peak(self) -> None:
        return

    def peak_bytes(self) -> int:
        return 0


class LocalEngine:
    """A causal engine in this process. ``pool`` and ``probe`` may be looked at and moved by the test."""

    def __init__(
        self,
        path: Path,
        kind: str = "huggingface",
        *,
        blocks: int = 64,
        block_tokens: int = 4,
        max_num_seqs: int = 8,
        budget: int = 32,
        max_waiting: int = 64,
        prefix_cache: bool = True,
        queue_timeout: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.source: ModelSource = open_model(path, kind)
        device = torch.device("cpu")
        self.model = loader.load(self.source, dtype=torch.float32, device=device, progress=lambda _share: None)
        config = self.source.config
        max_len = min(config.max_positions, blocks * block_tokens)
        self.model.resize_positions(max_len)
        cache = measure.new_pool(self.model, blocks, block_tokens)
        self.pool = BlockPool(blocks, block_tokens, prefix_cache=prefix_cache)
        self.scheduler = Scheduler(
            self.pool, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, max_waiting=max_waiting
        )
        self.runner = Runner(self.model, cache, block_tokens, self.source.eos_ids)
        self.probe = QuietProbe()
        block_bytes = self.model.kv.token_bytes(config) * block_tokens
        costs = ledger.FixedCosts(
            total_bytes=blocks * block_bytes * 2,
            context_bytes=0,
            weights_bytes=blocks * block_bytes // 2,
            workspace_bytes=0,
            gather_share=0.0,
            block_bytes=block_bytes,
            block_tokens=block_tokens,
        )
        plan = ledger.PoolPlan(blocks=blocks, max_model_len=max_len, workspace_bytes=0)
        self.gate = WatermarkGate(Watermarks())
        self.fatal: list[str] = []
        self.engine = CausalEngine(
            runner=self.runner,
            scheduler=self.scheduler,
            tokenizer=self.source.tokenizer,
            book=ledger.MemoryBook(costs, plan, self.pool, self.probe, self.gate.marks),
            gate=self.gate,
            clock=clock or SystemClock(),
            eos_ids=self.source.eos_ids,
            max_model_len=max_len,
            max_num_seqs=max_num_seqs,
            on_fatal=self.fatal.append,
            queue_timeout=queue_timeout,
        )
        self.engine.start()

    def submit(self, prompt: list[int], max_tokens: int = 8, **fields: Any) -> "Pending":
        """Submit one prompt; greedy unless ``sampling`` says otherwise."""
        return Pending(self.engine, request(prompt, max_tokens, **fields))

    def generate(self, prompt: list[int], max_tokens: int = 8, **fields: Any) -> list[int]:
        """Tokens generated for one prompt."""
        return self.submit(prompt, max_tokens, **fields).tokens()


_numbers = iter(range(1, 1 << 30))


def request(prompt: list[int], max_tokens: int = 8, **fields: Any) -> GenerationRequest:
    """A request with one prompt; ``fields`` replace defaults."""
    values: dict[str, Any] = {
        "request_id": f"test-{next(_numbers)}",
        "prompts": (tuple(prompt),),
        "n": 1,
        "max_tokens": max_tokens,
        "sampling": GREEDY,
        "ignore_eos": True,
    }
    values.update(fields)
    values.setdefault("seeds", tuple(range(7, 7 + values["n"] * len(values["prompts"]))))
    return GenerationRequest(**values)


class Pending:
    """A submitted request and everything that was heard of it."""

    def __init__(self, engine: CausalEngine, wanted: GenerationRequest) -> None:
        self.outputs: list[Output] = []
        self.error: Any = None
        self.on_end: Callable[[str], None] = lambda _tenant: None
        self._engine = engine
        self._ended = threading.Event()
        self._first = threading.Event()
        self.job: Job = engine.submit(wanted, self._hear)

    def _hear(self, job: Job, event: Event) -> None:
        if isinstance(event, JobEnded):
            self.error = event.error
            self.on_end(job.request.tenant)
            self._ended.set()
        else:
            self.outputs.append(event)
        self._first.set()

    def started(self) -> "Pending":
        """Wait for the first news."""
        assert self._first.wait(30)
        return self

    def wait(self) -> "Pending":
        """Wait for the end."""
        assert self._ended.wait(30)
        return self

    def tokens(self, index: int = 0) -> list[int]:
        """Tokens of one choice, once everything has ended well."""
        self.wait()
        if self.error is not None:
            raise self.error
        sequence = self.job.choices[index].sequence
        return sequence.tokens[sequence.num_prompt :]

    def text(self, index: int = 0) -> str:
        """Text of one choice."""
        self.wait()
        return "".join(output.text for output in self.outputs if output.index == index)

    def cancel(self) -> Any:
        """Cancel it; the usage so far."""
        return self._engine.cancel(self.job.request.request_id)


class EngineHandle:
    """An engine process started as an agent starts it."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, token: str) -> None:
        self.process = process
        self.folder = folder
        self.token = token

    @property
    def url(self) -> str:
        """Where it listens; waits until it does."""
        address = self.folder / "address.json"
        wait_for(lambda: address.exists() or self.process.poll() is not None)
        return str(json.loads(address.read_bytes())["url"])

    def state(self) -> EngineState:
        """What an agent would read."""
        status, body = self.call("GET", "/internal/v1/state")
        assert status == 200
        return msgspec.json.decode(body, type=EngineState)

    def call(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One HTTP exchange: (status, body)."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        head = {"authorization": f"Bearer {self.token}", **(headers or {})}
        wanted = urllib.request.Request(self.url + path, data=data, headers=head, method=method)
        try:
            with urllib.request.urlopen(wanted, timeout=60) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as exc:
            return exc.code, exc.read()

    def wait_ready(self) -> "EngineHandle":
        """Wait until it takes requests."""
        wait_for(lambda: self.process.poll() is not None or self.state().phase is Phase.READY)
        assert self.process.poll() is None, (self.folder / "log").read_text()
        return self


def wait_for(condition: Any, seconds: float = 90.0) -> None:
    """Poll until ``condition`` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


@contextlib.contextmanager
def engine_process(
    path: Path, kind: str = "huggingface", *, through: Sequence[str] = (), **fields: Any
) -> Iterator[EngineHandle]:
    """Run ``python -m runtime.engine`` on ``path``, ``through`` a command that becomes it; ``fields`` replace those of
    the spec."""
    with tempfile.TemporaryDirectory(prefix="engine-test-") as name:
        folder = Path(name)
        values: dict[str, Any] = {
            **DEFAULT_SPEC,
            "model_path": str(path),
            "format": kind,
            "address_file": str(folder / "address.json"),
        }
        values.update(fields)
        spec = folder / "spec.json"
        spec.write_bytes(msgspec.json.encode(EngineSpec(**values)))
        # whatever becomes of the test's process, its engines go with it
        read_end, write_end = os.pipe()
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*through, sys.executable, "-m", "runtime.engine", "--spec", str(spec)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, lifeline.ENV: str(read_end)},
                pass_fds=[read_end],
            )
        os.close(read_end)
        try:
            yield EngineHandle(process, folder, values["token"])
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
            os.close(write_end)
