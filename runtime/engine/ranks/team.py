"""The leader's side of a replica with several ranks: it starts those of its node and waits for those of others, tells
all what to do, and ends with them.

A rank that ends, or a step that one of them cannot compute, ends the replica: what the others wait for will never come.
"""

import contextlib
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from runtime.base import listening, logs
from runtime.engine import errors
from runtime.engine.causal import attention
from runtime.engine.causal.runner import Runner
from runtime.engine.causal.scheduler import StepPlan
from runtime.engine.causal.steps import OutOfMemory, StepResult
from runtime.engine.ranks import handshake, orders, spawning, split, streams
from runtime.engine.ranks.entrance import Entrance
from runtime.engine.ranks.peers import Peers, open_store
from runtime.wire.inference import EngineSpec

_log = logs.get(__name__)

_GOODBYE_SECONDS: Final = 5.0
#: So long ranks of other nodes may take to come: their nodes fetch the model first. Agents wait half an hour.
PATIENCE_SECONDS: Final = 1500.0
_BACKLOG: Final = 128


class TeamBroken(RuntimeError):
    """A rank is gone or could not do what it was told."""


class Member:
    """One other rank and the channel to it: with its process, or with the address of its node."""

    def __init__(
        self, rank: int, channel: socket.socket, process: subprocess.Popen[bytes] | None = None, host: str = ""
    ) -> None:
        self.rank = rank
        self.channel = channel
        self.process = process
        self.name = f"Rank {rank} at {host}" if host else f"Rank {rank}"

    def answer(self) -> orders.Answer:
        """What it says next.

        Raises:
            TeamBroken: nothing any more.
        """
        try:
            return orders.receive_answer(self.channel)
        except orders.Closed as exc:
            raise TeamBroken(f"{self.name} has ended ({exc}).") from exc


