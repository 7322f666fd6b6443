"""Layers that wait in host memory: copied to the device when it is their turn, and gone from it right after.

Every step copies each of them once, whatever its batch; the copy is not hidden behind the computation of other layers,
so a step takes longer by bytes over link. The device needs room for the largest of them only.
"""

import contextlib

from runtime.engine.causal import layers
from runtime.engine.causal.storages import bytes_of, storages_of, to_host


class Offloaded:
    """One layer. Use it as a context: inside, ``layer`` is on its device."""

    def __init__(self, layer: layers.Layer) -> None:
        self.layer = layer
        self.num_bytes = 0  # of the device
        self._away = [(storage, storage.nbytes(), to_host(storage)) for storage in storages_of(layer)]
        self._empty()

    def __enter__(self) -> layers.Layer:
        for storage, num_bytes, copy in self._away:
            storage.resize_(num_bytes)
            bytes_of(storage).copy_(copy, non_blocking=True)
        return self.layer

    def __exit__(self, *_exc: object) -> None:
        self._empty()

    def _empty(self) -> None:
        # what is still being computed keeps its order: the allocator hands the room on within the same stream only
        for storage, _num_bytes, _copy in self._away:
            storage.resize_(0)


Resident = layers.Layer | Offloaded


def here(layer: Resident) -> contextlib.AbstractContextManager[layers.Layer]:
    """``layer`` on its device for as long as the context lasts."""
    return layer if isinstance(layer, Offloaded) else contextlib.nullcontext(layer)
