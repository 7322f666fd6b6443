"""One replica on several nodes: engines at two addresses of this machine, which know each other by its token."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from runtime.engine import errors
from runtime.engine.process import FAILURE_FILE
from runtime.engine.ranks import entrance, handshake, orders, streams
from runtime.engine.ranks.entrance import Entrance
from runtime.engine.ranks.host import Host
from runtime.engine.ranks.peers import interface_of
from runtime.engine.ranks.split import Split
from runtime.engine.ranks.team import Team
from runtime.wire.assignments import EngineConfig, World
from runtime.wire.inference import EngineSpec, EngineState
from runtime.wire.reports import Phase
from tests.build.engines import DEFAULT_SPEC, EngineHandle, engine_process, wait_for

pytestmark = pytest.mark.engine

LEADER, FOLLOWER = "127.0.0.1", "127.0.0.2"
NUMBER = b"n" * 32


def free_port() -> int:
    with socket.create_server((LEADER, 0)) as found:
        return int(found.getsockname()[1])


def config(**fields: Any) -> EngineConfig:
    return EngineConfig(kv_cache_bytes=1 << 20, num_threads=1, max_num_batched_tokens=64, **fields)


def spec_of(world: World, **fields: Any) -> EngineSpec:
    values = {**DEFAULT_SPEC, "model_path": "", "format": "huggingface", "address_file": "", **fields}
    return EngineSpec(**values, world=world)


@contextlib.contextmanager
def two_nodes(folder: Path, tensor: int, stages: int, **fields: Any) -> Iterator[tuple[EngineHandle, EngineHandle]]:
    """The leader and the follower, each with half of the ranks."""
    size, leader = tensor * stages, f"{LEADER}:{free_port()}"

    def node(ranks: list[int], address: str) -> Any:
        world = World(size=size, ranks=ranks, leader=leader, tensor=tensor, pipeline=stages)
        return engine_process(folder, world=world, rank_address=address, config=config(), **fields)

    # as it happens: the node that does not lead may be there first
    with node([*range(size // 2, size)], FOLLOWER) as second, node([*range(size // 2)], LEADER) as first:
        yield first, second


def completion(handle: EngineHandle, **fields: Any) -> str:
    body = {"model": "tiny", "prompt": "hello there, how are you", "max_tokens": 24, "temperature": 0, **fields}
    status, answer = handle.call("POST", "/v1/completions", body)
    assert status == 200, answer
    return str(json.loads(answer)["choices"][0]["text"])


def ranks_of(handle: EngineHandle) -> list[psutil.Process]:
    children = psutil.Process(handle.process.pid).children(recursive=True)
    return [child for child in children if "runtime.engine.ranks.rank" in child.cmdline()]


def gone(processes: list[psutil.Process]) -> bool:
    return not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in processes)


@pytest.mark.parametrize(("tensor", "stages"), [(1, 2), (2, 2)])
def test_two_nodes_answer_sleep_and_end_as_one(tensor: int, stages: int, llama_folder: Path, served: Any) -> None:
    want = completion(served)
    with two_nodes(llama_folder, tensor, stages) as (leader, follower):
        leader.wait_ready()
        follower.wait_ready()
        assert completion(leader) == want
        assert len(ranks_of(follower)) == tensor
        assert follower.call("POST", "/v1/completions", {"model": "tiny", "prompt": "a"})[0] == 503
        assert leader.call("POST", "/internal/v1/sleep")[0] < 300
        wait_for(lambda: follower.state().phase is Phase.ASLEEP, 10)
        assert completion(leader) == want  # which wakes it
        wait_for(lambda: follower.state().phase is Phase.READY, 10)
        assert follower.call("POST", "/internal/v1/drain")[0] == 202
        assert completion(leader) == want  # the leader ends first
        leader.process.terminate()
        assert leader.process.wait(30) == 0
        assert follower.process.wait(30) == 0


def test_the_end_of_a_rank_ends_both_nodes_with_a_sentence(llama_folder: Path) -> None:
    with two_nodes(llama_folder, 1, 2) as (leader, follower):
        leader.wait_ready()
        (rank,) = ranks_of(follower)
        rank.kill()
        wait_for(lambda: leader.state().phase is Phase.FAILED, 15)
        assert leader.state().message == f"Rank 1 at {FOLLOWER} is gone."
        assert follower.state().message == "Rank 1 of this replica ended with exit code -9."
        assert leader.process.wait(30) == follower.process.wait(30) == errors.EXIT_START_FAILED


def test_the_end_of_the_leader_ends_the_other_node_with_a_sentence(llama_folder: Path) -> None:
    with two_nodes(llama_folder, 1, 2) as (leader, follower):
        leader.wait_ready()
        follower.wait_ready()
        members = ranks_of(follower)
        leader.process.kill()
        wait_for(lambda: follower.state().phase is Phase.FAILED, 15)
        state = follower.state()
        assert (state.reason, state.message.startswith(f"The leader of this replica at {LEADER}:")) == (
            "LeaderGone",
            True,
        )
        assert gone(members)
        assert follower.process.wait(30) == errors.EXIT_START_FAILED


def test_the_end_of_a_node_ends_its_ranks_and_the_leader(llama_folder: Path) -> None:
    with two_nodes(llama_folder, 1, 2) as (leader, follower):
        leader.wait_ready()
        members = ranks_of(follower)
        follower.process.kill()
        wait_for(lambda: leader.state().phase is Phase.FAILED, 15)
        assert leader.state().message == f"Rank 1 at {FOLLOWER} is gone."
        wait_for(lambda: gone(members), 10)


class Hall:
    """The leader's side without a model: who came in, and who did not."""

    def __init__(self, ranks: list[int], patience: float = 60.0, token: str = "secret-token") -> None:
        self.port = free_port()
        self.spec = spec_of(
            World(size=3, ranks=[0], leader=f"{LEADER}:{self.port}", pipeline=3), token=token, rank_address=LEADER
        )
        self.came: dict[int, tuple[socket.socket, str]] = {}
        self.late: list[list[int]] = []
        self.entrance = Entrance(
            (LEADER, self.port),
            handshake.secret_of(self.spec),
            ranks,
            patience=patience,
            on_joined=lambda rank, stream, host: self.came.update({rank: (stream, host)}),
            on_late=self.late.append,
        )

    def call(self, data: bytes = b"") -> tuple[socket.socket, bytes]:
        """Whoever calls: the stream, and what it is asked."""
        stream = socket.create_connection((LEADER, self.port), timeout=20)
        asked = stream.recv(1024)
        stream.sendall(data)
        return stream, asked

    def join(self, rank: int, patience: float = 10.0, **fields: Any) -> socket.socket:
        secret = handshake.secret_of(msgspec.structs.replace(self.spec, **fields))
        return handshake.join((LEADER, self.port), FOLLOWER, secret, rank, patience)


