"""A node that does not lead: it brings its ranks to the leader, starts them, and says how they are.

The engine process of such a node has no model and takes no requests. Every rank gets a stream of its own to the leader,
opened and proved here, so that the replica's token stays in this process. The node is ready when the leader has
answered once with all ranks, and ends when one of them or the leader does.
"""

import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runtime.base import logs
from runtime.engine import errors
from runtime.engine.ranks import handshake, orders, spawning, split
from runtime.wire.inference import EngineSpec
from runtime.wire.reports import Phase

_log = logs.get(__name__)

#: So long the leader may take to be there: its node fetches the model first. Agents wait half an hour for an engine.
PATIENCE_SECONDS: Final = 1500.0

Report = Callable[[Phase, float | None], None]
Ended = Callable[[str, str], None]


class Host:
    """The ranks of this node. ``on_ended`` is called once, with a reason and a sentence, when they cannot go on."""

    def __init__(
        self, spec: EngineSpec, report: Report, on_ended: Ended, *, patience: float = PATIENCE_SECONDS
    ) -> None:
        self._spec = spec
        self._report = report
        self._on_ended = on_ended
        self._patience = patience
        self._lock = threading.Lock()
        self._ended = False
        self._shares: dict[int, float] = {}
        self._held: set[int] = set()
        self._phases: dict[int, Phase] = {}

    def start(self) -> None:
        """Bring all ranks to the leader and start them; what becomes of them is reported from other threads.

        Raises:
            errors.StartError: the leader is not there, or a process cannot start.
        """
        world = self._spec.world
        assert world is not None
        split.of_world(world)
        told = spawning.told_of(self._spec)
        self._report(Phase.LOADING, 0.0)
        for rank in world.ranks:
            with self._join(rank, split.leader_of(world)) as channel:
                self._spawn(rank, told, channel)

    def _join(self, rank: int, leader: tuple[str, int]) -> socket.socket:
        try:
            return handshake.join(
                leader,
                self._spec.rank_address,
                handshake.secret_of(self._spec),
                rank,
                self._patience,
                lambda: self._ended,
            )
        except handshake.Refused as exc:
            raise errors.StartError(
                "LeaderUnreachable",
                f"Rank {rank} has called the leader of this replica at {leader[0]}:{leader[1]} in vain for "
                f"{self._patience:.0f} seconds: {exc}.",
            ) from exc

    def _spawn(self, rank: int, told: Path, channel: socket.socket) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = spawning.spawn(rank, told, channel, theirs)
            except OSError as exc:
                raise errors.StartError("EngineFailed", f"The process of rank {rank} cannot start: {exc}.") from exc
        args = (rank, ours, process)
        threading.Thread(target=self._follow, args=args, name=f"rank-{rank}", daemon=True).start()

    def _follow(self, rank: int, told: socket.socket, process: "subprocess.Popen[bytes]") -> None:
        """Hear a rank until it ends."""
        try:
            while True:
                match orders.receive_answer(told):
                    case orders.Loading(share):
                        self._loading(rank, share)
                    case orders.Held():
                        self._loading(rank, 1.0)
                        self._has(rank)
                    case orders.Now(phase):
                        self._is(rank, phase)
                    case orders.Done(reason=reason, message=message) if reason:
                        self._end(reason, f"Rank {rank}: {message}")
        except orders.Closed:
            code = process.wait()
        if code:
            self._end("RankEnded", f"Rank {rank} of this replica ended with exit code {code}.")
        else:
            self._end("LeaderGone", f"The leader of this replica at {self._leader} is gone.")

    @property
    def _leader(self) -> str:
        return self._spec.world.leader if self._spec.world is not None else ""

    def _loading(self, rank: int, share: float) -> None:
        with self._lock:
            self._shares[rank] = share
            whole = sum(self._shares.values()) / len(split.here_of(self._spec.world))
        self._report(Phase.LOADING, whole)

    def _has(self, rank: int) -> None:
        with self._lock:
            self._held.add(rank)
            all_there = len(self._held) == len(split.here_of(self._spec.world))
        if all_there:
            self._report(Phase.WARMING, 0.0)

    def _is(self, rank: int, phase: Phase) -> None:
        """The replica is in ``phase`` once all ranks of this node have heard so."""
        with self._lock:
            self._phases[rank] = phase
            heard = list(self._phases.values())
        if heard.count(phase) == len(split.here_of(self._spec.world)):
            self._report(phase, None)

    def _end(self, reason: str, message: str) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
        _log.warning("ranks_ended", reason=reason, message=message)
        self._on_ended(reason, message)
