"""A request inside the engine: its choices, what it reports, and when it ends. No torch."""

import dataclasses
from collections.abc import Callable

from runtime.engine import errors
from runtime.engine.causal.sequences import DEFAULT_PRIORITY, Constraint, FinishReason, SamplingParams, Sequence
from runtime.engine.detokenize import OutputText
from runtime.wire.inference import PROBE_TENANT, Usage


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """What the server asks for; checked. ``seeds`` has one entry per choice and prompt (prompts × n).

    ``deadline`` is a time on the engine's monotonic clock. ``salt`` keeps tenants' prefixes apart. Each choice follows
    a fresh copy of ``constraint``. ``shown_special`` are special tokens whose text is wanted all the same.
    """

    request_id: str
    prompts: tuple[tuple[int, ...], ...]
    n: int
    max_tokens: int
    sampling: SamplingParams
    seeds: tuple[int, ...]
    stops: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    ignore_eos: bool = False
    tenant: str = ""
    salt: bytes = b""
    weight: float = 1.0
    priority: int = DEFAULT_PRIORITY
    deadline: float | None = None
    constraint: Constraint | None = None
    shown_special: frozenset[int] = frozenset()

    @property
    def counted(self) -> bool:
        """False for a trial in nobody's name: its tokens are no caller's."""
        return self.tenant != PROBE_TENANT


@dataclasses.dataclass(frozen=True, slots=True)
class TokenPiece:
    """One generated token for log-probabilities: id, value, alternatives (id, value)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """News about one choice. ``finish`` comes once per choice, with its last text."""

    index: int
    text: str
    pieces: tuple[TokenPiece, ...] = ()
    finish: FinishReason | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class JobEnded:
    """The last event of a job: all its choices are finished, or ``error`` ended it."""

    error: errors.RequestError | None = None


Event = Output | JobEnded
Sink = Callable[["Job", Event], None]


@dataclasses.dataclass(slots=True, eq=False)
class Choice:
    """One sequence and its text."""

    index: int
    sequence: Sequence
    text: OutputText
    finished: FinishReason | None = None
    last_token_at: float | None = None


@dataclasses.dataclass(slots=True, eq=False)
class Job:
    """A request being worked on. ``followers`` wait for their prompt's first choice, whose prefix they share."""

    request: GenerationRequest
    choices: list[Choice]
    followers: dict[int, list[Choice]]
    submitted_at: float
    sink: Sink
    started: bool = False  # one of its sequences has had a slot
    ended: bool = False
    prompt_logprobs: dict[int, dict[int, TokenPiece]] = dataclasses.field(default_factory=dict)

    @property
    def done(self) -> bool:
        """True when every choice has finished."""
        return all(choice.finished is not None for choice in self.choices)

    def usage(self) -> Usage:
        """Tokens computed so far. A prompt counts once however many choices it has, and only as far as it was read."""
        leaders = [choice.sequence for choice in self.choices if choice.index % self.request.n == 0]
        return Usage(
            prompt_tokens=sum(min(seq.num_prompt, max(seq.num_seen, seq.num_cached)) for seq in leaders),
            cached_tokens=sum(seq.num_cached for seq in leaders),
            completion_tokens=sum(choice.sequence.num_output for choice in self.choices),
        )
