"""Weights from a model source into a decoder: each tensor is read once, cast and copied into its place."""

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import torch

from runtime.engine import errors
from runtime.engine.causal.model import Decoder
from runtime.engine.formats.source import ModelSource, TensorPiece
from runtime.engine.ranks.split import WHOLE, Cut, Split

Progress = Callable[[float], None]

_SEALING: Final = 2
# The triangles that GPT-2 checkpoints carry as masks.
_MASKS: Final = (".attn.bias", ".attn.masked_bias")


def load(
    source: ModelSource,
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
    quantization: str = "none",
    kv: str = "same",
    offload_layers: int = 0,
    split: Split = WHOLE,
) -> Decoder:
    """Build the decoder of ``source``, or this rank's part of it; ``progress`` is told the share of bytes read, 0..1.

    Raises:
        errors.StartError: a tensor is missing, unknown, or has another shape than the config says.
    """
    model = Decoder(
        source.config,
        dtype=dtype,
        device=device,
        quantization=quantization,
        kv=kv,
        offload_layers=offload_layers,
        int4_group=source.int4_group,
        split=split,
    )
    with ThreadPoolExecutor(1, thread_name_prefix="packing") as packing:
        _fill(model, source, progress, packing)
    if source.rope_factors is not None:
        model.rope.divide(source.rope_factors)
    model.seal()
    return model


def _fill(model: Decoder, source: ModelSource, progress: Progress, packing: ThreadPoolExecutor) -> None:
    """Copy every tensor into its place; a part that is whole is sealed while the next is read, its places forgotten."""
    sealing: deque[Future[None]] = deque()
    destinations = model.destinations()
    cut = {name: model.cut(name) for name in destinations}
    rows_missing = {name: _rows(tensor, cut[name]) for name, tensor in destinations.items()}
    parts = Counter(model.part(name) for name in destinations)
    done = 0
    for piece in source.pieces():
        done += piece.num_bytes
        progress(min(1.0, done / max(1, source.total_bytes)))
        name = model.full_name(piece.name)
        target = destinations.get(name)
        if target is None:
            if not model.elsewhere(name):
                _check_ignorable(name, source)
            continue
        _place(piece, target, cut[name])
        rows_missing[name] -= piece.data.shape[0]
        if rows_missing[name] <= 0:
            del destinations[name], target
            group = model.part(name)
            parts[group] -= 1
            if not parts[group]:
                sealing.append(packing.submit(model.seal_part, group))
                if len(sealing) > _SEALING:
                    sealing.popleft().result()  # a part that waits is held twice
    for future in sealing:
        future.result()
    missing = sorted(name for name, rows in rows_missing.items() if rows > 0)
    if missing:
        shown = ", ".join(missing[:3])
        raise errors.StartError("DamagedModel", f"{len(missing)} tensors are missing, among them {shown}.")


def _rows(target: torch.Tensor, cut: Cut | None) -> int:
    """Rows of the whole tensor of which ``target`` has a part."""
    return int(target.shape[0]) if cut is None or cut.dim else cut.size


def _place(piece: TensorPiece, target: torch.Tensor, cut: Cut | None) -> None:
    """Copy what of ``piece``, some rows of a tensor, belongs into ``target``.

    Raises:
        errors.StartError: the tensor has another shape than the config says.
    """
    data, row = piece.data, piece.row
    want = list(target.shape)
    if cut is not None:
        want[cut.dim] = cut.size
    if list(data.shape[1:]) != want[1:] or row + data.shape[0] > want[0]:
        raise errors.StartError(
            "DamagedModel", f"Tensor {piece.name} has shape {tuple(data.shape)}, the config says {tuple(want)}."
        )
    if cut is None or cut.dim:
        kept = data if cut is None else torch.cat([data[:, first:last] for first, last in cut.ranges], dim=1)
        target[row : row + data.shape[0]].copy_(kept)
        return
    begin = 0
    for first, last in cut.ranges:
        low, high = max(first, row), min(last, row + data.shape[0])
        if low < high:
            target[begin + low - first : begin + high - first].copy_(data[low - row : high - row])
        begin += last - first


def _check_ignorable(name: str, source: ModelSource) -> None:
    """Accept tensors that hold nothing of their own: tied heads and what is derived from the config."""
    names = source.config.architecture.names
    if name == f"{names.head}.weight" and source.config.tie_embeddings:
        return
    if name.endswith("rotary_emb.inv_freq"):
        return
    if source.config.architecture.bare and name.endswith(_MASKS):
        return
    raise errors.StartError(
        "UnsupportedModel", f"Tensor {name} belongs to no part of {source.config.architecture.name}."
    )
