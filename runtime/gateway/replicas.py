"""What this gateway knows of each replica and deployment: work under way, credits, pressure, health. No effects."""

import math
from typing import Final

from runtime.gateway.adaptive import AdaptiveLimit
from runtime.gateway.affinity import PrefixIndex
from runtime.gateway.breaker import Breaker
from runtime.gateway.credits import Told
from runtime.gateway.outliers import Health, StuckWatch
from runtime.gateway.retries import RetryBudget
from runtime.wire.routes import ReplicaRoute, Slo

RECENT_SECONDS: Final = 600.0  # in this time work that was sent loses all but 1/e of its weight
TOLD_SECONDS: Final = 5.0  # what an engine said of its load is unknown after that
_GUESS_TOKENS: Final = 256.0  # an answer's length while none has been seen
_LEARN: Final = 0.05


class Replica:
    """One generation of one replica. Tokens, and seconds on the monotonic clock."""

    def __init__(self, route: ReplicaRoute, *, chunks: int, credits: int) -> None:
        self.route = route
        self.in_flight = 0
        self.work = 0.0  # expected tokens of what is in flight
        self.index = PrefixIndex(chunks)
        self.health = Health()
        self.stuck = StuckWatch()
        self.credits = credits
        self.awake = not route.asleep
        self.tells_load = True  # until it has answered that it does not
        self.told_at = -math.inf
        self._kv_free = 1.0
        self._others = 0  # requests of other gateways there
        self._recent = 0.0
        self._recent_at = 0.0

    def room(self, now: float) -> bool:
        """The engine takes one more request of this gateway. A grant of none that is old is tried with one request."""
        return self.in_flight < self.credits or (not self.in_flight and now - self.told_at > TOLD_SECONDS)

    def load(self, now: float) -> float:
        """What counts against the bound on any one replica's load."""
        return self.queued(now) + self.recent(now)

    def queued(self, now: float) -> float:
        """Expected tokens of work that is there now, other gateways' requests at the size of ours."""
        if not self._others or now - self.told_at > TOLD_SECONDS:
            return self.work
        return self.work + self._others * (self.work / self.in_flight if self.in_flight else _GUESS_TOKENS)

    def recent(self, now: float) -> float:
        """Tokens of work sent lately, fading: evens out what is drawn to the same replica again and again."""
        return self._recent * math.exp((self._recent_at - now) / RECENT_SECONDS) if self._recent else 0.0

    def kv_free_at(self, now: float) -> float:
        """Fraction of KV blocks free, as told lately; 1.0 when unknown."""
        return self._kv_free if now - self.told_at <= TOLD_SECONDS else 1.0

    def take(self, work: float, now: float) -> None:
        """One more request of ``work`` tokens is sent there."""
        self.in_flight += 1
        self.work += work
        self.catch_up(self.recent(now) + work, now)

    def catch_up(self, recent: float, now: float) -> None:
        """Set the fading sum: a replica that is new starts at its peers' mean, or everything would run to it."""
        self._recent, self._recent_at = recent, now

    def give_back(self, work: float) -> None:
        """One request less."""
        self.in_flight -= 1
        self.work = max(0.0, self.work - work) if self.in_flight else 0.0

    def hear(self, told: Told, now: float) -> None:
        """Take what the engine said about itself."""
        if told.credits is not None:
            self.credits = told.credits
        self.told_at = now
        if told.kv_free is not None:
            self._kv_free = told.kv_free
            self._others = max(0, told.running + told.waiting - self.in_flight)


class Deployment:
    """What all replicas of a variant have in common."""

    def __init__(self, slo: Slo) -> None:
        self.in_flight = 0
        self.adaptive = AdaptiveLimit(slo)
        self.breaker = Breaker()
        self.budget = RetryBudget()
        self._completion = _GUESS_TOKENS

    @property
    def room(self) -> bool:
        """The limit that keeps the SLO leaves room for one more."""
        return self.in_flight < self.adaptive.limit

    @property
    def completion(self) -> int:
        """Tokens that an answer will probably have."""
        return round(self._completion)

    def promise(self, slo: Slo) -> None:
        """The endpoint's SLO; when it changes, the limit is searched anew."""
        if slo != self.adaptive.slo:
            self.adaptive = AdaptiveLimit(slo)

    def learn(self, completion: int) -> None:
        """An answer had so many tokens."""
        self._completion += _LEARN * (completion - self._completion)
