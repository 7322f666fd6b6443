"""What an engine tells gateways of its load, and the classes and weights that it serves by."""

import http.client
import json
import re
from typing import Any

import msgspec
import pytest

from runtime.wire.inference import PRIORITIES, EngineLoad
from runtime.wire.reports import Phase
from tests.build.engines import EngineHandle

pytestmark = pytest.mark.engine
MESSAGES: list[Any] = [{"role": "user", "content": "hello there, 水?"}]


def head_of(served: EngineHandle, method: str, path: str, headers: dict[str, str], body: Any = None) -> Any:
    """Status and headers of an answer."""
    host = served.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"authorization": f"Bearer {served.token}", **headers})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_load_tells_a_gateway_its_credits(served: EngineHandle) -> None:
    def load(gateway: str) -> EngineLoad:
        status, body = served.call("GET", "/internal/v1/load", headers={"x-millpond-gateway": gateway})
        assert status == 200
        return msgspec.json.decode(body, type=EngineLoad)

    first = load("gateway-a")
    assert first.phase is Phase.READY
    assert first.credits >= 1
    second = load("gateway-b")
    assert load("gateway-a").credits == second.credits < first.credits
    assert load("").credits == second.credits
    before = second.tokens_total
    served.call("POST", "/v1/completions", {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4, "ignore_eos": True})
    after = load("gateway-a")
    assert after.tokens_total >= before + 6
    assert (after.running, after.waiting, after.oldest_waiting_ms, after.kv_free) == (0, 0, 0.0, 1.0)
    assert served.call("POST", "/internal/v1/load", {})[0] == 405


@pytest.mark.parametrize("stream", [False, True])
def test_every_answer_says_how_busy_the_engine_is(served: EngineHandle, *, stream: bool) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": 2, "stream": stream}
    answer = head_of(served, "POST", "/v1/completions", {"x-millpond-gateway": "gateway-a"}, body)
    assert answer.status == 200
    assert int(answer.headers["x-millpond-credits"]) >= 1
    assert re.fullmatch(r"running=\d+;waiting=\d+;kv_free=[01]\.\d\d", answer.headers["x-millpond-load"])
    refused = head_of(served, "POST", "/v1/completions", {}, {"model": "other", "prompt": "a"})
    assert refused.status == 404
    assert refused.headers["x-millpond-load"]
    assert head_of(served, "GET", "/internal/v1/state", {}).headers["x-millpond-load"] is None
    stranger = head_of(served, "GET", "/v1/models", {"authorization": "Bearer wrong"})
    assert stranger.status == 401
    assert stranger.headers["x-millpond-credits"] is None


@pytest.mark.parametrize(
    "headers",
    [
        {"x-millpond-priority": "urgent"},
        {"x-millpond-priority": "Critical"},
        {"x-millpond-tenant-weight": "0"},
        {"x-millpond-tenant-weight": "-1"},
        {"x-millpond-tenant-weight": "nan"},
        {"x-millpond-tenant-weight": "1e9"},
        {"x-millpond-tenant-weight": "much"},
    ],
)
def test_odd_classes_and_weights_are_refused_by_name(served: EngineHandle, headers: dict[str, str]) -> None:
    status, body = served.call("POST", "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1}, headers)
    assert status == 400
    assert json.loads(body)["error"]["param"] in headers


@pytest.mark.parametrize("name", PRIORITIES)
def test_all_classes_are_served(served: EngineHandle, name: str) -> None:
    headers = {"x-millpond-priority": name, "x-millpond-tenant": "t", "x-millpond-tenant-weight": "2.5"}
    status, _ = served.call("POST", "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1}, headers)
    assert status == 200


def test_metrics_tell_of_memory_and_fairness(served: EngineHandle) -> None:
    text = served.call("GET", "/metrics")[1].decode()
    for name in (
        "kv_blocks_withdrawn",
        "kv_pool_shrinks_total",
        "tenants_waiting",
        "queue_timeouts_total",
        "requests_displaced_total",
        "steps_out_of_memory_total",
        "steps_failed_total",
        "oldest_waiting_seconds",
    ):
        assert f"\nmillpond_engine_{name} " in text
