"""The gateway as a process of its own: killed, restarted, drained, started wrongly."""

import asyncio
import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.build.gateway_peers import ACME_KEY, JOIN_TOKEN, ask, until

ROOT = Path(__file__).parents[3]
AUTH = {"authorization": f"Bearer {ACME_KEY}"}


class Process:
    """One ``python -m runtime.gateway`` and its state folder."""

    def __init__(self, folder: Path, control_url: str, **changes: str) -> None:
        token = folder / "join-token"
        token.write_text(JOIN_TOKEN)
        self.folder = folder / "gateway"
        self.environment = {
            "PATH": os.environ["PATH"],
            "MILLPOND_CONTROL_URL": control_url,
            "MILLPOND_GATEWAY_DIR": str(self.folder),
            "MILLPOND_GATEWAY_PORT": "0",
            "MILLPOND_GATEWAY_JOIN_TOKEN_FILE": str(token),
            "MILLPOND_GATEWAY_REREAD_SECONDS": "0.2",
            "MILLPOND_GATEWAY_DELIVER_SECONDS": "0.05",
            **changes,
        }
        self.url = ""
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, *, ssl_context: ssl.SSLContext | None = None, **spawn) -> None:
        (self.folder / "address.json").unlink(missing_ok=True)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "runtime.gateway",
            cwd=ROOT,
            env=self.environment,
            stderr=(self.folder.parent / "stderr").open("ab"),
            **spawn,
        )
        await until(lambda: (self.folder / "address.json").exists(), "the gateway listens", 30)
        self.url = json.loads((self.folder / "address.json").read_text())["url"]
        connector = aiohttp.TCPConnector(ssl=ssl_context or True)
        async with aiohttp.ClientSession(connector=connector) as http, asyncio.timeout(30):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with http.get(self.url + "/health") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.02)

    def send(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal and return the exit status."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(number)
        async with asyncio.timeout(20):
            return await self._process.wait()

    async def ended(self) -> int:
        assert self._process is not None
        async with asyncio.timeout(20):
            return await self._process.wait()

    @property
    def log(self) -> str:
        return (self.folder.parent / "stderr").read_text()


@pytest.fixture
async def process(control, tmp_path) -> AsyncIterator[Process]:
    """A gateway process that has a table."""
    process = Process(tmp_path, control[1], MILLPOND_GATEWAY_DRAIN_SECONDS="2")
    await process.start()
    yield process
    await process.end()


async def call(http: aiohttp.ClientSession, url: str, **fields) -> int:
    async with http.post(url + "/v1/chat/completions", json=ask(**fields), headers=AUTH) as response:
        await response.read()
        return response.status


async def test_killed_at_any_point_it_books_every_answer_exactly_once(process, control):
    answered = 0
    fake = control[0]
    async with aiohttp.ClientSession() as http:
        for round_number in range(3):
            # In the second round the books are closed, so that the records outlive the process on disk alone.
            fake.down = round_number == 1
            url = process.url
            results = await asyncio.gather(*(call(http, url, stream=bool(i % 2)) for i in range(10)))
            assert results == [200] * 10
            answered += 10
            await process.end(signal.SIGKILL)
            if round_number == 1:
                newest = max((process.folder / "journal").glob("usage-*.jsonl"))
                with newest.open("ab") as torn:
                    torn.write(b'{"id":"torn","request_id":"to')
            await process.start()
    fake.down = False
    await until(lambda: len(fake.booked) >= answered, "every answer is booked")
    assert len(fake.booked) == answered
    assert {record.outcome for record in fake.booked.values()} == {"ok"}
    left = await pending(process)
    assert left == 0


async def pending(process: Process) -> int:
    async with aiohttp.ClientSession() as http, asyncio.timeout(10):
        while True:
            async with http.get(process.url + "/health") as response:
                left = (await response.json())["journal_pending"]
            if not left:
                return 0
            await asyncio.sleep(0.02)


async def test_a_restart_with_the_control_plane_gone_serves_from_the_table_on_disk(process, control):
    control[0].down = True
    await process.end(signal.SIGKILL)
    await process.start()
    async with aiohttp.ClientSession() as http:
        assert await call(http, process.url) == 200
    control[0].down = False
    await until(lambda: len(control[0].booked) == 1, "the call is booked")


async def test_sigterm_lets_a_stream_finish_and_takes_no_new_ones(process, engine, control):
    engine[0].gate.clear()
    async with aiohttp.ClientSession() as http:
        async with http.post(process.url + "/v1/chat/completions", json=ask(stream=True), headers=AUTH) as response:
            await until(lambda: engine[0].running == 1, "the stream runs")
            ending = asyncio.create_task(process.end(signal.SIGTERM))
            await until(lambda: "Shutting down" in process.log, "the gateway is stopping")
            async with aiohttp.ClientSession() as other:
                with pytest.raises(aiohttp.ClientConnectionError):
                    await call(other, process.url)
            engine[0].gate.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert await ending == 0
    assert [record.outcome for record in control[0].booked.values()] == ["ok"]


async def test_a_stream_that_outlasts_the_drain_is_cut_with_an_error_and_not_billed(process, engine, control):
    engine[0].gate.clear()
    async with aiohttp.ClientSession() as http:
        async with http.post(process.url + "/v1/chat/completions", json=ask(stream=True), headers=AUTH) as response:
            await until(lambda: engine[0].running == 1, "the stream runs")
            ending = asyncio.create_task(process.end(signal.SIGTERM))
            text = (await response.read()).decode()
        assert '"code":"stream_cut"' in text
        assert "[DONE]" not in text
        assert await ending == 0
    await until(lambda: engine[0].running == 0, "the engine is free")
    (record,) = control[0].booked.values()
    assert (record.status, record.outcome, record.billable) == (503, "error", False)


async def test_a_call_that_outlasts_the_drain_is_told_so(process, engine, control):
    engine[0].gate.clear()
    async with aiohttp.ClientSession() as http:
        calling = asyncio.create_task(http.post(process.url + "/v1/chat/completions", json=ask(), headers=AUTH))
        await until(lambda: engine[0].running == 1, "the call runs")
        assert await process.end(signal.SIGTERM) == 0
        response = await calling
        assert (response.status, (await response.json())["error"]["code"]) == (503, "draining")
    (record,) = control[0].booked.values()
    assert (record.status, record.outcome, record.billable) == (503, "error", False)


async def test_it_dies_with_its_supervisor(control, tmp_path):
    read_end, write_end = os.pipe()
    process = Process(tmp_path, control[1], MILLPOND_LIFELINE_FD=str(read_end))
    try:
        await process.start(pass_fds=[read_end])
        os.close(write_end)
        assert await process.ended() == 0
    finally:
        os.close(read_end)
        await process.end()


async def test_a_second_process_on_the_same_folder_or_port_is_refused_with_a_reason(process, tmp_path):
    def run(**changes: str) -> str:
        environment = {**process.environment, **changes}
        done = subprocess.run(
            [sys.executable, "-m", "runtime.gateway"], cwd=ROOT, env=environment, capture_output=True, timeout=30
        )
        assert done.returncode == 2
        return done.stderr.decode()

    assert "give each its own MILLPOND_GATEWAY_DIR" in await asyncio.to_thread(run)
    port = process.url.rsplit(":", 1)[1]
    elsewhere = str(tmp_path / "elsewhere")
    text = await asyncio.to_thread(run, MILLPOND_GATEWAY_DIR=elsewhere, MILLPOND_GATEWAY_PORT=port)
    assert "set MILLPOND_GATEWAY_HOST and MILLPOND_GATEWAY_PORT" in text
    assert "MILLPOND_GATEWAY_PORT" in await asyncio.to_thread(run, MILLPOND_GATEWAY_PORT="http")
    assert "MILLPOND_GATEWAY_DIR" in await asyncio.to_thread(run, MILLPOND_GATEWAY_DIR="")


async def test_no_secret_reaches_the_log(process, control):
    async with aiohttp.ClientSession() as http:
        await call(http, process.url)
        async with http.get(process.url + "/v1/models", headers={"authorization": "Bearer " + "mp_" + "w" * 60}):
            pass
    await process.end(signal.SIGTERM)
    for secret in (ACME_KEY, JOIN_TOKEN, "engine-token-0123456789", "5a" * 32, "w" * 60):
        assert secret not in process.log
