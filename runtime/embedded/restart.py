"""When a process that ended is started again. Pure: times come in, a decision goes out."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """Seconds and counts. After ``budget`` ends in ``window_s`` a process has failed; tries go on each ``slow_s``."""

    first_s: float = 0.5
    factor: float = 2.0
    longest_s: float = 20.0
    budget: int = 6
    window_s: float = 300.0
    slow_s: float = 60.0


@dataclass(frozen=True)
class Decision:
    """Wait ``delay_s``, then start again; ``exhausted`` says that the budget of quick restarts is spent."""

    delay_s: float
    exhausted: bool


@dataclass
class RestartHistory:
    """The recent ends of one process."""

    policy: RestartPolicy
    ends: deque[float] = field(default_factory=deque)

    def after_end(self, now: float) -> Decision:
        """Book an end at ``now`` (monotonic seconds) and decide."""
        self.ends.append(now)
        while self.ends and now - self.ends[0] > self.policy.window_s:
            self.ends.popleft()
        while len(self.ends) > self.policy.budget + 1:
            self.ends.popleft()
        if len(self.ends) > self.policy.budget:
            return Decision(self.policy.slow_s, exhausted=True)
        delay = self.policy.first_s * self.policy.factor ** (len(self.ends) - 1)
        return Decision(min(delay, self.policy.longest_s), exhausted=False)
