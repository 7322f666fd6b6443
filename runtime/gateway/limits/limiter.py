"""The limiter that requests meet: shared counters where they answer, this gateway's share where they do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from runtime.base import logs
from runtime.base.clock import Clock
from runtime.gateway.auth import Caller
from runtime.gateway.files import write_private
from runtime.gateway.limits import words
from runtime.gateway.limits.backlog import APPLY, RESERVE, Op
from runtime.gateway.limits.counters import Counters, CountersDown, Reserved
from runtime.gateway.limits.local import LocalBook, holds_of
from runtime.gateway.limits.terms import Demand, Lease, Standing, Subject, Terms, Verdict, terms_of
from runtime.gateway.limits.window import BUCKET_SECONDS, SLOTS, bucket_at
from runtime.wire.inference import Usage
from runtime.wire.routes import KeyEntry, TenantEntry, TokenPrice

log = logs.get(__name__)

_MAX_TERMS: Final = 50_000
_LARGEST: Final = 2**63 - 1


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """``url`` names the shared counters; without it limits are counted in this process alone.

    ``refuse_when_down`` refuses limited callers while the counters are gone, instead of serving this gateway's share.
    ``gateways`` is how many share a limit before the counters have told. ``memory`` is a file that lasts over restarts.
    """

    url: str = ""
    timeout_seconds: float = 0.25
    lease_seconds: float = 10.0
    refuse_when_down: bool = False
    gateways: int = 1
    memory: Path | None = None


class _Memory(msgspec.Struct):
    """What a later process of this gateway should know: under which name this one held limits, and how many shared."""

    holder: str = ""
    gateways: int = 0


class Limiter:
    """Takes before work starts, settles on every exit. A caller without any limit costs nothing."""

    def __init__(
        self, clock: Clock, options: Options | None = None, *, on_alert: Callable[[str], None] | None = None
    ) -> None:
        self._clock = clock
        self._options = options or Options()
        self._on_alert = on_alert or (lambda _word: None)
        self._memory = _recall(self._options.memory)
        self._book = LocalBook(clock, self._share)
        self._terms: dict[str, tuple[KeyEntry, TenantEntry, Terms, list[Any]]] = {}
        self._live: set[Lease] = set()
        self._skew: float | None = None  # the counters' seconds minus this process's
        self._counters: Counters | None = None

    # --- state ---

    @property
    def shared(self) -> bool:
        """True while limits are counted together with the other gateways."""
        return self._counters is not None and self._counters.up

    @property
    def gateways(self) -> int:
        """How many gateways share the limits, as far as is known."""
        known = self._counters.gateways if self._counters is not None else 0
        return max(1, known or self._memory.gateways or self._options.gateways)

    def _share(self) -> int:
        return self.gateways if self._options.url else 1

    async def start(self) -> None:
        """Meet the counters, if there are any; returns in any case."""
        options = self._options
        if not options.url:
            return
        self._counters = Counters(
            options.url,
            timeout_seconds=options.timeout_seconds,
            lease_seconds=options.lease_seconds,
            holders=[self._memory.holder] if self._memory.holder else [],
            adopt=self._adopt,
            changed=self._changed,
        )
        await self._counters.start()

    async def keep(self) -> None:
        """Run until cancelled."""
        if self._counters is not None:
            await self._counters.keep()

    async def close(self) -> None:
        """Tell what is left to tell."""
        if self._counters is not None:
            await self._counters.close()

    # --- requests ---

    async def admit(self, caller: Caller, demand: Demand, price: TokenPrice) -> Lease:
        """Take one request and what it may come to, or raise :class:`Refusal` (429, 403, 503) having taken nothing."""
        subjects, static = self._of(caller)
        if not subjects:
            return Lease((), price, [])
        tokens = demand.tokens
        for subject in subjects:
            most = subject.limits.tokens_per_minute
            if most is not None and tokens > most:
                raise words.never_fits(subject, tokens)
        lease = Lease(subjects, price, [], demand.prompt, 0, tokens, holds_of(subjects, demand, price))
        standings = await self._take_shared(lease, static)
        if standings is None:
            standings = self._take_alone(lease)
        lease.headers = words.describe(subjects, standings)
        for word in words.alerts(subjects, standings):
            self._on_alert(word)
        self._live.add(lease)
        return lease

    def correct(self, lease: Lease, prompt_tokens: int) -> None:
        """The engine has tokenized: hold no more for the prompt than it has. Later calls do nothing."""
        excess = lease.prompt - prompt_tokens
        if lease.settled or not lease.subjects or prompt_tokens <= 0 or excess <= 0:
            return
        lease.prompt = prompt_tokens
        cheaper = Demand(excess, 0, 0)
        holds = [
            old - gone for old, gone in zip(lease.holds, holds_of(lease.subjects, cheaper, lease.price), strict=True)
        ]
        self._book.correct(lease, lease.tokens - excess, holds)
        if self._counters is not None:
            rows = [
                [s.id, s.windowed, 0, s.budget is not None and _change(s, new - old, 0)]
                for s, old, new in zip(lease.subjects, lease.holds, holds, strict=True)
            ]
            self._counters.apply([APPLY, lease.bucket, 0, -excess, lease.holder, rows])
        lease.tokens -= excess
        lease.holds = holds

    def free(self, lease: Lease) -> None:
        """Give back the parallel slot alone: nobody waits for it any more, but what it came to is not known yet."""
        if lease.freed or lease.settled or not lease.subjects:
            return
        self._book.free(lease)
        if self._counters is not None:
            rows = [[s.id, False, _slots(lease, s), False] for s in lease.subjects]
            self._counters.apply([APPLY, 0, 0, 0, lease.holder, rows])
        lease.freed = True

    def settle(self, lease: Lease, usage: Usage, *, billable: bool = True) -> None:
        """Give back the parallel slot, replace the bounds by what was computed. Later calls do nothing.

        What is not billable is not taken from budgets; it was computed all the same, so it counts by the minute.
        """
        if lease.settled:
            return
        lease.settled = True
        if not lease.subjects:
            return
        self._live.discard(lease)
        tokens = usage.prompt_tokens + usage.completion_tokens
        spent = [s.budget.spent(usage, lease.price) if billable and s.budget is not None else 0 for s in lease.subjects]
        self._book.give_back(lease, tokens, spent)
        if self._counters is None:
            return
        rows = [
            [
                s.id,
                s.windowed,
                _slots(lease, s),
                s.budget is not None and _change(s, -hold, used),
            ]
            for s, hold, used in zip(lease.subjects, lease.holds, spent, strict=True)
        ]
        self._counters.apply([APPLY, lease.bucket, 0, tokens - lease.tokens, lease.holder, rows])

    # --- with the others ---

    async def _take_shared(self, lease: Lease, static: list[Any]) -> list[Standing] | None:
        """Take from the shared counters; ``None`` when they are gone and this gateway may go by its share."""
        counters = self._counters
        if counters is None:
            return None
        rows: list[Any] = static
        if any(lease.holds):
            rows = [_asked(row, hold) for row, hold in zip(static, lease.holds, strict=True)]
        try:
            answer = await counters.reserve([RESERVE, lease.tokens, rows], lambda bucket: self._undo(lease, bucket))
        except CountersDown:
            if self._options.refuse_when_down:
                raise words.unavailable() from None
            return None
        standings = self._standings(answer)
        for subject, standing in zip(lease.subjects, standings, strict=True):
            if subject.budget is not None:
                self._book.know(subject.budget, standing.used)
        if answer.refused:
            index, kind, used, wait = answer.refused
            seconds = wait if kind == "budget" else wait / 1000
            verdict = Verdict(index, kind, int(used), seconds, lease.holds[index])
            raise words.refusal(verdict, lease.subjects, standings, self._clock.now(), shared=True)
        lease.bucket, lease.holder = answer.bucket, counters.holder
        self._book.take(lease)
        return standings

    def _take_alone(self, lease: Lease) -> list[Standing]:
        verdict = self._book.check(lease.subjects, lease.holds, lease.tokens)
        if verdict is not None:
            standings = self._book.standings(lease.subjects)
            alone = self._counters is None
            raise words.refusal(verdict, lease.subjects, standings, self._clock.now(), shared=alone)
        self._book.take(lease)
        if self._counters is not None:
            lease.bucket = bucket_at(self._server_now())
            rows = [[s.id, s.windowed, 0, False] for s in lease.subjects]
            self._counters.apply([APPLY, lease.bucket, 1, lease.tokens, "", rows])
        return self._book.standings(lease.subjects)

    def _adopt(self, holder: str) -> list[Op]:
        """Operations by which ``holder`` takes over what runs and is not in its name yet."""
        ops: list[Op] = []
        for lease in self._live:
            if lease.holder == holder:
                continue
            lease.holder = holder
            rows = [
                [
                    s.id,
                    False,
                    -_slots(lease, s),
                    s.budget is not None and _change(s, hold, 0),
                ]
                for s, hold in zip(lease.subjects, lease.holds, strict=True)
            ]
            ops.append([APPLY, 0, 0, 0, holder, rows])
        return ops

    def _undo(self, lease: Lease, bucket: int) -> Op:
        holder = self._counters.holder if self._counters is not None else ""
        rows = [
            [
                s.id,
                s.windowed,
                -1 if s.limits.max_parallel_requests is not None else 0,
                s.budget is not None and _change(s, -hold, 0),
            ]
            for s, hold in zip(lease.subjects, lease.holds, strict=True)
        ]
        return [APPLY, bucket, -1, -lease.tokens, holder, rows]

    def _standings(self, answer: Reserved) -> list[Standing]:
        now = self._server_now()
        return [
            Standing(
                requests, tokens, max(0.0, (latest + SLOTS) * BUCKET_SECONDS - now), parallel, int(used), int(held)
            )
            for requests, tokens, latest, parallel, used, held in answer.standings
        ]

    def _server_now(self) -> float:
        if self._skew is None:
            return self._clock.now()
        return self._clock.monotonic() + self._skew

    def _changed(self) -> None:
        counters = self._counters
        if counters is None:
            return
        if counters.clock_bucket:
            at = counters.clock_bucket * BUCKET_SECONDS + counters.clock_age_ms / 1000
            self._skew = at - self._clock.monotonic()
        known = _Memory(counters.holder, counters.gateways or self._memory.gateways)
        if known != self._memory:
            self._memory = known
            if self._options.memory is not None:
                _remember(self._options.memory, known)

    # --- terms ---

    def _of(self, caller: Caller) -> tuple[tuple[Subject, ...], list[Any]]:
        """The caller's subjects, and their rows in a reserve; kept while table and periods stay the same."""
        key, tenant, now = caller.key, caller.tenant, self._clock.now()
        known = self._terms.get(key.id)
        if known is not None and known[0] is key and known[1] is tenant and now < known[2].until:
            return known[2].subjects, known[3]
        if len(self._terms) >= _MAX_TERMS:
            self._terms.clear()
        terms = terms_of(caller, now)
        rows = [_row(subject) for subject in terms.subjects]
        self._terms[key.id] = (key, tenant, terms, rows)
        return terms.subjects, rows


