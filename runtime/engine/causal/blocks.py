"""KV blocks: who holds which, and which prefixes are still in them. No torch; deterministic.

A block is in exactly one of three states: ``free`` (content worthless), ``used`` (referenced by at least one
sequence) or ``cached`` (referenced by none, but it holds the KV of a known prefix). Always
``free + used + cached == total``. Cached blocks are given away oldest first when the free ones are gone.

A pool can shrink: ``total`` is what there is now, ``capacity`` what it was made with, and ``withdrawn`` blocks are in
no state until they are restored.

A prefix is named by a chained hash over full blocks that starts from a salt, so that two tenants never meet; the
tokens are compared on a hit, so that a collision of hashes cannot mix two prompts.
"""

import dataclasses
import hashlib
import struct
from collections import OrderedDict, deque
from collections.abc import Sequence as TokenList


class OutOfBlocks(Exception):
    """Fewer blocks are free or evictable than were asked for. Nothing was taken."""


def chain_hash(parent: bytes, tokens: TokenList[int]) -> bytes:
    """Name of the prefix that continues ``parent`` (a name, or the salt) with one full block of ``tokens``."""
    return hashlib.blake2b(parent + struct.pack(f"<{len(tokens)}I", *tokens), digest_size=16).digest()


@dataclasses.dataclass(slots=True)
class _Block:
    """``owner`` is who refers to it first; prefixes are salted, so all who share it are of one tenant."""

    references: int = 0
    owner: str = ""
    name: bytes | None = None
    tokens: tuple[int, ...] = ()
    parent: bytes = b""


