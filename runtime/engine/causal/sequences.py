"""One sequence: a prompt being continued. No torch.

A request with ``n`` choices or several prompts is several sequences. A sequence catches up to its token count: there
is no prefill or decode phase, only ``num_computed < len(tokens)``.
"""

import dataclasses
import enum
from collections.abc import Sequence as Seq
from typing import Final, Protocol

from runtime.wire.inference import PRIORITIES

DEFAULT_PRIORITY: Final = PRIORITIES.index("default")
# Below this the draw would be the arg-max anyhow, and dividing by it would overflow.
MIN_TEMPERATURE: Final = 1e-4


class ConstraintFailed(Exception):
    """A constraint cannot say what may come next; its sequence is ended."""


class Constraint(Protocol):
    """What one sequence may say. It keeps its own place in the output, so that it costs little per step."""

    def mask(self, output: Seq[int]) -> bytes:
        """One bit per token, least significant first: which may follow ``output``.

        Raises:
            ConstraintFailed: it cannot go on.
        """

    def fresh(self) -> "Constraint":
        """An independent one at the beginning."""


class SequenceState(enum.Enum):
    """waiting -> running -> finished; running -> waiting by preemption; waiting -> finished by cancel or refusal."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    """Why a sequence ended. ``stop`` and ``length`` are the public ones."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    DEADLINE = "deadline"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How the next token is chosen. All values are checked at the door (``server.openai``); none is trusted here.

    ``top_logprobs`` is ``None`` for none, else how many alternatives to report beside the chosen token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    top_logprobs: int | None = None
    prompt_logprobs: bool = False
    min_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()

    @property
    def plain_draw(self) -> bool:
        """True when the token is drawn from the softmax of the raw logits over the temperature, with no filter."""
        return (
            self.temperature >= MIN_TEMPERATURE
            and self.top_k <= 0
            and self.top_p >= 1.0
            and self.min_p == 0.0
            and not self.logit_bias
            and self.presence_penalty == 0.0
            and self.frequency_penalty == 0.0
            and self.repetition_penalty == 1.0
            and self.top_logprobs is None
            and self.min_tokens == 0
        )

    @property
    def plain_greedy(self) -> bool:
        """True when the arg-max of the raw logits is the answer."""
        return (
            self.temperature < MIN_TEMPERATURE
            and not self.logit_bias
            and self.presence_penalty == 0.0
            and self.frequency_penalty == 0.0
            and self.repetition_penalty == 1.0
            and self.top_logprobs is None
            and self.min_tokens == 0
        )


@dataclasses.dataclass(slots=True, eq=False)
class Sequence:
    """State of one sequence. Only the scheduler writes ``state``, ``blocks`` and ``num_computed``.

    ``arrival`` orders sequences; ``max_total`` is the most tokens (prompt and output) it may ever hold.
    ``chain`` holds the prefix names of its full blocks, as far as they were needed; the first ``num_published`` blocks
    are known to the pool. ``num_cached`` is what the prefix cache spared at first admission, ``num_seen`` the most
    tokens ever computed: preemption resets ``num_computed``. ``priority`` is an index into ``inference.PRIORITIES``
    (more is more important), ``weight`` the share of ``tenant`` beside others.
    ``greedy`` ones take the arg-max of the raw logits and want nothing else; ``drawn`` ones a draw from all of them.
    """

    id: int
    arrival: int
    tokens: list[int]
    max_total: int
    sampling: SamplingParams
    tenant: str = ""
    salt: bytes = b""
    weight: float = 1.0
    priority: int = DEFAULT_PRIORITY
    state: SequenceState = SequenceState.WAITING
    num_prompt: int = 0
    num_computed: int = 0
    num_cached: int = 0
    num_seen: int = 0
    admitted: bool = False
    preemptions: int = 0
    blocks: list[int] = dataclasses.field(default_factory=list)
    chain: list[bytes] = dataclasses.field(default_factory=list)
    num_published: int = 0
    constraint: Constraint | None = None
    greedy: bool = False
    drawn: bool = False

    def __post_init__(self) -> None:
        self.num_prompt = len(self.tokens)
        self.greedy = self.constraint is None and self.sampling.plain_greedy
        self.drawn = self.constraint is None and self.sampling.plain_draw

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_missing(self) -> int:
        """Tokens whose keys and values are not in the cache yet."""
        return len(self.tokens) - self.num_computed

    def is_full(self) -> bool:
        """True when no further token may be added."""
        return len(self.tokens) >= self.max_total
