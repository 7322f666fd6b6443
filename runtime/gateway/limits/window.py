"""A sliding minute in buckets of a quarter second, the same as the shared counters keep. Pure: time is passed in."""

from typing import Final

BUCKET_SECONDS: Final = 0.25
# One bucket more than a minute: the bucket that is only partly out of the minute still counts, so that no minute
# anywhere holds more than the limit.
SLOTS: Final = 241


class Usage:
    """One key or tenant: its minute, what runs now, and what its budget has come to by counter."""

    __slots__ = ("_newest", "_rows", "latest", "parallel", "requests", "tokens")

    def __init__(self) -> None:
        self.parallel = 0
        self.requests = 0
        self.tokens = 0
        self.latest = 0  # newest bucket in use
        self._newest = 0  # newest bucket that the slots cover
        self._rows: dict[int, list[int]] = {}  # requests and tokens by bucket

    def roll(self, bucket: int) -> None:
        """Forget what has left the minute at ``bucket``."""
        if bucket <= self._newest:
            return
        self._newest = bucket
        oldest = bucket - SLOTS
        # Dictionaries keep the order of insertion, which is the order of time: the oldest stands in front.
        while self._rows and (old := next(iter(self._rows))) <= oldest:
            requests, tokens = self._rows.pop(old)
            self.requests -= requests
            self.tokens -= tokens

    def add(self, bucket: int, requests: int, tokens: int) -> None:
        """Count at ``bucket``. What has left the minute is ignored; if it is more than was promised, it counts now."""
        if bucket <= self._newest - SLOTS:
            if requests <= 0 and tokens <= 0:
                return
            bucket = self._newest
        row = self._rows.get(bucket)
        if row is None:
            self._rows[bucket] = [requests, tokens]
        else:
            row[0] += requests
            row[1] += tokens
        self.requests += requests
        self.tokens += tokens
        if bucket > self.latest:
            self.latest = bucket

    def wait_for(self, limit: int, ask: int, now: float, *, tokens: bool) -> float:
        """Seconds until ``ask`` more fits under ``limit`` if nothing else comes; 0 when it fits now."""
        at, used = (1, self.tokens) if tokens else (0, self.requests)
        if used + ask <= limit:
            return 0.0
        for bucket in sorted(self._rows):
            used -= self._rows[bucket][at]
            if used + ask <= limit:
                return (bucket + SLOTS) * BUCKET_SECONDS - now
        return SLOTS * BUCKET_SECONDS

    def reset(self, now: float) -> float:
        """Seconds until the minute is empty if nothing else comes."""
        if not (self.requests or self.tokens):
            return 0.0
        return max(0.0, (self.latest + SLOTS) * BUCKET_SECONDS - now)

    @property
    def idle(self) -> bool:
        """True when nothing is counted."""
        return not (self.parallel or self.requests or self.tokens)


def bucket_at(now: float) -> int:
    """The bucket of a time in seconds."""
    return int(now / BUCKET_SECONDS)
