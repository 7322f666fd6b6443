"""Where a prompt's beginning is likely to be cached. Pure.

A gateway has no tokenizer, so prefixes are known by their bytes: the body is cut into chunks of fixed size from where
the prompt begins, and each chunk's key hashes the key before it. Two requests share as many keys as they share whole
chunks from the start. The caller's prefix salt enters the first key, so what one tenant sends never shows in how
another's requests are routed. What an engine really holds is its own affair: a wrong guess costs time, never an answer.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

CHUNK_BYTES: Final = 1024
BYTES_PER_TOKEN: Final = 4
CHUNK_TOKENS: Final = CHUNK_BYTES // BYTES_PER_TOKEN
MAX_CHUNKS: Final = 1024  # the first mebibyte; what follows is too far in to be shared often

_STARTS: Final = (b'"messages":', b'"prompt":', b'"input":', b'"tools":')


def prompt_of(body: bytes) -> memoryview:
    """The part of a request's body that a prompt is made of: from its first such field to the end.

    Inside JSON strings quotes are escaped, so the name of a field cannot be met in a caller's text.
    """
    found = [at for name in _STARTS if (at := body.find(name)) >= 0]
    return memoryview(body)[min(found, default=0) :]


def keys_of(prompt: bytes | memoryview, salt: str) -> list[int]:
    """Chained 64-bit keys of the whole chunks of ``prompt``, at most :data:`MAX_CHUNKS`."""
    chain = hashlib.blake2b(salt.encode(), digest_size=8)
    keys: list[int] = []
    for at in range(0, min(len(prompt) - CHUNK_BYTES, (MAX_CHUNKS - 1) * CHUNK_BYTES) + 1, CHUNK_BYTES):
        chain.update(prompt[at : at + CHUNK_BYTES])
        keys.append(int.from_bytes(chain.digest(), "little"))
    return keys


class PrefixIndex:
    """The newest ``most`` chunk keys that were sent to one replica, oldest forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def match(self, keys: Sequence[int]) -> int:
        """How many of ``keys`` from the start are known.

        A chunk is always newer than those that follow it (:meth:`add`), so the known ones are a beginning of the chain
        and the border can be found by halving.
        """
        known = self._keys
        if not keys or keys[0] not in known:
            return 0
        low, high = 1, len(keys)
        while low < high:
            middle = (low + high + 1) // 2
            if keys[middle - 1] in known:
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, keys: Sequence[int]) -> None:
        """Note that a prompt with these keys was sent: its first chunk becomes the newest of all."""
        known = self._keys
        for key in reversed(keys[: self._most]):
            known[key] = None
            known.move_to_end(key)
        while len(known) > self._most:
            known.popitem(last=False)