class BlockPool:
    """Owner of all KV blocks of one engine. Ids run from 0 to ``capacity - 1``."""

    def __init__(self, total: int, block_tokens: int, *, prefix_cache: bool = True) -> None:
        if total < 1 or block_tokens < 1:
            raise ValueError("a pool needs at least one block of at least one token")
        self.total = total
        self.capacity = total
        self.block_tokens = block_tokens
        self.prefix_cache = prefix_cache
        self._blocks = [_Block() for _ in range(total)]
        self._free: deque[int] = deque(range(total))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first
        self._withdrawn: list[int] = []
        self._by_name: dict[bytes, int] = {}
        self._held: dict[str, int] = {}
        self.evictions = 0
        self.releases = 0  # changes whenever blocks may have become available

    @property
    def free(self) -> int:
        """Blocks whose content is worthless."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that hold a prefix nobody uses right now."""
        return len(self._cached)

    @property
    def used(self) -> int:
        """Blocks that a sequence refers to."""
        return self.total - len(self._free) - len(self._cached)

    @property
    def withdrawn(self) -> int:
        """Blocks that are taken out of the pool for now."""
        return len(self._withdrawn)

    @property
    def available(self) -> int:
        """Blocks that :meth:`take` could give."""
        return len(self._free) + len(self._cached)

    def held_by(self, owner: str) -> int:
        """Used blocks of ``owner``; one that several of its sequences share counts once."""
        return self._held.get(owner, 0)

    @property
    def holders(self) -> dict[str, int]:
        """Used blocks by owner; owners without any are left out."""
        return self._held

    def blocks_for(self, tokens: int) -> int:
        """How many blocks ``tokens`` tokens need."""
        return -(-tokens // self.block_tokens)

    def take(self, count: int, owner: str = "") -> list[int]:
        """Give ``owner`` ``count`` blocks, each with one reference.

        Raises:
            OutOfBlocks: fewer are available; nothing was taken.
        """
        if count > self.available:
            raise OutOfBlocks
        if count <= 0:
            return []
        taken = [self._take_one() for _ in range(count)]
        for index in taken:
            block = self._blocks[index]
            block.references, block.owner = 1, owner
        self._held[owner] = self._held.get(owner, 0) + count
        return taken

    def _take_one(self) -> int:
        return self._free.popleft() if self._free else self._evict()

    def _evict(self) -> int:
        index, _ = self._cached.popitem(last=False)
        self._forget(index)
        self.evictions += 1
        return index

    def release(self, indices: TokenList[int], *, keep: bool = True) -> None:
        """Drop one reference from each block; ``keep=False`` also forgets what the blocks hold.

        Later blocks of a sequence are released first, so that eviction shortens a prefix from its end.
        """
        self.releases += 1
        for index in reversed(indices):
            block = self._blocks[index]
            if block.references < 1:
                raise ValueError(f"block {index} is released more often than it was taken")
            block.references -= 1
            if not keep:
                self._forget(index)
            if block.references:
                continue
            self._let_go(block.owner)
            if block.name is None:
                self._free.append(index)
            else:
                self._cached[index] = None

    def _let_go(self, owner: str) -> None:
        left = self._held[owner] - 1
        if left:
            self._held[owner] = left
        else:
            del self._held[owner]

    def match(
        self, salt: bytes, tokens: TokenList[int], owner: str = "", chain: list[bytes] | None = None
    ) -> tuple[list[int], list[bytes]]:
        """Find the longest cached prefix of ``tokens``; each block found gets a reference.

        Returns the blocks and their names. Only full blocks are found, and never all of ``tokens``: the last token
        has to be computed for its logits. ``chain`` holds names of the full blocks of ``tokens`` as far as they are
        known, and is continued here: whoever asks again does not hash again.
        """
        found: list[int] = []
        chain = [] if chain is None else chain
        if not self.prefix_cache:
            return found, []
        parent, size = salt, self.block_tokens
        for number in range((len(tokens) - 1) // size):
            piece = tokens[number * size : (number + 1) * size]
            if number == len(chain):
                chain.append(chain_hash(parent, piece))
            name = chain[number]
            index = self._by_name.get(name)
            if index is None:
                break
            block = self._blocks[index]
            if block.tokens != tuple(piece) or block.parent != parent:
                break
            found.append(index)
            parent = name
        for index in found:
            self._refer(index, owner)
        return found, chain[: len(found)]

    def _refer(self, index: int, owner: str) -> None:
        block = self._blocks[index]
        if block.references == 0:
            del self._cached[index]
            block.owner = owner
            self._held[owner] = self._held.get(owner, 0) + 1
        block.references += 1

    def publish(self, index: int, parent: bytes, tokens: TokenList[int], name: bytes | None = None) -> bytes:
        """Say that the used block ``index`` now holds ``tokens`` after ``parent``; return the prefix's name.

        ``name`` spares the hash when it is known.

        When another block already holds this prefix the newcomer stays unnamed: two owners of one name would make
        eviction wrong.
        """
        name = chain_hash(parent, tokens) if name is None else name
        block = self._blocks[index]
        if self.prefix_cache and name not in self._by_name and block.name is None:
            block.name, block.parent, block.tokens = name, parent, tuple(tokens)
            self._by_name[name] = index
        return name

    def _forget(self, index: int) -> None:
        block = self._blocks[index]
        if block.name is not None:
            del self._by_name[block.name]
        block.name, block.parent, block.tokens = None, b"", ()

    def drop_cache(self) -> int:
        """Forget every cached prefix; return how many blocks became free."""
        count = len(self._cached)
        for index in self._cached:
            self._forget(index)
            self._free.append(index)
        self._cached.clear()
        return count

    def withdraw(self, count: int) -> list[int]:
        """Take up to ``count`` blocks out of the pool, free ones first, then the least recently cached.

        Those with the highest ids go first: runs of neighbours are what memory can be given back from. At least one
        block stays.
        """
        count = min(count, self.available, self.total - 1)
        if count <= 0:
            return []
        free = sorted(self._free)
        chosen = free[max(0, len(free) - count) :]
        self._free = deque(free[: len(free) - len(chosen)])
        chosen.extend(self._evict() for _ in range(count - len(chosen)))
        self.total -= len(chosen)
        self._withdrawn.extend(chosen)
        return chosen

    def compact(self, count: int) -> tuple[list[int], dict[int, int]]:
        """Take the up to ``count`` blocks with the highest ids out of the pool: how one allocation can be cut.

        What is used or cached there moves to free blocks below. Returns the blocks taken out, and for each that moved
        its new place: whoever holds blocks has to follow. At least one block stays. A pool that was made smaller in
        this way is not made smaller in the other.
        """
        count = min(count, self.available, self.total - 1)
        if count <= 0:
            return [], {}
        while len(self._free) < count:
            self._free.append(self._evict())
        border, free = self.total - count, set(self._free)
        below = sorted(index for index in free if index < border)
        held = [index for index in range(border, self.total) if index not in free]
        moves = dict(zip(held, below, strict=False))
        for source, target in moves.items():
            block = self._blocks[target], self._blocks[source] = self._blocks[source], _Block()
            if (name := block[0].name) is not None:
                self._by_name[name] = target
        self._cached = OrderedDict((moves.get(index, index), None) for index in self._cached)
        self._free = deque(below[len(moves) :])
        gone = list(range(self.total - 1, border - 1, -1))
        self._withdrawn.extend(gone)  # the lowest comes back first
        self.total = border
        return gone, moves

    def restore(self, count: int) -> list[int]:
        """Put up to ``count`` withdrawn blocks back as free ones, the last withdrawn first."""
        count = min(count, len(self._withdrawn))
        if count <= 0:
            return []
        back = self._withdrawn[-count:]
        del self._withdrawn[-count:]
        self._free.extend(back)
        self.total += count
        self.releases += 1
        return back
