"""What passes between the step loop and whatever computes a step. No torch, so that the loop can do without it."""

import dataclasses
from typing import Protocol

from runtime.engine.causal.scheduler import StepPlan
from runtime.engine.causal.sequences import Sequence


class OutOfMemory(Exception):
    """The device could not give the memory that a step needed; the step had no effect."""


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token under the raw logits, and the most likely alternatives (token, value)."""

    value: float
    top: tuple[tuple[int, float], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Sampled:
    """One row's outcome. ``token`` is ``None`` when its logits were not finite: the sequence is broken."""

    token: int | None
    logprob: TokenLogprob | None = None


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

    def scrub(self, sequence: Sequence) -> None:
        """Zero what ``sequence`` left in its blocks."""