def _row(subject: Subject) -> list[Any]:
    limits, term = subject.limits, subject.budget
    numbers = (limits.requests_per_minute, limits.tokens_per_minute, limits.max_parallel_requests)
    budget: Any = False
    if term is not None:
        budget = [term.counter, _told(term.limit), _told(term.seed), 0, term.budget.blocks, term.keep_seconds]
    return [subject.id, *(-1 if number is None else number for number in numbers), budget]


def _asked(row: list[Any], hold: int) -> list[Any]:
    """``row`` of a subject, for a request that holds ``hold`` of its budget."""
    ident, requests, tokens, parallel, budget = row
    if not budget:
        return row
    counter, limit, seed, _, blocks, keep = budget
    return [ident, requests, tokens, parallel, [counter, limit, seed, _told(hold), blocks, keep]]


def _slots(lease: Lease, subject: Subject) -> int:
    """The change when the parallel slot of ``lease`` is given back."""
    return 0 if lease.freed or subject.limits.max_parallel_requests is None else -1


def _change(subject: Subject, held: int, used: int) -> list[Any]:
    term = subject.budget
    assert term is not None  # callers ask only for subjects with a budget
    return [term.counter, _told(term.seed), _told(held), _told(used), term.keep_seconds]


def _told(amount: int) -> float:
    """``amount`` as it goes to the script: MessagePack has no larger integers, and Lua counts in floats anyway."""
    return amount if -_LARGEST <= amount <= _LARGEST else float(amount)


def _recall(path: Path | None) -> _Memory:
    if path is None:
        return _Memory()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Memory)
    except FileNotFoundError:
        return _Memory()
    except (OSError, msgspec.MsgspecError) as exc:
        log.warning("memory of shared limits unreadable; what an earlier process held comes back later", error=str(exc))
        return _Memory()


def _remember(path: Path, memory: _Memory) -> None:
    try:
        write_private(path, msgspec.json.encode(memory))
    except OSError as exc:
        log.warning("memory of shared limits not kept", path=str(path), error=str(exc))
