"""Giving a device back and taking it again: weights wait in host memory, what only a cache holds is dropped.

On CUDA every storage that the model refers to is copied to pinned host memory and shrunk to nothing in place, so that
views, tied weights and whoever else refers to it keep their tensors; waking grows it again and copies back. On a CPU
the weights already are in host memory and stay where they are: only the pages of the KV cache go back to the system,
which hands out zeros when they are touched again.
"""

import ctypes
import dataclasses
import mmap
from typing import Final

import torch
from torch import Tensor

from runtime.engine.causal.storages import bytes_of, storages_of, to_host

_MADV_DONTNEED: Final = 4


@dataclasses.dataclass(slots=True)
class _Away:
    """A device storage that is empty now. ``copy`` is ``None`` where the content was worthless."""

    storage: torch.UntypedStorage
    num_bytes: int
    copy: Tensor | None


class Sleeper:
    """What one engine holds on its device. ``model`` is kept, ``caches`` are dropped; neither is replaced.

    ``moves`` says that the device has memory of its own, which the weights can leave.
    """

    def __init__(self, model: object, caches: object, *, moves: bool) -> None:
        self._model = model
        self._caches = caches
        self._moves = moves
        self._away: list[_Away] = []

    def sleep(self) -> None:
        """Give back what can be given back. Nothing may compute meanwhile, nor before :meth:`wake`.

        Raises:
            MemoryError, RuntimeError: the host has no room for the weights; everything is as it was.
        """
        caches = list(storages_of(self._caches))
        kept = {storage.data_ptr() for storage in caches}
        try:
            for storage in storages_of(self._model) if self._moves else ():
                at_home = torch.cuda.is_available() and storage.device.type == "cpu"  # layers that wait there anyway
                if storage.data_ptr() not in kept and not at_home:
                    self._away.append(_Away(storage, storage.nbytes(), to_host(storage)))
        except (MemoryError, RuntimeError):
            self._away.clear()
            raise
        for storage in caches:
            if self._moves:
                self._away.append(_Away(storage, storage.nbytes(), None))
            else:
                _drop_pages(storage.data_ptr(), storage.nbytes())
        self._shrink()

    def _shrink(self) -> None:
        for item in self._away:
            item.storage.resize_(0)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Take everything back. What fails can be tried again.

        Raises:
            torch.OutOfMemoryError: somebody else has the device's memory; still asleep.
        """
        try:
            for item in self._away:
                item.storage.resize_(item.num_bytes)
        except RuntimeError:
            self._shrink()
            raise
        for item in self._away:
            if item.copy is None:
                bytes_of(item.storage).zero_()
            else:
                bytes_of(item.storage).copy_(item.copy, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._away.clear()


def _drop_pages(address: int, num_bytes: int) -> None:
    """Return whole pages of anonymous memory to the system; they read as zeros afterwards."""
    page = mmap.PAGESIZE
    first = -(-address // page) * page
    length = (address + num_bytes) // page * page - first
    if length <= 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), _MADV_DONTNEED) != 0:
        raise OSError(ctypes.get_errno(), "madvise failed")
