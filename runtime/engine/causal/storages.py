"""The memory behind an object: every storage it refers to, copied away and back as bytes."""

import math
import mmap
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

_OURS: Final = "runtime.engine."
_MAPPED_BYTES: Final = 1 << 20


def staging(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of any content for weights that come; dropped, its memory goes back to the system at once.

    The heap of C keeps what is freed below its top: a model that is packed layer by layer would be held nearly twice.

    Raises:
        MemoryError: the host has no room.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or num_bytes < _MAPPED_BYTES:
        return torch.empty(shape, dtype=dtype, device=device)
    try:
        room = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # unmapped with the last tensor on it
    except OSError as exc:
        raise MemoryError(f"the host has no {num_bytes} bytes for weights") from exc
    return torch.frombuffer(room, dtype=dtype).view(shape)


def to_host(storage: torch.UntypedStorage) -> Tensor:
    """A copy in host memory, pinned where there is a device to copy it back to."""
    host = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    return host.copy_(bytes_of(storage))


def bytes_of(storage: torch.UntypedStorage) -> Tensor:
    """The storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def storages_of(root: object) -> Iterator[torch.UntypedStorage]:
    """Every storage that ``root`` refers to, through its own objects and plain containers; each once."""
    seen: set[int] = set()
    found: set[int] = set()
    waiting: list[object] = [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            if inner := _inner(item):
                waiting.extend(inner)
            elif item.layout is torch.strided and item.device.type != "meta":
                storage = item.untyped_storage()
                if storage.nbytes() and storage.data_ptr() not in found:
                    found.add(storage.data_ptr())
                    yield storage
        else:
            waiting.extend(_parts(item))


def _inner(tensor: Tensor) -> list[Any]:
    """The plain tensors of a wrapping one, as quantized weights are."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    return [getattr(tensor, name) for name in flatten()[0]] if flatten is not None else []


def _parts(item: object) -> list[object]:
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, list | tuple | set | frozenset):
        return list(item)
    if isinstance(item, torch.nn.Module):
        return [*item.parameters(), *item.buffers()]
    if not type(item).__module__.startswith(_OURS):
        return []
    slots = [name for base in type(item).__mro__ for name in getattr(base, "__slots__", ())]
    held = [getattr(item, name) for name in slots if hasattr(item, name)]
    return held + list(getattr(item, "__dict__", {}).values())
