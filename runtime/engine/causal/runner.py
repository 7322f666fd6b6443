"""One step on the device: a plan becomes tensors, tensors become tokens."""

from typing import Final

import torch

from runtime.engine.causal import attention, sampler
from runtime.engine.causal.device_cache import DeviceKvCache
from runtime.engine.causal.graphs import DecodeGraphs
from runtime.engine.causal.model import Cache, Decoder
from runtime.engine.causal.scheduler import StepPlan, Work
from runtime.engine.causal.sequences import Sequence
from runtime.engine.causal.sleep import Sleeper
from runtime.engine.causal.steps import OutOfMemory, Sampled, StepResult, TokenLogprob

_PROMPT_ROWS: Final = 16
_ALLOCATION_FAILURES: Final = ("can't allocate memory", "not enough memory", "out of memory")


class Runner:
    """Owns the model and its cache storage, which has one block more than the pool: ``attention.FIRST_BLOCK``."""

    def __init__(
        self,
        model: Decoder,
        cache: Cache,
        block_tokens: int,
        eos_ids: frozenset[int],
        graphs: DecodeGraphs | None = None,
    ) -> None:
        self.model = model
        self.cache = cache
        self.graphs = graphs
        self._sleeper = Sleeper(model, cache, moves=model.device.type != "cpu")
        self.block_tokens = block_tokens
        self.eos_ids = eos_ids

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
        self.reserve(batch)
        sampling = [row for row, (item, position) in enumerate(owners) if _samples(item, position)]
        sequences = [owners[row][0].sequence for row in sampling]
        if self.graphs is not None and len(sampling) == len(owners) == len(batch.tokens):
            found = self.graphs.run(batch)
            if found is not None:
                picked = zip(sequences, self._pick(*found, sequences), strict=True)
                return StepResult({sequence.id: outcome for sequence, outcome in picked})
        program = self.model.program
        if program is not None and len(sampling) == len(owners) and all(one.greedy for one in sequences):
            assert isinstance(self.cache, attention.KvCache)
            greedy = zip(sequences, *program.greedy(batch, self.cache), strict=True)
            return StepResult({one.id: Sampled(token if fine else None) for one, token, fine in greedy})
        hidden = self.forward(batch)
        chosen: list[Sampled] = []
        if sampling:
            wanted = hidden if len(sampling) == len(owners) else hidden[sampling]
            chosen = self._choose(self.model.logits(wanted), sequences)
        return StepResult(
            {sequence.id: outcome for sequence, outcome in zip(sequences, chosen, strict=True)},
            self._prompt_logprobs(hidden, owners),
        )

    def reserve(self, batch: attention.StepBatch) -> None:
        """Have memory for the blocks of ``batch``."""
        self.cache.reserve(int(batch.tables.max(initial=0)) + 1, self.block_tokens)

    def forward(self, batch: attention.StepBatch) -> torch.Tensor:
        """Hidden states of the picked rows of ``batch``."""
        return self.model.forward(batch, self.cache)

    def _choose(self, logits: torch.Tensor, sequences: list[Sequence]) -> list[Sampled]:
        """Plain greedy rows take the arg-max; only others are worth the sampler's many looks at the whole row."""
        found = self.model.best(logits)
        if found is None:
            return sampler.sample(logits, sequences, self.eos_ids)
        return self._pick(logits, found, sequences)

    def _pick(
        self, logits: torch.Tensor, found: tuple[list[int], list[bool]], sequences: list[Sequence]
    ) -> list[Sampled]:
        """The same where arg-max and finiteness of each row are ``found`` already."""
        best, finite = found
        chosen = [Sampled(token if fine else None) for token, fine in zip(best, finite, strict=True)]
        others = [row for row, sequence in enumerate(sequences) if not sequence.greedy]
        if others:
            rows = logits if len(others) == len(sequences) else logits[others]
            sampled = sampler.sample(rows, [sequences[row] for row in others], self.eos_ids)
            for row, outcome in zip(others, sampled, strict=True):
                chosen[row] = outcome
        return chosen

    def _batch(self, plan: StepPlan) -> tuple[attention.StepBatch, list[tuple[Work, int]]]:
        """Lay the step out: single tokens first, by context length; then chunks."""
        single = sorted((item for item in plan.work if item.count == 1), key=lambda item: item.start)
        ordered = single + [item for item in plan.work if item.count > 1]
        owners, rows = self._rows(ordered)
        work = [
            (item.sequence.tokens[item.start : item.start + item.count], item.start, item.blocks) for item in ordered
        ]
        batch = attention.layout(work, rows, block_tokens=self.block_tokens, first_block=attention.FIRST_BLOCK)
        return batch, owners

    def _rows(self, ordered: list[Work]) -> tuple[list[tuple[Work, int]], list[int]]:
        """Which rows need logits, and for whom: (work, position of the row's token)."""
        owners: list[tuple[Work, int]] = []
        rows: list[int] = []
        first = 0
        for item in ordered:
            last = item.start + item.count - 1
            wanted = range(item.start, last + 1) if item.sequence.sampling.prompt_logprobs else (last,)
            for position in wanted:
                if _in_prompt(item, position) or _samples(item, position):
                    owners.append((item, position))
                    rows.append(first + position - item.start)
            first += item.count
        return owners, rows

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

    @property
    def compacts(self) -> bool:
        """True when the cache can be cut at its end only."""
        return isinstance(self.cache, DeviceKvCache)

    def give_back(self, blocks: list[int], moves: dict[int, int]) -> int:
        """Carry out ``moves``, return the memory of ``blocks``; bytes returned, 0 when that cannot be done here."""
        first = attention.FIRST_BLOCK
        with torch.inference_mode():
            if isinstance(self.cache, DeviceKvCache):
                self.cache.move({source + first: target + first for source, target in moves.items()})
                return self.cache.cut(min(blocks) + first)
            return self.cache.give_back([block + first for block in blocks], self.block_tokens)

    def sleep(self) -> bool:
        """Empty the cache and send the weights to host memory; True when they left the device."""
        if self.graphs is not None:
            self.graphs.clear()  # what comes back may lie elsewhere
        self._sleeper.sleep()
        return self.model.device.type != "cpu"

    def wake(self) -> None:
        """Take it all back.

        Raises:
            OutOfMemory: the device has no room.
        """
        try:
            self._sleeper.wake()
        except RuntimeError as exc:
            raise OutOfMemory(str(exc)) from exc

    def record(self) -> None:
        """Record the steps that are certain to come, where steps are recorded: before anybody waits for one."""
        if self.graphs is not None:
            with torch.inference_mode():
                self.graphs.record_all()

    def scrub(self, blocks: list[int]) -> None:
        """Zero what lies in ``blocks``; call before they are given back."""
        there = [block + attention.FIRST_BLOCK for block in blocks]
        slots = attention.context_slots(there, len(there) * self.block_tokens, self.block_tokens)
        with torch.inference_mode():
            self.cache.scrub(torch.from_numpy(slots).to(self.model.device))

    def close(self) -> None:
        """Nothing runs any more."""


def _samples(item: Work, position: int) -> bool:
    """True when the logits at ``position`` give the next token of the sequence."""
    return item.samples and position == item.start + item.count - 1


def _in_prompt(item: Work, position: int) -> bool:
    """True when the logits at ``position`` are wanted for the prompt token after it."""
    return item.sequence.sampling.prompt_logprobs and position + 1 < item.sequence.num_prompt
