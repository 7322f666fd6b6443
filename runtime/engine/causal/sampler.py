"""The next token of each row, from its logits, its parameters and its own counter. Nothing else has a say.

Randomness is one number per token, made from the request's seed and the position of the token, so that neither batch
mates nor a preemption change what is drawn.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence as Seq
from typing import Final

import numpy as np
import torch
from torch import Tensor

from runtime.engine.causal.sequences import (
    MIN_TEMPERATURE,
    Constraint,
    ConstraintFailed,
    SamplingParams,
    Sequence,
)
from runtime.engine.causal.steps import Sampled, TokenLogprob

_TOP_P_FIRST: Final = 1024
# Rows drawn at one time: each takes vocabulary times 20 bytes meanwhile.
_DRAW_ROWS: Final = 16


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but ``seed`` and ``position``."""
    data = seed.to_bytes(8, "little", signed=False) + position.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") / 2.0**64


def sample(logits: Tensor, sequences: Seq[Sequence], eos_ids: frozenset[int]) -> list[Sampled]:
    """Choose one token per row of ``logits`` (float32 [rows, vocab], one row per sequence).

    What everybody needs is done for all rows at once; a row that asks for more is looked at by itself.
    """
    best = logits.argmax(dim=-1).tolist()
    result = [Sampled(token) for token in best]
    drawn = [row for row, sequence in enumerate(sequences) if sequence.drawn]
    for first in range(0, len(drawn), _DRAW_ROWS):
        rows = drawn[first : first + _DRAW_ROWS]
        for row, token in zip(rows, _draw_all(logits, rows, sequences), strict=True):
            result[row] = Sampled(token)
    for row, sequence in enumerate(sequences):
        if not (sequence.greedy or sequence.drawn):
            result[row] = _sample_row(logits[row], sequence, eos_ids)
    # a sum is finite only if everything in it is
    for row, total in enumerate(logits.sum(dim=-1).tolist()):
        if not math.isfinite(total):
            result[row] = Sampled(None)
    return result


def _draw_all(logits: Tensor, rows: Seq[int], sequences: Seq[Sequence]) -> list[int]:
    """Inverse of the cumulative distribution of each of ``rows`` at its own number, each computed as if alone."""
    params = [sequences[row].sampling for row in rows]
    device = logits.device
    temperatures = torch.tensor([item.temperature for item in params], dtype=logits.dtype, device=device)
    numbers = [uniform(item.seed, sequences[row].num_output) for item, row in zip(params, rows, strict=True)]
    chosen = logits if len(rows) == logits.shape[0] else logits[rows]
    probabilities = torch.softmax(chosen / temperatures[:, None], dim=-1)
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    targets = cumulative[:, -1:] * torch.tensor(numbers, dtype=torch.float64, device=device)[:, None]
    found = torch.searchsorted(cumulative, targets, right=True).clamp_(max=logits.shape[-1] - 1)
    # rounding may point behind the last token that has any probability
    empty = probabilities.gather(-1, found) == 0.0
    found = torch.where(empty, probabilities.argmax(dim=-1, keepdim=True), found)
    return [int(token) for token in found[:, 0].tolist()]


def _sample_row(raw: Tensor, sequence: Sequence, eos_ids: frozenset[int]) -> Sampled:
    params = sequence.sampling
    allowed: Tensor | None = None
    if sequence.constraint is not None:
        try:
            allowed = _allowed(sequence.constraint, sequence, raw)
        except ConstraintFailed as exc:
            return Sampled(None, failure=str(exc) or "the grammar cannot go on")
    logits = _adjust(raw, sequence, eos_ids)
    if allowed is not None:
        masked = logits.masked_fill(~allowed, -math.inf)
        if not torch.isfinite(masked.max()):  # min_tokens forbids the end that the grammar has come to
            masked = raw.masked_fill(~allowed, -math.inf)
        logits = masked
    if params.temperature < MIN_TEMPERATURE:
        token = int(logits.argmax())
    else:
        token = _draw(logits / params.temperature, params, uniform(params.seed, sequence.num_output))
    return Sampled(token, logprob_of(raw, token, params.top_logprobs))


