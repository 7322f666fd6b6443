"""Keys and values on a device that has memory of its own: a pool that can be cut at its end and grown again.

Each layer has its keys and its values in storages of their own, one block after another, which is how kernels that
read pages want them. Cutting and growing goes one storage after the other, so that never more than one of them (the
pool over twice the number of layers) is there twice; what the allocator keeps is returned after each.
"""

from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor

from runtime.base import logs
from runtime.engine.causal.attention import KvForm, plain

_log = logs.get(__name__)

_KEYS: Final = 0
_VALUES: Final = 1


class DeviceKvCache:
    """Per layer keys and values [blocks × block_tokens, kv_heads, head_dim], zeroed; scales without the last one.

    ``blocks`` is the size that it is made with and may grow back to; ``version`` changes whenever addresses do.
    """

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        blocks: int,
        block_tokens: int,
        head_dim: int,
        form: KvForm,
        device: torch.device,
    ) -> None:
        self.form = form
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.version = 0
        self._device = device
        self._layers = [
            self._layer((blocks * block_tokens, kv_heads, head_dim), form, device) for _ in range(layers)
        ]  # keys, values, and where they are quantized the scales of both

    @staticmethod
    def _layer(shape: tuple[int, int, int], form: KvForm, device: torch.device) -> list[Tensor]:
        kinds = [(shape, form.held)] * 2 + [(shape[:2], torch.float32)] * (2 if form.quantized else 0)
        return [torch.zeros(size, dtype=dtype, device=device) for size, dtype in kinds]

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes now."""
        return sum(tensor.untyped_storage().nbytes() for layer in self._layers for tensor in layer)

    @property
    def present(self) -> int:
        """Blocks that every layer has memory for."""
        return min(tensor.shape[0] for layer in self._layers for tensor in layer) // self.block_tokens

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store ``keys`` and ``values`` ([tokens, kv_heads, head_dim]) at ``slots`` ([tokens])."""
        for which, heads in ((_KEYS, keys), (_VALUES, values)):
            held = heads
            if self.form.quantized:
                held, scale = self.form.pack(held)
                self._layers[layer][2 + which].index_copy_(0, slots, scale)
            plain(self._layers[layer][which]).index_copy_(0, slots, plain(held))

    def rows(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Return (keys, values), each [len(slots), kv_heads, head_dim] in the type that is computed in."""
        return self._rows(layer, _KEYS, slots), self._rows(layer, _VALUES, slots)

    def _rows(self, layer: int, which: int, slots: Tensor) -> Tensor:
        data = self._layers[layer][which]
        found = plain(data).index_select(0, slots).view(data.dtype)
        if not self.form.quantized:
            return found
        return self.form.unpack(found, self._layers[layer][2 + which].index_select(0, slots))

    def read(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """The same as [kv_heads, len(slots), head_dim]."""
        keys, values = self.rows(layer, slots)
        return keys.transpose(0, 1), values.transpose(0, 1)

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values where they lie: [blocks, block_tokens, kv_heads, head_dim] each, as they are held."""
        keys, values = self._layers[layer][:2]
        shape = (-1, self.block_tokens, *keys.shape[1:])
        return keys.view(shape), values.view(shape)

    def scrub(self, slots: Tensor) -> None:
        """Zero ``slots`` in every layer: what a broken sequence left must not reach another one."""
        for tensor in self._tensors():
            plain(tensor).index_fill_(0, slots, 0)

    def move(self, moves: dict[int, int]) -> None:
        """Copy what is in each block of ``moves`` to the block that it names; no block is in both roles."""
        size = self.block_tokens
        for tensor in self._tensors():
            bare = plain(tensor)
            for source, target in moves.items():
                bare[target * size : (target + 1) * size] = bare[source * size : (source + 1) * size]

    def cut(self, blocks: int) -> int:
        """Keep the first ``blocks`` blocks; bytes returned. A layer for whose copy there is no room stays whole."""
        before = self.num_bytes
        try:
            self._resize(blocks, larger=False)
        except RuntimeError as exc:  # of a full device: the next look tries again
            _log.warning("kv_pool_cut_short", error=str(exc)[:300])
        return before - self.num_bytes

    def reserve(self, blocks: int, block_tokens: int) -> None:
        """Have memory for the first ``blocks`` blocks: a step is about to use them.

        Raises:
            torch.OutOfMemoryError, RuntimeError: the device has no room; nothing is lost.
            IndexError: there are not so many.
        """
        if blocks > self.blocks or block_tokens != self.block_tokens:
            raise IndexError(f"{blocks} blocks are more than the cache has")
        if blocks > self.present:
            self._resize(blocks, larger=True)

    def _resize(self, blocks: int, *, larger: bool) -> None:
        length = blocks * self.block_tokens
        for layer in self._layers:
            for number, tensor in enumerate(layer):
                if (tensor.shape[0] < length) is larger and tensor.shape[0] != length:
                    layer[number] = self._resized(tensor, length)
                    self.version += 1
                    give_back(self._device)

    @staticmethod
    def _resized(tensor: Tensor, length: int) -> Tensor:
        """``tensor`` with another number of rows in the same storage, which keeps what fits and has zeros behind."""
        storage, shape = tensor.untyped_storage(), (length, *tensor.shape[1:])
        row_bytes = tensor.stride(0) * tensor.element_size()
        storage.resize_(length * row_bytes)
        found: Tensor = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        found.set_(storage, 0, shape, tensor.stride())
        if length > tensor.shape[0]:
            plain(found)[tensor.shape[0] :] = 0
        return found

    def _tensors(self) -> Iterator[Tensor]:
        for layer in self._layers:
            yield from layer


def _empty_cuda(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


# A storage that was cut leaves its old place with the allocator, whose next answer would lie inside it and hold it.
give_back: Callable[[torch.device], None] = _empty_cuda
