"""Amounts, bars, charts and glyphs: pure values in, geometry and words out."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.states import UPLOAD, VERSION
from console.presenters import amounts, audit, charts, comparison, glyphs, hbm, samples
from fleet.states import DEVICE, NODE, DeviceState, NodeState
from kernel.machine import Transitions
from serving.conditions import WORDS
from serving.states import DEPLOYMENT, REPLICA, ReplicaState

GIB = 1024**3
NOON = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0\u00a0B"), (1023, "1023\u00a0B"), (1536, "1.5\u00a0KiB"), (35.4 * GIB, "35.4\u00a0GiB"), (None, "–")],
)
def test_memory_is_said_in_iec_units(count: float | None, text: str) -> None:
    assert str(amounts.memory(count)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (99_999, "99,999"), (100_000, "100\u00a0k"), (21_300_000, "21.3\u00a0M"), (0.04, "0.04")],
)
def test_counts_keep_zero_and_shorten_large_numbers(value: float, text: str) -> None:
    assert str(amounts.count(value)) == text


sizes = st.integers(0, 40 * GIB)


@given(sizes, sizes, sizes, sizes, sizes, st.integers(1, 80 * GIB))
def test_segments_never_leave_the_bar(
    other: int, weights: int, workspace: int, used: int, cached: int, total: int
) -> None:
    memory = hbm.Memory(total, other, weights, workspace, used, cached)
    parts = hbm.segments(memory)
    assert [part.name for part in parts] == [name for name in hbm.SEGMENTS if name in {part.name for part in parts}]
    assert all(part.x >= 0 and part.end <= 100.01 for part in parts)


def test_cached_blocks_lie_above_the_level() -> None:
    memory = hbm.of_ledger(
        {"total_bytes": 100, "weights_bytes": 40, "kv_used_bytes": 30, "kv_cached_bytes": 25, "context_bytes": 5}
    )
    assert memory is not None
    assert memory.level == pytest.approx(0.75)
    assert [tick.crossed for tick in hbm.ticks(memory)] == [True, False, False]
    assert memory.mood == ""
    assert hbm.of_ledger(None) is None


def test_an_aggregate_marks_its_fullest_member() -> None:
    whole = hbm.together([hbm.Memory(100, used=90), None, hbm.Memory(100, used=10)])
    assert whole is not None
    assert (whole.level, whole.peak, whole.peak_mood) == (0.5, 0.9, "high")


def test_a_vessel_fills_from_the_bottom_and_shows_its_inner_walls() -> None:
    cells = hbm.cells([(60, "mig", hbm.Memory(60, weights=30)), (20, "mig", None)], 80)
    assert [(cell.x, cell.width, cell.wall) for cell in cells] == [(0.0, 75.0, ""), (75.0, 25.0, "mig")]
    assert cells[0].rows[0].x == 50.0
    assert cells[1].level is None


def test_a_gap_in_the_data_is_a_gap_in_the_line() -> None:
    points = [(NOON + datetime.timedelta(minutes=m), value) for m, value in enumerate((1.0, 2.0, None, 4.0, 5.0))]
    chart = charts.line_chart("TTFT", "ms", [("main", "p95", points)], limit=8.0)
    assert chart.series[0].path.count("M") == 2
    assert chart.series[0].last == 5.0
    assert chart.scale == ["8", "4", "0"]
    assert chart.limit_y == 0.0
    assert len(chart.rows) == 5


def test_an_empty_chart_says_so_instead_of_drawing() -> None:
    assert charts.line_chart("TTFT", "ms", [("main", "p95", [])]).is_empty


@pytest.mark.parametrize(
    ("kind", "states"),
    [
        ("replica", ReplicaState.values),
        ("node", NodeState.values),
        ("gpu", DeviceState.values),
        ("deployment", WORDS),
        ("version", ["uploading", "validating", "ready", "rejected", "archived"]),
    ],
)
def test_every_state_has_a_glyph(kind: str, states: list[str]) -> None:
    assert set(states) <= set(glyphs.GLYPHS[kind])


def test_an_unknown_state_is_shown_under_its_own_name() -> None:
    assert glyphs.of("replica", "levitating").word == "levitating"


def test_samples_quote_what_a_shell_would_eat() -> None:
    curl = samples.chat("http://gw", "chat", "it's $HOME")[0].text
    assert "'\"'\"'" in curl
    assert (
        samples.command("deploy", "m:1", endpoint="a b", weight=0).text
        == "millpond deploy m:1 --endpoint 'a b' --weight 0"
    )


@pytest.mark.parametrize("table", [REPLICA, NODE, DEVICE, DEPLOYMENT, VERSION, UPLOAD], ids=lambda table: table.name)
def test_every_move_of_a_state_machine_has_a_sentence(table: Transitions[str]) -> None:
    moved_to = {state for state in table.states if table.sources_of(state)}
    silent = [f"{table.name}.{state}" for state in moved_to if f"{table.name}.{state}" not in audit.SENTENCES]
    assert not silent


def test_an_action_without_a_sentence_is_shown_by_its_name() -> None:
    class Event:
        action, subject_label, subject_id, actor_label = "pond.stirred", "north", "x", "lin"

    line = audit.line(Event())
    assert not line.known
    assert line.text == "pond.stirred north"


def _minutes(*values: float) -> list[tuple[datetime.datetime, float | None]]:
    return [(NOON + datetime.timedelta(minutes=minute), value) for minute, value in enumerate(values)]


def test_a_share_that_stays_is_one_long_step() -> None:
    chart = charts.line_chart("Share", "%", [("planned", "planned", _minutes(0, 0, 0, 50, 50, 100))], top=100.0)
    assert chart.series[0].path == "M0 90H40H60V45H80H100V0"


def test_of_flags_side_by_side_only_the_last_is_named() -> None:
    at = [(NOON + datetime.timedelta(minutes=minute), f"{minute} %", "") for minute in (10, 50, 52, 53)]
    chart = charts.line_chart("Share", "%", [("main", "share", _minutes(*range(101)))], flags=at)
    assert [(flag.x, flag.label) for flag in chart.flags] == [(10.0, "10 %"), (50.0, ""), (52.0, ""), (53.0, "53 %")]


def test_times_side_by_side_have_one_unit() -> None:
    assert comparison.value_text(8652, "ms", 10_001) == "8.65\u00a0s"
    assert comparison.value_text(8652, "ms", 9_000) == "8,652\u00a0ms"
