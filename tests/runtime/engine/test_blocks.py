"""KV blocks: exact accounting under any history, prefixes found only where they may be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.engine.causal.blocks import BlockPool, OutOfBlocks, chain_hash

BLOCK = 2


class PoolHistory(RuleBasedStateMachine):
    """Sequences that take, fill, share and release blocks in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(7, BLOCK)
        self.held: list[tuple[bytes, list[int], list[int]]] = []

    @rule(salt=st.sampled_from([b"a", b"b"]), tokens=st.lists(st.integers(0, 2), min_size=1, max_size=10))
    def start(self, salt: bytes, tokens: list[int]) -> None:
        owner = salt.decode()
        blocks, names = self.pool.match(salt, tokens, owner)
        lacking = self.pool.blocks_for(len(tokens)) - len(blocks)
        try:
            blocks = blocks + self.pool.take(lacking, owner)
        except OutOfBlocks:
            self.pool.release(blocks)
            return
        for number in range(len(names), len(tokens) // BLOCK):
            parent = names[-1] if names else salt
            names.append(self.pool.publish(blocks[number], parent, tokens[number * BLOCK : (number + 1) * BLOCK]))
        self.held.append((salt, tokens, blocks))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), keep=st.booleans())
    def end(self, data: st.DataObject, keep: bool) -> None:
        _, _, blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.release(blocks, keep=keep)

    @rule()
    def drop(self) -> None:
        self.pool.drop_cache()

    @rule(count=st.integers(0, 7))
    def shrink(self, count: int) -> None:
        before, available = self.pool.total, self.pool.available
        gone = self.pool.withdraw(count)
        assert len(gone) == min(count, available, before - 1)
        assert self.pool.total == before - len(gone)

    @rule(count=st.integers(0, 7))
    def grow(self, count: int) -> None:
        self.pool.restore(count)

    @invariant()
    def every_block_is_in_one_state(self) -> None:
        used = {index for _, _, blocks in self.held for index in blocks}
        assert self.pool.used == len(used)
        assert self.pool.free + self.pool.used + self.pool.cached == self.pool.total
        assert self.pool.total + self.pool.withdrawn == self.pool.capacity == 7

    @invariant()
    def every_holder_is_counted_once_per_block(self) -> None:
        by_owner: dict[str, set[int]] = {}
        for salt, _, blocks in self.held:
            by_owner.setdefault(salt.decode(), set()).update(blocks)
        assert self.pool.holders == {owner: len(blocks) for owner, blocks in by_owner.items()}

    @invariant()
    def a_shared_block_holds_one_prefix(self) -> None:
        content: dict[int, tuple[bytes, tuple[int, ...]]] = {}
        for salt, tokens, blocks in self.held:
            for number, index in enumerate(blocks[: len(tokens) // BLOCK]):
                prefix = (salt, tuple(tokens[: (number + 1) * BLOCK]))
                assert content.setdefault(index, prefix) == prefix


class CompactedPoolHistory(PoolHistory):
    """The same where the pool is cut at its end: what is there moves, and whoever holds it follows."""

    @rule(count=st.integers(0, 7))
    def shrink(self, count: int) -> None:
        before, available, cached = self.pool.total, self.pool.available, self.pool.cached
        gone, moves = self.pool.compact(count)
        assert gone == list(range(before - 1, self.pool.total - 1, -1))
        assert len(gone) == min(count, available, before - 1)
        assert set(moves) <= set(gone)
        assert not set(moves.values()) & set(gone)
        assert self.pool.cached >= min(cached, self.pool.total - self.pool.used), "free blocks go before cached ones"
        for _, _, blocks in self.held:
            blocks[:] = [moves.get(block, block) for block in blocks]

    @invariant()
    def what_is_there_are_the_first(self) -> None:
        assert all(index < self.pool.total for _, _, blocks in self.held for index in blocks)

    @invariant()
    def what_is_known_is_where_it_moved(self) -> None:
        for salt, tokens, blocks in self.held:
            again, _ = self.pool.match(salt, [*tokens, 9], salt.decode())
            self.pool.release(again)
            assert len(again) <= len(blocks)


TestCompactedPoolHistory = CompactedPoolHistory.TestCase
TestCompactedPoolHistory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

TestPoolHistory = PoolHistory.TestCase
TestPoolHistory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def filled(pool: BlockPool, salt: bytes, tokens: list[int]) -> list[int]:
    blocks = pool.take(pool.blocks_for(len(tokens)))
    parent = salt
    for number in range(len(tokens) // BLOCK):
        parent = pool.publish(blocks[number], parent, tokens[number * BLOCK : (number + 1) * BLOCK])
    return blocks


def test_a_prefix_is_found_again_but_never_the_whole_prompt() -> None:
    pool = BlockPool(8, BLOCK)
    pool.release(filled(pool, b"t", [1, 2, 3, 4]))
    found, _ = pool.match(b"t", [1, 2, 3, 4])
    assert len(found) == 1
    found, _ = pool.match(b"t", [1, 2, 3, 4, 5])
    assert len(found) == 2


def test_another_salt_finds_nothing() -> None:
    pool = BlockPool(8, BLOCK)
    pool.release(filled(pool, b"tenant-a", [1, 2, 3, 4]))
    assert pool.match(b"tenant-b", [1, 2, 3, 4, 5]) == ([], [])


def test_a_collision_of_names_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.engine.causal.blocks.chain_hash", lambda _parent, _tokens: b"same")
    pool = BlockPool(8, BLOCK)
    pool.release(filled(pool, b"t", [1, 2]))
    assert pool.match(b"t", [3, 4, 5]) == ([], [])
    assert len(pool.match(b"t", [1, 2, 5])[0]) == 1


def test_the_end_of_the_oldest_prefix_is_evicted_first() -> None:
    pool = BlockPool(4, BLOCK)
    pool.release(filled(pool, b"t", [1, 2, 3, 4]))
    pool.release(filled(pool, b"t", [5, 6]))
    pool.release(pool.take(2))
    assert pool.evictions == 1
    assert len(pool.match(b"t", [1, 2, 3, 4, 9])[0]) == 1
    assert len(pool.match(b"t", [5, 6, 9])[0]) == 1


def test_what_is_forgotten_is_not_found() -> None:
    pool = BlockPool(4, BLOCK)
    pool.release(filled(pool, b"t", [1, 2]), keep=False)
    assert pool.match(b"t", [1, 2, 3]) == ([], [])
    assert pool.free == 4


def test_shrinking_takes_free_blocks_before_cached_ones_and_never_the_last() -> None:
    pool = BlockPool(6, BLOCK)
    pool.release(filled(pool, b"t", [1, 2, 3, 4]))
    assert pool.withdraw(4) == [2, 3, 4, 5]
    assert (pool.total, pool.cached, pool.evictions) == (2, 2, 0)
    assert pool.withdraw(9) == [1]  # the end of the prefix goes first
    assert (pool.total, pool.free, pool.cached) == (1, 0, 1)
    assert pool.restore(2) == [5, 1]
    assert (pool.total, pool.free) == (3, 2)
    assert len(pool.match(b"t", [1, 2, 3, 4, 5])[0]) == 1


def test_a_pool_that_is_cut_at_its_end_keeps_what_it_holds() -> None:
    pool = BlockPool(8, BLOCK)
    first = filled(pool, b"a", [1, 2, 3, 4])
    held = filled(pool, b"b", [5, 6])
    last = filled(pool, b"c", [7, 8, 9, 1])
    pool.release(last)  # cached, at 3 and 4
    pool.release(first)  # cached, at 0 and 1, and used later
    assert pool.compact(3) == ([7, 6, 5], {})
    gone, moves = pool.compact(3)  # the oldest prefix goes, from its end; the one that is used moves
    assert (gone, moves) == ([4, 3, 2], {2: 1})
    assert pool.match(b"b", [5, 6, 0], "b")[0] == [moves[held[0]]]
    assert pool.match(b"a", [1, 2, 3, 4, 0])[0] == [0], "all but its end"
    assert pool.match(b"c", [7, 8, 9, 1, 0])[0] == []
    assert sorted(pool.restore(2)) == [2, 3], "the lowest come back first"
    assert (pool.total, pool.used, pool.withdrawn) == (4, 2, 4)


def test_known_names_are_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BlockPool(8, BLOCK)
    pool.release(filled(pool, b"t", [1, 2, 3, 4]))
    chain: list[bytes] = []
    first = pool.match(b"t", [1, 2, 3, 4, 5], chain=chain)
    monkeypatch.setattr("runtime.engine.causal.blocks.chain_hash", None)
    assert pool.match(b"t", [1, 2, 3, 4, 5], chain=chain) == first


def test_releasing_twice_is_an_error() -> None:
    pool = BlockPool(4, BLOCK)
    blocks = pool.take(1)
    pool.release(blocks)
    with pytest.raises(ValueError, match="more often"):
        pool.release(blocks)


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    pool = BlockPool(4, BLOCK, prefix_cache=False)
    pool.release(filled(pool, b"t", [1, 2]))
    assert (pool.free, pool.cached) == (4, 0)
    assert pool.match(b"t", [1, 2, 3]) == ([], [])


@given(st.lists(st.integers(0, 2**31), min_size=1, max_size=4), st.lists(st.integers(0, 2**31), min_size=1, max_size=4))
def test_names_differ_where_tokens_differ(one: list[int], other: list[int]) -> None:
    assert (chain_hash(b"s", one) == chain_hash(b"s", other)) == (one == other)
