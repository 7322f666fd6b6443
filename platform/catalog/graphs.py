"""Sizes of what a graph model computes, which depend on what callers send (pure).

A first dimension that is open is the batch, any other open one the length; bytes are kept by the powers of both.
"""

from collections.abc import Mapping, Sequence
from typing import Final

#: Elements of an open dimension that is not the batch, where the serving config names no ``max_model_len``.
DEFAULT_LENGTH: Final = 512

#: Bytes by powers of batch and length: ``{(1, 0): 400}`` is 400 bytes for each row of a batch.
Terms = Mapping[tuple[int, int], int]


def bytes_of(terms: Terms, *, batch: int, length: int) -> int:
    """What ``terms`` come to."""
    return sum(each * batch**rows * length**columns for (rows, columns), each in terms.items())


def packed(terms: Terms) -> list[list[int]]:
    """For JSON: bytes, power of batch, power of length."""
    return [[each, rows, columns] for (rows, columns), each in sorted(terms.items())]


def unpacked(rows: Sequence[Sequence[int]]) -> dict[tuple[int, int], int]:
    """What :func:`packed` made.

    Raises:
        TypeError, ValueError: it is not of that form.
    """
    return {(int(batch), int(length)): int(each) for each, batch, length in rows}
