"""A CUDA device that others use as well: what counts against this engine, and what it plans with."""

import dataclasses

import pytest
import torch

from runtime.engine.causal import probes

pytestmark = pytest.mark.engine


@dataclasses.dataclass
class Card:
    """A CUDA device of 80 GiB: what this process's allocator holds, its context, and what others use."""

    held: int = 0
    context: int = 500 << 20
    others: int = 0
    tells: bool = True

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        total = 80 << 30
        free = lambda _device: (total - self.held - self.context - self.others, total)  # noqa: E731
        monkeypatch.setattr(torch.cuda, "mem_get_info", free)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _device: self.held)
        own = lambda _device: self.held + self.context if self.tells else None  # noqa: E731
        monkeypatch.setattr(probes, "_used_by_this_process", own)


def test_what_neighbours_use_of_their_own_part_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of 30 GiB on a device of 80: neighbours count as far as they take from what is promised."""
    card, cap, gib = Card(others=40 << 30), 30 << 30, 1 << 30
    card.patch(monkeypatch)
    probe = probes.CudaProbe(torch.device("cuda", 0), cap)
    assert probe.context_bytes() == card.context
    assert probe.reachable_bytes() == cap
    card.held = 20 * gib
    accounted = card.held + card.context
    assert probe.unaccounted_bytes(accounted) == 0, "they use what is theirs"
    card.others = 55 * gib
    missing = cap + card.others - (80 << 30)
    assert probe.unaccounted_bytes(accounted) == missing == 5 * gib
    card.others, card.held = 0, 22 * gib
    assert probe.unaccounted_bytes(accounted) == 2 * gib, "what has grown here is seen while others leave room"


def test_the_pool_is_planned_with_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(others=60 << 30)
    card.patch(monkeypatch)
    for cap, want in ((40 << 30, 20 << 30), (0, 20 << 30), (10 << 30, 10 << 30)):
        probe = probes.CudaProbe(torch.device("cuda", 0), cap)
        probe.context_bytes()
        assert probe.reachable_bytes() == want
    card.tells = False
    probe = probes.CudaProbe(torch.device("cuda", 0), 0)
    assert probe.context_bytes() == 1 << 30, "nobody can tell: what is usual, not what others hold"
    card.others = 0
    assert probe.context_bytes() == card.context, "never more than is in use at all"
