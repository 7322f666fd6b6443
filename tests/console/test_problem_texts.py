"""Every code that the control plane answers is said in the visitor's language."""

import re
from pathlib import Path

from django.utils import translation

from console import problems
from kernel import errors

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r'\bcode\s*(?::\s*[^=\n]+)?=\s*"([a-z][a-z0-9_]+)"')
# Answers to agents and to HTTP clients before anybody is known; no page shows them.
OF_MACHINES = {"host", "join_refused", "machine_removed", "machine_unknown", "token_used", "unreadable"}


def raised() -> set[str]:
    """Codes in the source of the control plane."""
    sources = (path.read_text() for room in ("platform", "tenants", "console") for path in (ROOT / room).rglob("*.py"))
    return {code for text in sources for code in CODE.findall(text)}


def test_every_code_has_a_text_in_both_languages() -> None:
    codes = raised()
    assert len(codes) > 120
    assert codes >= OF_MACHINES
    texts = {**problems._TEXTS, **problems._BEGINNINGS}
    assert not codes - OF_MACHINES - texts.keys()
    with translation.override("zh-hans"):
        untranslated = [code for code, text in texts.items() if not re.search("[\u4e00-\u9fff]", str(text))]
    assert not untranslated


def test_what_a_room_says_exactly_is_not_lost() -> None:
    refused = errors.QuotaExceeded("Holds 3 of 3 replicas; 1 more is asked for.")
    with translation.override("en"):
        assert problems.describe(refused).text == "Holds 3 of 3 replicas; 1 more is asked for."
    with translation.override("zh-hans"):
        said = problems.describe(refused)
    assert said.text == "租户的配额不足。 Holds 3 of 3 replicas; 1 more is asked for."
    assert not said.own_words