def hung_up(stream: socket.socket) -> bool:
    """True once the other side has ended the stream without a word more."""
    with stream:
        try:
            return stream.recv(1024) == b""
        except ConnectionError:
            return True


def test_strangers_get_nothing_and_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "EXCHANGE_SECONDS", 2.0)
    hall = Hall([1, 2])
    silent, asked = hall.call()
    assert len(asked) < 64  # a random number, and nothing of the replica
    garbage = [hall.call(data)[0] for data in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096, b"\x04\x00\x00\x00abcd")]
    lying = handshake.encoded(handshake.Response(rank=1, nonce=NUMBER, proof=b"p" * 32))
    assert all(hung_up(stream) for stream in [*garbage, hall.call(lying)[0]])
    for wrong in ({"token": "another"}, {"generation": 4}, {"replica_id": "replica-2"}):
        with pytest.raises(handshake.Refused, match="refuses this rank"):
            hall.join(1, 0.0, **wrong)
    assert hung_up(silent)
    assert hall.came == {}
    with hall.join(1):
        wait_for(lambda: 1 in hall.came, 10)
        with pytest.raises(handshake.Refused, match="refuses this rank"):
            hall.join(1, 0.0)  # once each
        with pytest.raises(handshake.Refused, match="refuses this rank"):
            hall.join(0, 0.0)  # and nobody who is not waited for
        with hall.join(2):
            wait_for(lambda: set(hall.came) == {1, 2}, 10)
    assert {host for _stream, host in hall.came.values()} == {FOLLOWER}
    wait_for(lambda: not listens(hall.port), 10)  # all have come: nobody is let in any more
    assert hall.late == []


def listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex((LEADER, port)) == 0


def test_a_crowd_of_strangers_leaves_room_for_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "EXCHANGE_SECONDS", 1.0)
    monkeypatch.setattr(entrance, "MAX_CALLERS", 4)
    hall = Hall([1])
    crowd = [socket.create_connection((LEADER, hall.port), timeout=20) for _ in range(12)]
    heard = [stream.recv(1024) for stream in crowd]
    assert sum(1 for each in heard if each) == 4  # the others are turned away at once
    with hall.join(1):  # as soon as the time of the first is over
        wait_for(lambda: 1 in hall.came, 10)
    for stream in crowd:
        stream.close()


def test_a_proof_is_for_one_side_one_rank_and_one_exchange() -> None:
    secret = handshake.Secret(b"k" * 32)
    other = b"m" * 32
    proofs = {
        secret.of_rank(1, NUMBER, other),
        secret.of_rank(2, NUMBER, other),
        secret.of_rank(1, other, NUMBER),
        secret.of_leader(1, NUMBER, other),
        handshake.Secret(b"l" * 32).of_rank(1, NUMBER, other),
    }
    assert len(proofs) == 5
    with pytest.raises(errors.StartError, match="token"):
        handshake.secret_of(spec_of(World(size=2, ranks=[0], leader="10.0.0.1:29500", pipeline=2), token=""))


