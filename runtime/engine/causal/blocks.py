"""KV blocks: who holds which, and which prefixes are still in them. No torch; deterministic.

A block is in exactly one of three states: ``free`` (content worthless), ``used`` (referenced by at least one
sequence) or ``cached`` (referenced by none, but it holds the KV of a known prefix). Always
``free + used + cached == total``. Cached blocks are given away oldest first when the free ones are gone.

A prefix is named by a chained hash over full blocks that starts from a salt, so that two tenants never meet; the
tokens are compared on a hit, so that a collision of hashes cannot mix two prompts.
"""

import dataclasses
import hashlib
from collections import OrderedDict, deque
from collections.abc import Sequence as TokenList


class OutOfBlocks(Exception):
    """Fewer blocks are free or evictable than were asked for. Nothing was taken."""


def chain_hash(parent: bytes, tokens: TokenList[int]) -> bytes:
    """Name of the prefix that continues ``parent`` (a name, or the salt) with one full block of ``tokens``."""
    digest = hashlib.blake2b(parent, digest_size=16)
    digest.update(b"".join(token.to_bytes(4, "little") for token in tokens))
    return digest.digest()


@dataclasses.dataclass(slots=True)
class _Block:
    references: int = 0
    name: bytes | None = None
    tokens: tuple[int, ...] = ()
    parent: bytes = b""


class BlockPool:
    """Owner of all KV blocks of one engine. Ids run from 0 to ``total - 1``."""

    def __init__(self, total: int, block_tokens: int, *, prefix_cache: bool = True) -> None:
        if total < 1 or block_tokens < 1:
            raise ValueError("a pool needs at least one block of at least one token")
        self.total = total
        self.block_tokens = block_tokens
        self._prefix_cache = prefix_cache
        self._blocks = [_Block() for _ in range(total)]
        self._free: deque[int] = deque(range(total))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first
        self._by_name: dict[bytes, int] = {}
        self.evictions = 0

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
    def available(self) -> int:
        """Blocks that :meth:`take` could give."""
        return len(self._free) + len(self._cached)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks ``tokens`` tokens need."""
        return -(-tokens // self.block_tokens)

    def take(self, count: int) -> list[int]:
        """Give ``count`` blocks, each with one reference.

        Raises:
            OutOfBlocks: fewer are available; nothing was taken.
        """
        if count > self.available:
            raise OutOfBlocks
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        if self._free:
            index = self._free.popleft()
        else:
            index, _ = self._cached.popitem(last=False)
            self._forget(index)
            self.evictions += 1
        self._blocks[index].references = 1
        return index

    def release(self, indices: TokenList[int], *, keep: bool = True) -> None:
        """Drop one reference from each block; ``keep=False`` also forgets what the blocks hold.

        Later blocks of a sequence are released first, so that eviction shortens a prefix from its end.
        """
        for index in reversed(indices):
            block = self._blocks[index]
            if block.references < 1:
                raise ValueError(f"block {index} is released more often than it was taken")
            block.references -= 1
            if not keep:
                self._forget(index)
            if block.references:
                continue
            if block.name is None:
                self._free.append(index)
            else:
                self._cached[index] = None

    def match(self, salt: bytes, tokens: TokenList[int]) -> tuple[list[int], list[bytes]]:
        """Find the longest cached prefix of ``tokens``; each block found gets a reference.

        Returns the blocks and their names. Only full blocks are found, and never all of ``tokens``: the last token
        has to be computed for its logits.
        """
        found: list[int] = []
        names: list[bytes] = []
        if not self._prefix_cache:
            return found, names
        parent = salt
        size = self.block_tokens
        for start in range(0, len(tokens) - size, size):
            piece = tuple(tokens[start : start + size])
            name = chain_hash(parent, piece)
            index = self._by_name.get(name)
            if index is None or self._blocks[index].tokens != piece or self._blocks[index].parent != parent:
                break
            found.append(index)
            names.append(name)
            parent = name
        for index in found:
            self._refer(index)
        return found, names

    def _refer(self, index: int) -> None:
        block = self._blocks[index]
        if block.references == 0:
            del self._cached[index]
        block.references += 1

    def publish(self, index: int, parent: bytes, tokens: TokenList[int]) -> bytes:
        """Say that the used block ``index`` now holds ``tokens`` after ``parent``; return the prefix's name.

        When another block already holds this prefix the newcomer stays unnamed: two owners of one name would make
        eviction wrong.
        """
        name = chain_hash(parent, tokens)
        block = self._blocks[index]
        if self._prefix_cache and name not in self._by_name and block.name is None:
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
