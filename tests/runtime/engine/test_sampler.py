"""Choosing tokens: filters and penalties as transformers has them, draws that follow the distribution."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import generation

from runtime.engine.causal import sampler
from runtime.engine.causal.sequences import SamplingParams, Sequence

pytestmark = pytest.mark.engine

VOCAB = 50
LOGITS = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3)) * 2


def sequence(prompt: list[int], output: list[int], **params: object) -> Sequence:
    sampling = dataclasses.replace(SamplingParams(), **params)  # type: ignore[arg-type]
    made = Sequence(id=0, arrival=0, tokens=list(prompt), max_total=100, sampling=sampling)
    made.tokens.extend(output)
    return made


def draws(count: int, logits: torch.Tensor = LOGITS, **params: object) -> list[int]:
    """First tokens under ``count`` different seeds."""
    found = []
    for seed in range(count):
        (outcome,) = sampler.sample(logits[None], [sequence([1], [], seed=seed, **params)], frozenset())
        assert outcome.token is not None
        found.append(outcome.token)
    return found


def kept(warper: object) -> set[int]:
    """Tokens that one of transformers' filters leaves."""
    scores = warper(torch.tensor([[1]]), LOGITS[None].clone())  # type: ignore[operator]
    return set(torch.isfinite(scores[0]).nonzero().flatten().tolist())


@pytest.mark.parametrize(
    ("params", "warper"),
    [
        pytest.param({"top_k": 4}, generation.TopKLogitsWarper(4), id="top_k"),
        pytest.param({"top_p": 0.6}, generation.TopPLogitsWarper(0.6), id="top_p"),
        pytest.param({"top_p": 1e-9}, generation.TopPLogitsWarper(1e-9), id="tiny top_p"),
        pytest.param({"min_p": 0.3}, generation.MinPLogitsWarper(0.3), id="min_p"),
    ],
)
def test_filters_leave_what_transformers_leaves(params: dict[str, object], warper: object) -> None:
    assert set(draws(400, **params)) == kept(warper)


def test_a_nucleus_wider_than_the_first_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = torch.zeros(VOCAB)
    monkeypatch.setattr(sampler, "_TOP_P_FIRST", 5)
    assert len(set(draws(600, flat, top_p=0.9))) == 45


def test_draws_follow_the_distribution() -> None:
    count = 3000
    expected = torch.softmax(LOGITS / 0.9, dim=-1)
    observed = torch.bincount(torch.tensor(draws(count, temperature=0.9)), minlength=VOCAB) / count
    assert float((observed - expected).abs().sum()) < 0.15


def test_temperature_zero_and_next_to_zero_take_the_best() -> None:
    best = int(LOGITS.argmax())
    assert set(draws(20, temperature=0.0)) == set(draws(20, temperature=1e-30)) == {best}


def test_penalties_match_transformers() -> None:
    prompt, output = [3, 4, 5], [6, 6, 7]
    repeated = sampler._adjust(LOGITS, sequence(prompt, output, repetition_penalty=1.7), frozenset())
    processor = generation.RepetitionPenaltyLogitsProcessor(1.7)
    torch.testing.assert_close(repeated, processor(torch.tensor([prompt + output]), LOGITS[None].clone())[0])
    both = sampler._adjust(LOGITS, sequence(prompt, output, presence_penalty=0.5, frequency_penalty=0.25), frozenset())
    want = LOGITS.clone()
    want[6] -= 0.5 + 2 * 0.25
    want[7] -= 0.5 + 0.25
    torch.testing.assert_close(both, want)


def test_ends_are_forbidden_until_enough_was_said() -> None:
    params = {"min_tokens": 2, "stop_token_ids": frozenset({8})}
    early = sampler._adjust(LOGITS, sequence([1], [2], **params), frozenset({9}))
    assert not torch.isfinite(early[[8, 9]]).any()
    later = sampler._adjust(LOGITS, sequence([1], [2, 3], **params), frozenset({9}))
    assert torch.isfinite(later).all()


def test_a_biased_token_wins_or_never_comes() -> None:
    assert set(draws(50, logit_bias=((11, 100.0),))) == {11}
    best = int(LOGITS.argmax())
    assert best not in draws(200, logit_bias=((best, -100.0),))


def test_rows_that_are_not_finite_are_named_and_the_others_sampled() -> None:
    logits = torch.stack([LOGITS, LOGITS.clone(), LOGITS])
    logits[1, 5] = float("nan")
    rows = [sequence([1], [], temperature=0.0) for _ in range(3)]
    assert [outcome.token for outcome in sampler.sample(logits, rows, frozenset())] == [
        int(LOGITS.argmax()),
        None,
        int(LOGITS.argmax()),
    ]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), position=st.integers(0, 10**6))
def test_the_number_depends_on_seed_and_position(seed: int, position: int) -> None:
    number = sampler.uniform(seed, position)
    assert 0.0 <= number < 1.0
    assert number == sampler.uniform(seed, position)
    assert number != sampler.uniform(seed, position + 1)


def test_log_probabilities_are_of_the_raw_logits() -> None:
    params = {"temperature": 0.5, "logit_bias": ((11, 100.0),), "top_logprobs": 3}
    (outcome,) = sampler.sample(LOGITS[None], [sequence([1], [], **params)], frozenset())
    raw = torch.log_softmax(LOGITS, dim=-1)
    assert outcome.token == 11
    assert outcome.logprob is not None
    assert outcome.logprob.value == pytest.approx(float(raw[11]))
    assert [token for token, _ in outcome.logprob.top] == raw.topk(3).indices.tolist()
