"""Giving pages of a large array back to the system while the array stays. No torch.

The pages read as zeros afterwards and are taken from the system again when they are written.
"""

import ctypes
import mmap
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

# From bits/mman-linux.h: drop the pages of a private anonymous mapping now.
_MADV_DONTNEED: Final = 4


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def runs(indices: list[int]) -> Iterator[tuple[int, int]]:
    """``indices`` as (first, count) of neighbours, ascending."""
    ordered = sorted(indices)
    first = 0
    for number in range(1, len(ordered) + 1):
        if number == len(ordered) or ordered[number] != ordered[number - 1] + 1:
            yield ordered[first], number - first
            first = number


def give_back(address: int, rows: int, row_bytes: int, block_bytes: int, blocks: list[int]) -> int:
    """Drop the whole pages of ``blocks`` in each of ``rows`` rows that start at ``address``; return bytes dropped.

    A row is ``row_bytes`` long and holds one block after another, ``block_bytes`` each. Pages that a block shares with
    a neighbour stay. Returns 0 where the system has no such call.
    """
    try:
        advise = _libc().madvise
    except (OSError, AttributeError):
        return 0
    page, dropped = mmap.PAGESIZE, 0
    for first, count in runs(blocks):
        for row in range(rows):
            start = address + row * row_bytes + first * block_bytes
            end = (start + count * block_bytes) // page * page
            start = -(-start // page) * page
            if end > start and not advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED):
                dropped += end - start
    return dropped
