"""chat speaks to a gateway (here an engine that does what it is told); serve hands over to the engine."""

import os
import subprocess
import sys

import pytest

from tests.build.gateway_engine import FakeEngine
from tests.build.gateway_peers import ENGINE_TOKEN
from tests.runtime.client.conftest import served


@pytest.fixture
def engine(shell):
    made = FakeEngine(tokens=3)
    with served(made) as url:
        shell.set(MILLPOND_GATEWAY=url, MILLPOND_API_KEY=ENGINE_TOKEN)
        yield made


def test_a_completion_is_streamed_to_stdout_and_its_tokens_to_stderr(engine, shell):
    said = shell("chat", "chat", "Why?", "--system", "Be brief.", "--max-tokens", "5", "--temperature", "0")
    assert said.out == "tok0 tok1 tok2 \n"
    assert "7 tokens in, 3 out" in said.err
    body = engine.requests[0]["body"]
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert (body["max_tokens"], body["temperature"], body["stream"]) == (5, 0.0, True)


def test_the_prompt_can_come_by_stdin(engine, shell):
    shell("chat", "chat", "-", "--revision", "r7", stdin="from a file")
    assert engine.requests[0]["headers"]["x-millpond-revision"] == "r7"
    assert engine.requests[0]["body"]["messages"] == [{"role": "user", "content": "from a file"}]


def test_a_refusal_in_openais_shape_is_told(engine, shell):
    engine.mode = "refuse"
    said = shell("chat", "chat", "x", want=1)
    assert "too long" in said.err
    assert "code too_long" in said.err


def test_an_answer_that_breaks_off_is_no_success(engine, shell):
    engine.mode = "cut"
    said = shell("chat", "chat", "x", want=5)
    assert said.out.startswith("tok0")
    assert "broke off" in said.err


def test_a_wrong_key_is_not_allowed(engine, shell):
    shell.set(MILLPOND_API_KEY="mp_wrong")
    shell("chat", "chat", "x", want=3)


def test_without_a_key_it_says_how_to_get_one(shell):
    assert "keys create" in shell("chat", "chat", "x", want=3).err


class Replaced(Exception):
    """This process would be another one now."""


@pytest.mark.parametrize("words", [["./model", "--port", "9000", "-o", "x", "--tenant", "y"], ["--help"], []])
def test_serve_hands_everything_and_itself_to_the_engine(shell, monkeypatch, words):
    def execv(path, command):
        assert path == sys.executable
        raise Replaced(command)

    monkeypatch.setattr(os, "execv", execv)
    with pytest.raises(Replaced) as now:
        shell("serve", *words)
    assert now.value.args[0] == [sys.executable, "-m", "runtime.engine.serve", *words]


def test_serve_of_nothing_is_wrong_use(tmp_path):
    command = [sys.executable, "-m", "runtime.client", "serve", str(tmp_path / "nothing")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, "There is nothing at" in done.stderr) == (2, True)


def test_serve_tells_the_engines_own_options(shell):
    done = subprocess.run(
        [sys.executable, "-m", "runtime.client", "serve", "--help"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    assert "--max-model-len" in done.stdout