def test_who_does_not_come_is_named_and_who_waits_for_no_leader_says_so(tmp_path: Path) -> None:
    hall = Hall([1, 2], patience=0.3)
    wait_for(lambda: hall.late == [[1, 2]], 10)
    said: list[str] = []
    spec = msgspec.structs.replace(hall.spec, address_file=str(tmp_path / "address.json"))
    team = Team(spec, Split(stages=3), said.append, patience=0.3)
    with pytest.raises(errors.StartError, match="Of the ranks of this replica, 1, 2 did not come within 0 seconds"):
        team.held()
    wait_for(lambda: len(said) == 1, 10)
    team.close()
    world = World(size=2, ranks=[1], leader=f"{LEADER}:{free_port()}", pipeline=2)
    spec = spec_of(world, rank_address=FOLLOWER, address_file=str(tmp_path / "address.json"))
    host = Host(spec, lambda _phase, _share: None, lambda _reason, _why: None, patience=0.1)
    with pytest.raises(errors.StartError, match=r"Rank 1 has called the leader .* in vain") as caught:
        host.start()
    assert caught.value.reason == "LeaderUnreachable"


def test_an_impostor_in_the_place_of_the_leader_learns_nothing_and_gets_no_rank() -> None:
    heard: list[bytes] = []
    with socket.create_server((LEADER, 0)) as door:

        def pretend() -> None:
            stream, _peer = door.accept()
            with stream:
                stream.sendall(handshake.encoded(handshake.Challenge(NUMBER)))
                heard.append(stream.recv(1024))
                stream.sendall(handshake.encoded(handshake.Welcome(b"w" * 32)))

        thread = threading.Thread(target=pretend)
        thread.start()
        spec = spec_of(World(size=2, ranks=[1], leader="", pipeline=2))
        with pytest.raises(handshake.Refused, match="not the leader"):
            handshake.join(door.getsockname(), FOLLOWER, handshake.secret_of(spec), 1, 0.0)
        thread.join(10)
    assert spec.token.encode() not in heard[0]


def test_a_silent_machine_is_noticed_within_a_minute() -> None:
    hall = Hall([1])
    with hall.join(1) as stream:
        wait_for(lambda: 1 in hall.came, 10)
        for end in (stream, hall.came[1][0]):
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            kept = [end.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in KEPT]
            assert kept[0] + kept[1] * kept[2] <= streams.SILENCE_SECONDS
            assert kept[3] == streams.SILENCE_SECONDS * 1000 <= 60_000


KEPT = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


@pytest.fixture
def cable() -> Iterator[tuple[str, str]]:
    """Two machines, as far as the network goes, with a cable between them: 10.9.0.1 and 10.9.0.2."""
    names = (f"mp-{os.getpid()}-a", f"mp-{os.getpid()}-b")
    ends = (f"mp{os.getpid()}a", f"mp{os.getpid()}b")
    if os.geteuid() != 0 or shutil.which("ip") is None or not ip("netns", "add", names[0]):
        pytest.skip("needs root and network namespaces")
    try:
        ip("netns", "add", names[1])
        ip("link", "add", ends[0], "netns", names[0], "type", "veth", "peer", "name", ends[1], "netns", names[1])
        for number, (name, end) in enumerate(zip(names, ends, strict=True), start=1):
            ip("-n", name, "addr", "add", f"10.9.0.{number}/24", "dev", end)
            assert all(ip("-n", name, "link", "set", each, "up") for each in ("lo", end))
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


def test_a_cable_that_is_cut_ends_the_replica_on_both_nodes(llama_folder: Path, cable: tuple[str, str]) -> None:
    def node(rank: int) -> Any:
        world = World(size=2, ranks=[rank], leader="10.9.0.1:29500", pipeline=2)
        through = ("ip", "netns", "exec", cable[rank])
        address = f"10.9.0.{rank + 1}"
        return engine_process(llama_folder, through=through, world=world, rank_address=address, config=config())

    with node(1) as follower, node(0) as leader:
        wait_for(lambda: "engine_ready" in (leader.folder / "log").read_text())
        for handle in (leader, follower):
            assert not (handle.folder / FAILURE_FILE).exists()
        assert ip("-n", cable[1], "link", "set", f"mp{os.getpid()}b", "down")
        said = []
        for handle in (leader, follower):
            wait_for((handle.folder / FAILURE_FILE).exists, 90)
            state = msgspec.json.decode((handle.folder / FAILURE_FILE).read_bytes(), type=EngineState)
            said.append((state.reason, state.message))
        assert said == [
            ("EngineFailed", "Rank 1 at 10.9.0.2 is gone."),
            ("LeaderGone", "The leader of this replica at 10.9.0.1:29500 is gone."),
        ]


def test_the_interface_of_an_address_is_found_or_its_lack_is_said() -> None:
    assert interface_of("") == interface_of(FOLLOWER) == "lo"
    with pytest.raises(errors.StartError, match=r"No network interface .* 192\.0\.2\.1"):
        interface_of("192.0.2.1")


def test_frames_of_strangers_are_bounded() -> None:
    with pytest.raises(orders.Closed, match="none of ours"):
        orders.length_of(b"\xff\xff\xff\xff")
    with pytest.raises(orders.Closed, match="none of ours"):
        orders.length_of((handshake.MAX_BYTES + 1).to_bytes(4, "little"), handshake.MAX_BYTES)
