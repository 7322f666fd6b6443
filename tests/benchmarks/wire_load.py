"""Load over raw sockets and epoll: a client that costs a few microseconds a request, so that it measures the server.

``python -m tests.benchmarks.wire_load`` reads one JSON object from standard input (a :class:`Plan`) and prints another
(:class:`Result`).
"""

import json
import math
import select
import socket
import sys
import time
from collections import deque
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Plan(NamedTuple):
    """``rate`` 0: closed loop, every connection asks again as soon as it was answered. Otherwise requests per second.

    ``targets`` are (name, URL, bearer token); with several, requests go to them in turn. ``stream`` counts events.
    """

    targets: list[tuple[str, str, str]]
    model: str
    connections: int
    seconds: float
    rate: float = 0.0
    stream: bool = False


class Result(NamedTuple):
    """``latencies`` holds milliseconds at quantiles; ``events`` counts ``data:`` lines of streams."""

    requests: int
    seconds: float
    events: int
    failures: int
    failure: str
    latencies: dict[str, float]


class Connection:
    """One kept-alive connection with at most one request on it."""

    def __init__(self, url: str, token: str, plan: Plan) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        body = {
            "model": plan.model,
            "messages": [{"role": "user", "content": "Say one word."}],
            "max_tokens": 16,
            **({"stream": True} if plan.stream else {}),
        }
        payload = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: {parts.hostname}\r\nauthorization: Bearer {token}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
        )
        self.request = head.encode() + payload
        self.received = b""
        self.due = 0.0
        self.events = 0
        self.failure = ""

    def send(self, due: float) -> None:
        """Send the request that was due at ``due``."""
        self.due = due
        self.socket.sendall(self.request)

    def take(self) -> int:
        """Read; return 0 while the answer is not complete, else its status (-1: the connection was closed)."""
        try:
            data = self.socket.recv(262144)
        except BlockingIOError:
            return 0
        if not data:
            return -1
        received = self.received + data if self.received else data
        head = received.find(b"\r\n\r\n")
        if head >= 0 and _complete(received, head):
            self.events += received.count(b"data: {", head)
            self.received = b""
            if received[9:12] != b"200":
                self.failure = received[:2000].decode("latin-1")
            return int(received[9:12])
        self.received = received
        return 0


def _complete(received: bytes, head: int) -> bool:
    at = received.find(b"ontent-", 0, head)
    while at >= 0:
        if received[at : at + 15].lower() == b"ontent-length: ":
            end = received.index(b"\r\n", at)
            return len(received) >= head + 4 + int(received[at + 15 : end])
        at = received.find(b"ontent-", at + 1, head)
    return len(received) > head + 4 and received.endswith(b"\r\n0\r\n\r\n")


class Load:
    """One plan being carried out."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._poll = select.epoll()
        self._files: dict[int, tuple[str, Connection]] = {}
        self._idle: dict[str, deque[Connection]] = {}
        for name, url, token in plan.targets:
            pool = [Connection(url, token, plan) for _ in range(plan.connections)]
            self._idle[name] = deque(pool)
            for connection in pool:
                self._poll.register(connection.socket.fileno(), select.EPOLLIN)
                self._files[connection.socket.fileno()] = (name, connection)
        self._names = list(self._idle)
        self._gap = 1 / (plan.rate * len(self._names)) if plan.rate else 0.0
        self._times: dict[str, list[float]] = {name: [] for name in self._names}
        self._failures = dict.fromkeys(self._names, 0)
        self._open = 0
        self._sent = 0
        self._begin = time.perf_counter()
        self._end = self._begin + plan.seconds

    def run(self) -> dict[str, Result]:
        """Put the load on and return results by target."""
        now = self._begin
        if not self._plan.rate:
            for pool in self._idle.values():
                while pool:
                    self._send(pool.popleft(), now)
        while self._open or now < self._end:
            self._answers(self._patience(now))
            now = time.perf_counter()
            if self._plan.rate:
                self._send_due(now)
            if now > self._end + 60:
                raise SystemExit("answers did not come within a minute")
        took = time.perf_counter() - self._begin
        return {name: self._result(name, took) for name in self._names}

    def _patience(self, now: float) -> float:
        if not self._plan.rate or now >= self._end:
            return 0.05
        return max(0.0, self._begin + self._sent * self._gap - now)

    def _send(self, connection: Connection, due: float) -> None:
        connection.send(due)
        self._open += 1

    def _send_due(self, now: float) -> None:
        while now < self._end and (due := self._begin + self._sent * self._gap) <= now:
            pool = self._idle[self._names[self._sent % len(self._names)]]
            if not pool:
                return  # every connection is busy: the server is behind, and the wait counts as latency
            self._send(pool.popleft(), due)
            self._sent += 1

    def _answers(self, patience: float) -> None:
        # epoll waits whole milliseconds, and spinning would take the core from the backend; select waits microseconds.
        select.select((self._poll,), (), (), patience)
        for file, _ in self._poll.poll(0):
            name, connection = self._files[file]
            status = connection.take()
            if not status:
                continue
            if status < 0:
                raise SystemExit(f"{name} closed a connection")
            now = time.perf_counter()
            self._times[name].append(now - connection.due)
            self._failures[name] += status != 200
            self._open -= 1
            if self._plan.rate or now >= self._end:
                self._idle[name].append(connection)
            else:
                self._send(connection, now)

    def _result(self, name: str, took: float) -> Result:
        own = [connection for owner, connection in self._files.values() if owner == name]
        failure = next((connection.failure for connection in own if connection.failure), "")
        events = sum(connection.events for connection in own)
        times = self._times[name]
        return Result(len(times), took, events, self._failures[name], failure, _quantiles(times))


def _quantiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(second * 1000 for second in seconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan

    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1.0)}


def main() -> None:
    """Read a plan, run it, print the results."""
    given: dict[str, Any] = json.load(sys.stdin)
    given["targets"] = [tuple(target) for target in given["targets"]]
    print(json.dumps({name: result._asdict() for name, result in Load(Plan(**given)).run().items()}))


if __name__ == "__main__":
    main()