class Team:
    """All ranks but the leader's own. ``on_broken`` is called once, with a sentence, when they cannot go on.

    Raises:
        errors.StartError: the processes of this node cannot start, or nobody can be waited for at the leader's address.
    """

    def __init__(
        self,
        spec: EngineSpec,
        mine: split.Split,
        on_broken: Callable[[str], None],
        *,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self.split = mine
        self.peers: Peers | None = None
        self._folder = Path(spec.address_file).parent
        self._on_broken = on_broken
        self._why = ""
        self._closing = False
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._members: list[Member] = []
        self._entrance: Entrance | None = None
        here = split.here_of(spec.world)
        away = [rank for rank in range(mine.size) if rank not in here]
        self._address = split.leader_of(spec.world)[0] if away and spec.world is not None else ""
        try:
            if away:
                self._entrance = self._open(spec, away, patience)
            told = spawning.told_of(spec)
            for rank in here:
                if rank != mine.rank:
                    self._add(_start(rank, told))
        except OSError as exc:
            self.close()
            raise errors.StartError("EngineFailed", f"The processes of the other ranks cannot start: {exc}.") from exc

    def _open(self, spec: EngineSpec, away: list[int], patience: float) -> Entrance:
        assert spec.world is not None

        def late(missing: list[int]) -> None:
            these = ", ".join(map(str, missing))
            self.broke(
                f"Of the ranks of this replica, {these} did not come within {patience:.0f} seconds: see the nodes that "
                "run them."
            )

        return Entrance(
            split.leader_of(spec.world),
            handshake.secret_of(spec),
            away,
            patience=patience,
            on_joined=lambda rank, channel, host: self._add(Member(rank, channel, host=host)),
            on_late=late,
        )

    def _add(self, member: Member) -> None:
        with self._changed:
            self._members.append(member)
            closing = self._closing
            self._changed.notify_all()
        if closing:
            member.channel.close()
            return
        _log.info("rank_joined", rank=member.name)
        if member.process is None:
            streams.on_end(member.channel, lambda: self.broke(f"{member.name} is gone."), f"rank-{member.rank}")
        else:
            threading.Thread(target=self._watch, args=(member,), name=f"rank-{member.rank}", daemon=True).start()

    def meet(self, device: torch.device) -> Peers:
        """Join the others for the sums of the forward pass; all come, or the wait ends with one of them."""
        listener: socket.socket | None = None
        if self._address:
            listener = listening.bind(self._address, 0)
            listener.listen(_BACKLOG)
            where = f"tcp://{self._address}:{listener.getsockname()[1]}"
        else:
            meeting = self._folder / "ranks.meeting"
            meeting.unlink(missing_ok=True)
            where = meeting.as_uri()
        self.tell(orders.Meet(where))
        self.peers = Peers(self.split, open_store(where, self.split.size, listener), self._address, device)
        return self.peers

    def held(self) -> list[orders.Held]:
        """What each rank holds, once all have come and loaded.

        Raises:
            errors.StartError: one cannot.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closing or len(self._members) == self.split.size - 1)
            if self._closing:
                raise errors.StartError("EngineFailed", self._why or "The ranks of this replica were ended.")
            self._members.sort(key=lambda member: member.rank)
        return [self._loaded(member) for member in self._members]

    @staticmethod
    def _loaded(member: Member) -> orders.Held:
        while True:
            try:
                answer = member.answer()
            except TeamBroken as exc:
                raise errors.StartError("EngineFailed", str(exc)) from exc
            if isinstance(answer, orders.Held):
                return answer
            if isinstance(answer, orders.Done):
                raise errors.StartError(answer.reason, f"{member.name}: {answer.message}")

    def tell(self, order: orders.Order) -> None:
        """Send ``order`` to all.

        Raises:
            TeamBroken: somebody is gone.
        """
        with self._telling:  # whole frames, and all ranks in the same order
            for member in self._members:
                try:
                    orders.send(member.channel, order)
                except orders.Closed as exc:
                    raise TeamBroken(f"{member.name} has ended ({exc}).") from exc

    def done(self) -> int:
        """Wait until all have carried out the last order; bytes that they freed.

        Raises:
            OutOfMemory: one had no memory for it.
            TeamBroken: one could not, or is gone.
        """
        freed, missing = 0, ""
        for member in self._members:
            answer = member.answer()
            if not isinstance(answer, orders.Done) or (answer.reason and not answer.memory):
                raise TeamBroken(f"{member.name} did not do what it was told: {answer}.")
            missing = missing or answer.message
            freed += answer.freed
        if missing:
            raise OutOfMemory(missing)
        return freed

    def do(self, order: orders.Order) -> int:
        """:meth:`tell` and :meth:`done`."""
        self.tell(order)
        return self.done()

    def broke(self, why: str) -> None:
        """Nobody can go on; once."""
        with self._changed:
            if self._closing:
                return
            self._closing, self._why = True, why
            self._changed.notify_all()
        _log.error("ranks_broken", message=why)
        self._hang_up()
        self._on_broken(why)

    def _watch(self, member: Member) -> None:
        assert member.process is not None
        code = member.process.wait()
        self.broke(f"Rank {member.rank} of this replica ended with exit code {code}.")

    def close(self) -> None:
        """End all: their channel ends, and who does not leave is killed."""
        if self._entrance is not None:
            self._entrance.close()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._hang_up()
        for member in self._members:
            if member.process is None:
                continue
            try:
                member.process.wait(_GOODBYE_SECONDS)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()

    def _hang_up(self) -> None:
        """The others end by the end of their channels, whatever they wait for."""
        for member in list(self._members):
            with contextlib.suppress(OSError):
                member.channel.shutdown(socket.SHUT_RDWR)


class TeamRunner(Runner):
    """The runner of the leader: what it does to its own cache and weights, all do."""

    def __init__(self, team: Team, runner: Runner) -> None:
        super().__init__(runner.model, runner.cache, runner.block_tokens, runner.eos_ids)
        self._team = team

    def run(self, plan: StepPlan) -> StepResult:
        """As its base; without a way back, since others have begun the same step.

        Raises:
            TeamBroken: the step failed; the replica ends.
        """
        try:
            return super().run(plan)
        except BaseException as exc:  # the boundary of a step that others have begun: whatever it was, the replica ends
            self._team.broke(f"A step failed in one rank: {type(exc).__name__}: {exc}")
            raise TeamBroken(str(exc)) from exc

    def forward(self, batch: attention.StepBatch) -> torch.Tensor:
        """Tell the others first: they compute their part of it."""
        self._team.tell(orders.packed(batch))
        return super().forward(batch)

    def give_back(self, blocks: list[int], moves: dict[int, int]) -> int:
        """As its base, everywhere; bytes of this rank's device."""
        self._team.do(orders.GiveBack(blocks=blocks, moves=moves))
        return super().give_back(blocks, moves)

    def scrub(self, blocks: list[int]) -> None:
        """As its base, everywhere."""
        self._team.do(orders.Scrub(blocks))
        super().scrub(blocks)

    def sleep(self) -> bool:
        """As its base, everywhere; who cannot ends the replica."""
        try:
            self._team.do(orders.Sleep())
            return super().sleep()
        except (OutOfMemory, MemoryError, RuntimeError) as exc:
            self._team.broke(f"A rank cannot sleep: {exc}")
            raise

    def wake(self) -> None:
        """As its base, everywhere: nobody is awake before all are.

        Raises:
            OutOfMemory: one has no room; all sleep on.
        """
        super().wake()
        try:
            self._team.do(orders.Wake())
        except OutOfMemory:
            self._team.do(orders.Sleep())
            super().sleep()
            raise

    def close(self) -> None:
        """End the others."""
        self._team.close()


def _start(rank: int, spec_file: Path) -> Member:
    """The process of a rank of this node, with a pair of sockets to it.

    Raises:
        OSError: it cannot be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        return Member(rank, ours, spawning.spawn(rank, spec_file, theirs))
