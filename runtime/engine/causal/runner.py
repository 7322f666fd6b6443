"""One step on the device: a plan becomes tensors, tensors become tokens."""

from typing import Final

import numpy as np
import torch

from runtime.engine.causal import attention, sampler
from runtime.engine.causal.model import Decoder, ModelBatch
from runtime.engine.causal.scheduler import StepPlan, Work
from runtime.engine.causal.sequences import Sequence
from runtime.engine.causal.steps import OutOfMemory, Sampled, StepResult, TokenLogprob

# Contexts of one group differ by at most a factor of two, above this many tokens: padding is computed, too.
_SMALLEST_GROUP_WIDTH: Final = 128
_PROMPT_ROWS: Final = 16
_ALLOCATION_FAILURES: Final = ("can't allocate memory", "not enough memory", "out of memory")


class Runner:
    """Owns the model and its cache storage."""

    def __init__(self, model: Decoder, cache: attention.KvCache, block_tokens: int, eos_ids: frozenset[int]) -> None:
        self.model = model
        self.cache = cache
        self._block_tokens = block_tokens
        self._eos_ids = eos_ids
        self._windows = tuple(set(model.config.windows))

    def run(self, plan: StepPlan) -> StepResult:
        """Compute ``plan`` and sample where a sequence has caught up.

        Raises:
            OutOfMemory: an allocation failed. The cache may hold new values in slots that are not booked yet, which
                nobody reads.
        """
        try:
            with torch.inference_mode():
                return self._run(plan)
        except torch.OutOfMemoryError as exc:
            raise OutOfMemory(str(exc)) from exc
        except MemoryError as exc:
            raise OutOfMemory("the host has no memory left") from exc
        except RuntimeError as exc:
            if any(text in str(exc) for text in _ALLOCATION_FAILURES):
                raise OutOfMemory(str(exc)) from exc
            raise

    def _run(self, plan: StepPlan) -> StepResult:
        batch, owners = self._batch(plan)
        hidden = self.model.forward(batch, self.cache)
        sampling = [row for row, (item, position) in enumerate(owners) if _samples(item, position)]
        sequences = [owners[row][0].sequence for row in sampling]
        chosen: list[Sampled] = []
        if sampling:
            chosen = sampler.sample(self.model.logits(hidden[sampling]), sequences, self._eos_ids)
        return StepResult(
            {sequence.id: outcome for sequence, outcome in zip(sequences, chosen, strict=True)},
            self._prompt_logprobs(hidden, owners),
        )

    def _batch(self, plan: StepPlan) -> tuple[ModelBatch, list[tuple[Work, int]]]:
        """Lay the step out: single tokens first, by context length; then chunks."""
        single = sorted((item for item in plan.work if item.count == 1), key=lambda item: item.start)
        ordered = single + [item for item in plan.work if item.count > 1]
        contexts = [
            attention.context_slots(item.blocks, item.start + item.count, self._block_tokens) for item in ordered
        ]
        tokens = [t for item in ordered for t in item.sequence.tokens[item.start : item.start + item.count]]
        positions = np.concatenate([np.arange(item.start, item.start + item.count) for item in ordered])
        slots = np.concatenate([context[item.start :] for item, context in zip(ordered, contexts, strict=True)])
        owners, rows = self._rows(ordered)
        device = self.model.device
        batch = ModelBatch(
            tokens=torch.tensor(tokens, dtype=torch.int64, device=device),
            positions=torch.from_numpy(positions).to(device),
            rows=torch.tensor(rows, dtype=torch.int64, device=device),
            attention=attention.AttentionBatch(
                slots=torch.from_numpy(slots).to(device),
                groups=self._groups(contexts[: len(single)]),
                chunks=self._chunks(ordered[len(single) :], contexts[len(single) :], len(single)),
            ),
        )
        return batch, owners

    def _rows(self, ordered: list[Work]) -> tuple[list[tuple[Work, int]], list[int]]:
        """Which rows need logits, and for whom: (work, position of the row's token)."""
        owners: list[tuple[Work, int]] = []
        rows: list[int] = []
        first = 0
        for item in ordered:
            last = item.start + item.count - 1
            for position in range(item.start, last + 1):
                if _in_prompt(item, position) or _samples(item, position):
                    owners.append((item, position))
                    rows.append(first + position - item.start)
            first += item.count
        return owners, rows

    def _groups(self, contexts: list[np.ndarray]) -> tuple[attention.DecodeGroup, ...]:
        groups: list[attention.DecodeGroup] = []
        first = 0
        while first < len(contexts):
            limit = max(_SMALLEST_GROUP_WIDTH, 2 * len(contexts[first]))
            end = first
            while end < len(contexts) and len(contexts[end]) <= limit:
                end += 1
            groups.append(attention.decode_group(first, contexts[first:end], self._windows, self.cache.data))
            first = end
        return tuple(groups)

    def _chunks(self, items: list[Work], contexts: list[np.ndarray], first: int) -> tuple[attention.Chunk, ...]:
        chunks: list[attention.Chunk] = []
        for item, context in zip(items, contexts, strict=True):
            chunks.append(attention.chunk(first, item.start, item.count, context, self._windows, self.cache.data))
            first += item.count
        return tuple(chunks)

    def _prompt_logprobs(
        self, hidden: torch.Tensor, owners: list[tuple[Work, int]]
    ) -> dict[int, dict[int, TokenLogprob]]:
        """Log-probabilities of prompt tokens, a few rows at a time: logits of a whole prompt would be huge."""
        found: dict[int, dict[int, TokenLogprob]] = {}
        wanted = [row for row, (item, position) in enumerate(owners) if _in_prompt(item, position)]
        for first in range(0, len(wanted), _PROMPT_ROWS):
            rows = wanted[first : first + _PROMPT_ROWS]
            for row, logits in zip(rows, self.model.logits(hidden[rows]), strict=True):
                item, position = owners[row]
                sequence = item.sequence
                token = sequence.tokens[position + 1]
                value = sampler.logprob_of(logits, token, sequence.sampling.top_logprobs or 0)
                if value is not None:
                    found.setdefault(sequence.id, {})[position + 1] = value
        return found

    def scrub(self, sequence: Sequence) -> None:
        """Zero what ``sequence`` left in its blocks; call before they are given back."""
        slots = attention.context_slots(sequence.blocks, len(sequence.blocks) * self._block_tokens, self._block_tokens)
        with torch.inference_mode():
            self.cache.scrub(torch.from_numpy(slots).to(self.model.device))


def _samples(item: Work, position: int) -> bool:
    """True when the logits at ``position`` give the next token of the sequence."""
    return item.samples and position == item.start + item.count - 1


def _in_prompt(item: Work, position: int) -> bool:
    """True when the logits at ``position`` are wanted for the prompt token after it."""
    return item.sequence.sampling.prompt_logprobs and position + 1 < item.sequence.num_prompt
