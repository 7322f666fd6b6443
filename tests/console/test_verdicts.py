"""Verdicts on pages: in English what the judge says, in Chinese the same facts."""

import pytest
from django.utils import translation

from console.presenters import verdicts
from rollouts.judge.checks import Tolerance
from rollouts.judge.evidence import Evidence, Histogram
from rollouts.judge.verdict import Question, judge


def side(requests: int, errors: int) -> Evidence:
    durations = [Histogram() for _ in range(4)]
    for histogram in durations:
        for number in range(requests - errors):
            histogram.add(100.0 + number % 7)
    return Evidence(requests, errors, *durations)


@pytest.mark.parametrize(("errors", "word"), [(80, "未通过"), (0, "通过")])
def test_a_verdict_is_said_in_both_languages(errors: int, word: str) -> None:
    question = Question(min_requests=50, held=True, overdue=False)
    found = judge(side(400, 1), side(200, errors), question, {}, Tolerance())
    kept = found.as_dict()
    with translation.override("en"):
        assert verdicts.sentence(kept).replace("\u00a0", " ") == found.sentence.replace("\u00a0", " ")
    with translation.override("zh-hans"):
        said = verdicts.sentence(kept)
    assert said.startswith(word)
    assert "request" not in said


def test_what_no_check_decided_keeps_the_judges_words() -> None:
    found = judge(side(400, 1), side(3, 0), Question(50, held=True, overdue=True), {}, Tolerance())
    assert verdicts.sentence(found.as_dict()) == ""