def _allowed(constraint: Constraint, sequence: Sequence, raw: Tensor) -> Tensor:
    """What the constraint allows as booleans [vocab]. Rows of the model that stand for no token are never allowed."""
    mask = constraint.mask(sequence.tokens[sequence.num_prompt :])
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[: raw.shape[-1]]
    if not bits.any():
        raise ConstraintFailed("no token may follow")
    allowed = torch.zeros(raw.shape[-1], dtype=torch.bool)
    allowed[: len(bits)] = torch.from_numpy(bits).bool()
    return allowed.to(raw.device)


def _adjust(raw: Tensor, sequence: Sequence, eos_ids: frozenset[int]) -> Tensor:
    """Penalties, bias and forbidden ends; returns a copy when anything changes."""
    params = sequence.sampling
    logits = raw
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(sequence.tokens)), device=raw.device)
        values = logits[seen]
        scaled = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
        logits = logits.index_put((seen,), scaled)
    if params.presence_penalty or params.frequency_penalty:
        counts = Counter(sequence.tokens[sequence.num_prompt :])
        if counts:
            seen = torch.tensor(list(counts), device=raw.device)
            times = torch.tensor(list(counts.values()), dtype=raw.dtype, device=raw.device)
            logits = logits.index_add(0, seen, -(params.presence_penalty + params.frequency_penalty * times))
    if params.logit_bias:
        tokens, biases = zip(*params.logit_bias, strict=True)
        where = torch.tensor(tokens, device=raw.device)
        logits = logits.index_add(0, where, torch.tensor(biases, dtype=raw.dtype, device=raw.device))
    if sequence.num_output < params.min_tokens:
        ends = torch.tensor(sorted(eos_ids | params.stop_token_ids), dtype=torch.int64, device=raw.device)
        logits = logits.index_fill(0, ends, -math.inf)
    return logits


def _draw(logits: Tensor, params: SamplingParams, number: float) -> int:
    """Inverse of the cumulative distribution at ``number``, over what the filters leave."""
    if params.top_k <= 0 and params.top_p >= 1.0:
        probabilities = torch.softmax(logits, dim=-1)
        if params.min_p > 0.0:
            probabilities = probabilities * (probabilities >= params.min_p * probabilities.max())
        return _pick(probabilities, number)
    tokens, probabilities = _nucleus(logits, params)
    if params.min_p > 0.0:
        probabilities = probabilities * (probabilities >= params.min_p * probabilities[0])
    return int(tokens[_pick(probabilities, number)])


def _nucleus(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Tokens and probabilities that top-k and top-p leave, most likely first."""
    size = logits.shape[-1]
    limit = min(params.top_k, size) if params.top_k > 0 else size
    whole = torch.softmax(logits, dim=-1) if params.top_k <= 0 else None
    width = min(limit, _TOP_P_FIRST) if params.top_p < 1.0 else limit
    while True:
        values, tokens = logits.topk(width)
        probabilities = whole[tokens] if whole is not None else torch.softmax(values, dim=-1)
        enough = width == limit or (whole is not None and float(probabilities.sum()) >= params.top_p)
        if enough:
            break
        width = min(limit, 4 * width)  # a flat distribution: the guess did not reach top_p
    if params.top_p < 1.0:
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities * (before < params.top_p)
    return tokens, probabilities


def _pick(probabilities: Tensor, number: float) -> int:
    """First index at which the cumulative sum exceeds ``number`` of the total; never one with probability 0."""
    cumulative = probabilities.double().cumsum(-1)
    target = cumulative[-1] * number
    index = int(torch.searchsorted(cumulative, target, right=True))
    if index >= probabilities.shape[-1] or float(probabilities[index]) == 0.0:
        return int(probabilities.argmax())
    return index


def logprob_of(raw: Tensor, token: int, top: int | None) -> TokenLogprob | None:
    """Log-probability of ``token`` under ``raw`` logits [vocab], with ``top`` alternatives; ``None`` if not wanted."""
    if top is None:
        return None
    values = torch.log_softmax(raw, dim=-1)
    if top == 0:
        return TokenLogprob(float(values[token]))
    best, tokens = values.topk(min(top, values.shape[-1]))
    pairs = zip(tokens.tolist(), best.tolist(), strict=True)
    return TokenLogprob(float(values[token]), tuple(pairs))
