"""Carrying a plan out. One method per action; none of them decides anything.

What takes long (fetching, a trial inference) runs as a task of the slot and leaves its outcome there for the next
round; what is quick happens at once. Everything durable is written before the effect it announces.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from runtime.agent import paths, views
from runtime.agent.errors import Fault, LinkError, Retry
from runtime.agent.fetch import Fetcher
from runtime.agent.probe import Prober
from runtime.agent.records import Records
from runtime.agent.replicas import Running, Slot
from runtime.agent.starting import Starter
from runtime.agent.store import ArtifactStore
from runtime.agent.views import Policy, Work
from runtime.base import logs
from runtime.base.clock import Clock
from runtime.wire.assignments import Desired
from runtime.wire.devices import DeviceReport
from runtime.wire.reports import Phase

log = logs.get(__name__)


class Applier:
    """Owns the slots. ``devices`` is the last scan, kept up to date by the loop; ``wake`` asks for another round."""

    def __init__(
        self,
        *,
        slots: dict[str, Slot],
        clock: Clock,
        policy: Policy,
        records: Records,
        store: ArtifactStore,
        fetcher: Fetcher,
        prober: Prober,
        starter: Starter,
        wake: Callable[[], None],
    ) -> None:
        self.slots = slots
        self.devices: Mapping[str, DeviceReport] = {}
        self._clock = clock
        self._policy = policy
        self._records = records
        self._store = store
        self._fetcher = fetcher
        self._prober = prober
        self._starter = starter
        self._wake = wake
        self._refused: set[tuple[str, int]] = set()

    def apply(self, actions: Sequence[views.Action]) -> None:
        """Carry out every action in order; a fault of one replica stays with that replica."""
        changed = False
        for action in actions:
            try:
                self._one(action)
            except Exception:  # boundary: a disk that is full or a mistake here must not keep the others waiting
                log.exception("action_failed", action=type(action).__name__)
            else:
                changed = changed or not isinstance(action, views.Refuse)
        if changed:
            self._wake()

    def _one(self, action: views.Action) -> None:
        match action:
            case views.Create():
                self._create(action)
            case views.Refuse():
                self._refuse(action)
            case views.Renew():
                self._renew(self.slots[action.assignment.replica_id], action)
            case views.Drain():
                self._drain(self.slots[action.replica_id], action)
            case views.Launch():
                self._launch(self.slots[action.replica_id])
            case views.Forget():
                self._forget(self.slots.pop(action.replica_id))
            case _:
                self._simple(self.slots[action.replica_id], action)

    def _simple(self, slot: Slot, action: views.Action) -> None:
        now = self._clock.monotonic()
        match action:
            case views.Fetch():
                slot.files = Work.RUNNING
                self._start(slot, self._fetch(slot))
            case views.Verify():
                slot.verify = Work.RUNNING
                self._start(slot, self._verify(slot))
            case views.Terminate():
                self._terminate(slot, action, now)
            case views.Kill() if slot.running:
                slot.running.kill_at = now
                slot.running.process.signal(signal.SIGKILL)
                self._starter.kill(slot)
            case views.Settle():
                self._settle(slot, action, now)
            case views.Fail():
                slot.fault, slot.files = None, Work.NONE
                slot.faults += 1
                slot.retry_at, slot.blocked = action.retry_at, action.blocked
                slot.move(action.phase, action.reason, action.message, now)
            case views.Move():
                self._move(slot, action, now)
            case views.Forgive():
                slot.crashes = 0
                slot.save()

    # Taking on and giving up

    def _create(self, action: views.Create) -> None:
        assignment = action.assignment
        try:
            folder = self._records.folder(assignment.replica_id)
        except Fault as fault:  # an id that cannot be a folder: nothing can be kept about it
            log.warning("assignment_refused", reason=fault.reason, message=fault.message)
            return
        run = assignment.desired is Desired.RUN
        slot = Slot(
            assignment=assignment,
            folder=folder,
            phase=Phase.FETCHING if run else Phase.STOPPED,
            since=self._clock.monotonic(),
            reason="" if run else "NotRunning",
            retry_at=action.not_before,
        )
        slot.save()
        self.slots[slot.id] = slot
        self.hold(slot)

    def hold(self, slot: Slot) -> None:
        """Keep the artifacts of a slot that wants to run."""
        if slot.assignment.desired is Desired.RUN:
            self._store.hold(slot.id, slot.assignment.artifacts)
        else:
            self._store.release(slot.id)

    def _refuse(self, action: views.Refuse) -> None:
        key = (action.replica_id, action.generation)
        if key not in self._refused and len(self._refused) < 1024:
            self._refused.add(key)
            log.warning(
                "older_generation_refused",
                replica=action.replica_id,
                generation=action.generation,
                newest=action.newest,
            )

    def _renew(self, slot: Slot, action: views.Renew) -> None:
        newer = action.assignment.generation > slot.assignment.generation
        slot.assignment = action.assignment
        if newer:
            slot.fault, slot.blocked, slot.faults = None, False, 0
            slot.retry_at = action.not_before
            if action.assignment.desired is Desired.RUN:
                slot.cancel_work()
                slot.files, slot.fetched, slot.verify, slot.crashes = Work.NONE, 0.0, Work.NONE, 0
                if slot.phase is not Phase.FETCHING:
                    slot.move(Phase.FETCHING, "", "", self._clock.monotonic())
        self.hold(slot)
        slot.save()

    def _forget(self, slot: Slot) -> None:
        slot.cancel_work()
        self._store.release(slot.id)
        slot.folder.remove()
        self._store.sweep_partials()
        log.info("replica_forgotten", replica=slot.id)

    def _move(self, slot: Slot, action: views.Move, now: float) -> None:
        if action.phase is Phase.STOPPED:
            slot.cancel_work()
            slot.files, slot.fault = Work.NONE, None
        if action.phase is Phase.FETCHING:
            slot.files, slot.blocked = Work.NONE, False
        if action.reason == "EngineSilent":  # whoever fell silent proves itself again
            slot.verify, slot.verify_failures = Work.NONE, 0
        slot.move(action.phase, action.reason, action.message, now)

    # Files

    async def _fetch(self, slot: Slot) -> None:
        artifacts = slot.assignment.artifacts
        try:
            for artifact in artifacts:
                paths.safe_relative(artifact.path)
                paths.safe_sha256(artifact.sha256)
            await self._fetcher.fetch_all(artifacts, lambda done: setattr(slot, "fetched", done))
            await asyncio.to_thread(self._store.assemble, artifacts, slot.folder.model)
            await self._starter.prepare(slot)
        except Fault as fault:
            slot.fault = fault
        except LinkError as exc:
            slot.fault = Fault("ArtifactUnavailable", f"the control plane did not deliver a file: {exc}", Retry.SOON)
        except OSError as exc:
            slot.fault = Fault("DiskError", f"the artifact store cannot be written: {exc}")
        slot.files = Work.NONE if slot.fault else Work.DONE

    # The engine

    def _launch(self, slot: Slot) -> None:
        try:
            self._starter.start(slot, self.devices, taken={item.uid for item in self.slots.values()})
        except Fault as fault:
            slot.fault = fault
            return
        except OSError as exc:
            slot.fault = Fault("LaunchFailed", f"the engine process could not be started: {exc}")
            return
        slot.faults, slot.drain_at, slot.silent_since, slot.engine = 0, None, None, None
        slot.verify, slot.verify_failures, slot.verify_at = Work.NONE, 0, 0.0
        slot.save()
        slot.move(Phase.LOADING, slot.reason if slot.restarts else "", slot.message, self._clock.monotonic())

    async def _verify(self, slot: Slot) -> None:
        run = slot.running
        if run is None:
            return
        why = await self._prober.verify(
            run.url,
            run.token,
            model=slot.assignment.served_name,
            request_id=f"agent-{os.urandom(8).hex()}",
        )
        if slot.running is not run:
            return  # the engine asked is gone; its answer says nothing about the next
        if why:
            slot.verify, slot.verify_failures = Work.NONE, slot.verify_failures + 1
            slot.verify_at = self._clock.monotonic() + self._policy.verify_pause
            if slot.phase in {Phase.WARMING, Phase.DEGRADED}:
                slot.move(slot.phase, "InferenceFailed", why, self._clock.monotonic())
            return
        slot.verify, slot.verify_failures = Work.DONE, 0
        slot.save()

    def _drain(self, slot: Slot, action: views.Drain) -> None:
        slot.move(Phase.DRAINING, action.reason, action.message, self._clock.monotonic())
        if slot.running is not None:
            self._start(slot, self._ask_to_drain(slot, slot.running))

    async def _ask_to_drain(self, slot: Slot, run: Running) -> None:
        refused = await self._prober.drain(run.url, run.token)
        if refused:  # the drain time runs all the same, and then the engine is ended
            log.warning("drain_refused", replica=slot.id, message=refused)
        slot.drain_at = self._clock.monotonic()

    def _terminate(self, slot: Slot, action: views.Terminate, now: float) -> None:
        run = slot.running
        if run is None:
            return
        run.term_at = now
        if action.fault:
            run.end_reason, run.end_message = action.reason, action.message
        slot.move(action.phase, action.reason, action.message, now)
        run.process.signal(signal.SIGTERM)

    def _settle(self, slot: Slot, action: views.Settle, now: float) -> None:
        slot.cancel_work()
        slot.running, slot.engine, slot.silent_since, slot.drain_at = None, None, None, None
        slot.files, slot.verify = Work.NONE, Work.NONE
        slot.retry_at = action.retry_at
        if action.crashed:
            slot.restarts += 1
            slot.crashes += 1
        slot.folder.address.unlink(missing_ok=True)
        self._starter.ended(slot)
        slot.save()
        slot.move(action.phase, action.reason, action.message, now)

    # Work in the background

    def _start(self, slot: Slot, work: Coroutine[Any, Any, None]) -> None:
        async def run() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except Exception as exc:  # boundary: recorded as a fault of this replica, which is tried again
                log.exception("replica_work_failed", replica=slot.id)
                if slot.running is None:
                    slot.fault = Fault("AgentError", f"the agent failed at this replica: {exc}")
                    slot.files = Work.NONE
                else:
                    slot.verify, slot.verify_failures = Work.NONE, slot.verify_failures + 1
            finally:
                self._wake()

        task = asyncio.create_task(run())
        slot.tasks.add(task)
        task.add_done_callback(slot.tasks.discard)

    async def close(self) -> None:
        """Stop all background work; engines go on."""
        tasks = [task for slot in self.slots.values() for task in slot.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
