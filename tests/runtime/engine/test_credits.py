"""Credits of gateways, times that run out, and pages given back: small pure parts of the engine."""

import ctypes
import mmap
import types
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine.causal import credits, pages
from runtime.engine.causal.expiry import Expiries, Expiry


@given(slots=st.integers(1, 1024), places=st.integers(0, 10_000), gateways=st.integers(0, 64))
def test_credits_are_shared_and_never_below_one_while_open(slots: int, places: int, gateways: int) -> None:
    each = credits.share(slots=slots, places=places, gateways=gateways, admission_open=True)
    assert each >= 1
    assert each * max(1, gateways) <= max(slots + places, gateways)
    assert credits.share(slots=slots, places=places, gateways=gateways, admission_open=False) == 0


def test_gateways_are_remembered_for_minutes_and_are_bounded() -> None:
    roll = credits.GatewayRoll()
    assert roll.hear("", 0.0) == 0
    assert [roll.hear("a", 0.0), roll.hear("b", 60.0), roll.hear("a", 61.0)] == [1, 2, 2]
    assert roll.hear("", 61.0) == 2
    assert roll.hear("a", 60.0 + credits.MEMORY_SECONDS + 0.5) == 1
    for number in range(3 * credits.MAX_GATEWAYS):
        assert roll.hear(f"g{number}", 500.0) <= credits.MAX_GATEWAYS


def job(*, started: bool = False, ended: bool = False) -> Any:
    return types.SimpleNamespace(started=started, ended=ended)


def test_times_run_out_exactly_and_only_once() -> None:
    expiries = Expiries()
    first, second, gone, running = job(), job(), job(ended=True), job(started=True)
    expiries.watch(second, 9.0, Expiry.DEADLINE)
    expiries.watch(first, 5.0, Expiry.QUEUE)
    expiries.watch(gone, 1.0, Expiry.DEADLINE)
    expiries.watch(running, 1.0, Expiry.QUEUE)
    assert list(expiries.due(4.999)) == []
    assert list(expiries.due(5.0)) == [(first, Expiry.QUEUE)]
    assert list(expiries.due(100.0)) == [(second, Expiry.DEADLINE)]
    assert len(expiries) == 0


def test_what_has_ended_does_not_pile_up() -> None:
    expiries = Expiries()
    for number in range(5000):
        expiries.watch(job(ended=number % 100 != 0), 1e9, Expiry.DEADLINE)
    assert len(expiries) < 600


def test_neighbours_are_found() -> None:
    assert list(pages.runs([7, 1, 2, 9, 8, 4])) == [(1, 2), (4, 1), (7, 3)]
    assert list(pages.runs([])) == []


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads this process's memory from /proc")
def test_pages_are_given_back_and_neighbours_keep_their_content() -> None:
    block, blocks, rows = 4 * mmap.PAGESIZE, 64, 2
    area = mmap.mmap(-1, rows * blocks * block, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.write(b"\x07" * len(area))
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))

    def resident() -> int:
        text = Path("/proc/self/status").read_text()
        return int(next(line.split()[1] for line in text.splitlines() if line.startswith("RssAnon"))) * 1024

    before = resident()
    freed = pages.give_back(address, rows, blocks * block, block, list(range(32, 64)))
    assert freed == rows * 32 * block
    assert before - resident() > freed // 2
    for row in range(rows):
        assert area[row * blocks * block + 32 * block - 1] == 7
        assert area[row * blocks * block + 32 * block] == 0


def test_less_than_a_page_is_not_given_back() -> None:
    area = mmap.mmap(-1, 4 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.write(b"\x07" * len(area))
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    assert pages.give_back(address, 1, len(area), 512, [1, 3, 5]) == 0
    assert set(area[:]) == {7}
