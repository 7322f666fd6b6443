"""The leader's side of a replica with several ranks: it starts them, tells them what to do, and ends with them.

A rank that ends, or a step that one of them cannot compute, ends the replica: what the others wait for will never come.
"""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from runtime.base import lifeline, logs
from runtime.engine import errors
from runtime.engine.causal import attention
from runtime.engine.causal.runner import Runner
from runtime.engine.causal.scheduler import StepPlan
from runtime.engine.causal.steps import OutOfMemory, StepResult
from runtime.engine.ranks import orders
from runtime.engine.ranks.peers import Peers
from runtime.engine.ranks.split import Split

_log = logs.get(__name__)

_GOODBYE_SECONDS: Final = 5.0


class TeamBroken(RuntimeError):
    """A rank is gone or could not do what it was told."""


class Member:
    """One other rank: its process and the channel to it."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.rank = rank
        self.process = process
        self.channel = channel

    def answer(self) -> orders.Answer:
        """What it says next.

        Raises:
            TeamBroken: nothing any more.
        """
        try:
            return orders.receive_answer(self.channel)
        except orders.Closed as exc:
            raise TeamBroken(f"Rank {self.rank} has ended ({exc}).") from exc


class Team:
    """All ranks but the leader's own. ``on_broken`` is called once, with a sentence, when they cannot go on."""

    def __init__(self, split: Split, spec_file: Path, meeting: Path, on_broken: Callable[[str], None]) -> None:
        self.split = split
        self.peers: Peers | None = None
        self._meeting = meeting
        self._on_broken = on_broken
        self._closing = False
        self._lock = threading.Lock()
        self._members: list[Member] = []
        try:
            for rank in range(1, split.size):
                self._members.append(_start(rank, spec_file, meeting))
        except OSError as exc:
            self.close()
            raise errors.StartError("EngineFailed", f"The processes of the other ranks cannot start: {exc}.") from exc
        for member in self._members:
            threading.Thread(target=self._watch, args=(member,), name=f"rank-{member.rank}", daemon=True).start()

    def meet(self, device: torch.device) -> Peers:
        """Join the others for the sums of the forward pass; all come, or the wait ends with one of them."""
        self.peers = Peers(self.split, self._meeting, device)
        return self.peers

    def held(self) -> list[orders.Held]:
        """What each rank holds, once all have loaded.

        Raises:
            errors.StartError: one cannot.
        """
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
                raise errors.StartError(answer.reason, f"Rank {member.rank}: {answer.message}")

    def tell(self, order: orders.Order) -> None:
        """Send ``order`` to all.

        Raises:
            TeamBroken: somebody is gone.
        """
        for member in self._members:
            try:
                orders.send(member.channel, order)
            except orders.Closed as exc:
                raise TeamBroken(f"Rank {member.rank} has ended ({exc}).") from exc

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
                raise TeamBroken(f"Rank {member.rank} did not do what it was told: {answer}.")
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
        with self._lock:
            if self._closing:
                return
            self._closing = True
        _log.error("ranks_broken", message=why)
        self._on_broken(why)

    def _watch(self, member: Member) -> None:
        code = member.process.wait()
        self.broke(f"Rank {member.rank} of this replica ended with exit code {code}.")

    def close(self) -> None:
        """End all: their channel ends, and who does not leave is killed."""
        with self._lock:
            self._closing = True
        for member in self._members:
            with contextlib.suppress(OSError):
                member.channel.shutdown(socket.SHUT_RDWR)
            member.channel.close()
        for member in self._members:
            try:
                member.process.wait(_GOODBYE_SECONDS)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()


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


def _start(rank: int, spec_file: Path, meeting: Path) -> Member:
    ours, theirs = socket.socketpair()
    watched = lifeline.inherited_fd()
    with theirs:
        command = [sys.executable, "-m", "runtime.engine.ranks.rank", "--spec", str(spec_file)]
        command += ["--rank", str(rank), "--channel", str(theirs.fileno()), "--meeting", str(meeting)]
        kept = (theirs.fileno(),) if watched is None else (theirs.fileno(), watched)
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=kept)
    return Member(rank, process, ours)
