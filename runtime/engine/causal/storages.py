"""The memory behind an object: every storage it refers to, copied away and back as bytes."""

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

_OURS: Final = "runtime.engine."


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
