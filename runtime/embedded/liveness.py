"""When a process that still runs counts as hung: it does not answer, look after look.

Looks are counted, not seconds: a supervisor that was itself stopped for an hour finds a missed look, no dead process.
"""

from dataclasses import dataclass

from runtime.base.clock import Clock
from runtime.embedded.probes import Child, Probe


@dataclass(frozen=True, kw_only=True)
class Liveness:
    """Every ``every_s`` seconds ``probe`` looks; ``misses`` in a row, and the process is ended and started again."""

    probe: Probe
    every_s: float = 10.0
    misses: int = 6


async def until_hung(liveness: Liveness, child: Child, clock: Clock) -> None:
    """Return once ``child`` has missed its looks."""
    missed = 0
    while missed < liveness.misses:
        await clock.sleep(liveness.every_s)
        missed = 0 if await liveness.probe(child) else missed + 1
