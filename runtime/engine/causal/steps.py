"""What passes between the step loop and whatever computes a step. No torch, so that the loop can do without it."""

import dataclasses
from typing import Protocol

from runtime.engine.causal.scheduler import StepPlan


class OutOfMemory(Exception):
    """The device could not give the memory that a step needed; the step had no effect."""


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token under the raw logits, and the most likely alternatives (token, value)."""

    value: float
    top: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Sampled:
    """One row's outcome. ``token`` is ``None`` when its sequence is broken: its logits were not finite, or, with a
    ``failure``, its constraint could not go on."""

    token: int | None
    logprob: TokenLogprob | None = None
    failure: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class StepResult:
    """``sampled`` has one entry per sequence that caught up, by its id.

    ``prompt_logprobs`` holds what was asked for of the prompt tokens computed in this step: by sequence and position.
    """

    sampled: dict[int, Sampled]
    prompt_logprobs: dict[int, dict[int, TokenLogprob]] = dataclasses.field(default_factory=dict)


class StepRunner(Protocol):
    """Computes steps."""

    def run(self, plan: StepPlan) -> StepResult:
        """Compute ``plan``.

        Raises:
            OutOfMemory: an allocation failed; nothing of the step counts.
        """

    def scrub(self, blocks: list[int]) -> None:
        """Zero what a broken sequence left in ``blocks``."""

    @property
    def compacts(self) -> bool:
        """True when only the end of the pool can be given back: what is there has to move first."""

    def give_back(self, blocks: list[int], moves: dict[int, int]) -> int:
        """Carry out ``moves`` (from block to block), then return the memory of ``blocks``, which nobody uses.

        Returns how many bytes, 0 when that cannot be done here. Called between steps. What is written to them later
        takes memory again.
        """

    def sleep(self) -> bool:
        """Give back the device's memory; True when the weights left it. Nothing runs until :meth:`wake`."""

    def wake(self) -> None:
        """Take the memory back.

        Raises:
            OutOfMemory: the device has no room; still asleep.
        """

    def close(self) -> None:
        """End what helps to compute; nothing runs any more."""
