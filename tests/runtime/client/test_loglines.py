"""Log lines as the CLI shows them."""

import json

import pytest

from runtime.client.loglines import readable


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            {"timestamp": "2026-01-02T03:04:05.678Z", "level": "info", "event": "ready", "process": "engine", "n": 12},
            "03:04:05 info    ready  n=12",
        ),
        (
            {"event": "step failed", "level": "error", "reason": "out of memory", "exception": "Traceback: x"},
            'error   step failed  reason="out of memory"\nTraceback: x',
        ),
        ({"no": "event"}, '{"no": "event"}'),
        ("Killed", "Killed"),
        ("[1, 2]", "[1, 2]"),
    ],
)
def test_a_structured_line_is_put_in_words_and_any_other_stays(line: object, shown: str) -> None:
    assert readable(line if isinstance(line, str) else json.dumps(line)) == shown
