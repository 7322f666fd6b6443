"""The next token of each row, from its logits, its parameters and its own counter. Nothing else has a say.

Randomness is one number per token, made from the request's seed and the position of the token, so that neither batch
mates nor a preemption change what is drawn.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence as Seq
from typing import Final

import torch
from torch import Tensor

from runtime.engine.causal.sequences import SamplingParams, Sequence
from runtime.engine.causal.steps import Sampled, TokenLogprob

_TOP_P_FIRST: Final = 1024
_MIN_TEMPERATURE: Final = 1e-4


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but ``seed`` and ``position``."""
    data = seed.to_bytes(8, "little", signed=False) + position.to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") / 2.0**64


def sample(logits: Tensor, sequences: Seq[Sequence], eos_ids: frozenset[int]) -> list[Sampled]:
    """Choose one token per row of ``logits`` (float32 [rows, vocab], one row per sequence)."""
    finite = torch.isfinite(logits).all(dim=-1).tolist()
    best = logits.argmax(dim=-1).tolist()
    result = []
    for row, sequence in enumerate(sequences):
        if not finite[row]:
            result.append(Sampled(None))
        elif sequence.sampling.plain_greedy:
            result.append(Sampled(best[row]))
        else:
            result.append(_sample_row(logits[row], sequence, eos_ids))
    return result


def _sample_row(raw: Tensor, sequence: Sequence, eos_ids: frozenset[int]) -> Sampled:
    params = sequence.sampling
    logits = _adjust(raw, sequence, eos_ids)
    if params.temperature < _MIN_TEMPERATURE:
        token = int(logits.argmax())
    else:
        token = _draw(logits / params.temperature, params, uniform(params.seed, sequence.num_output))
    return Sampled(token, logprob_of(raw, token, params.top_logprobs))


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
        width = limit  # a flat distribution: the first guess did not reach top_p
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
