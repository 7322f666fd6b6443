"""Weights from a model source into a decoder: each tensor is read once, cast and copied into its place."""

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import torch

from runtime.engine import errors
from runtime.engine.causal.model import Decoder
from runtime.engine.formats.source import ModelSource

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
) -> Decoder:
    """Build the decoder of ``source``; ``progress`` is told the share of bytes read, 0..1.

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
    rows_missing = {name: tensor.shape[0] for name, tensor in destinations.items()}
    parts = Counter(model.part(name) for name in destinations)
    done = 0
    for piece in source.pieces():
        done += piece.num_bytes
        progress(min(1.0, done / max(1, source.total_bytes)))
        name = model.full_name(piece.name)
        target = destinations.get(name)
        if target is None:
            _check_ignorable(name, source)
            continue
        part = target[piece.row : piece.row + piece.data.shape[0]]
        if part.shape != piece.data.shape:
            raise errors.StartError(
                "DamagedModel",
                f"Tensor {piece.name} has shape {tuple(piece.data.shape)}, the config says {tuple(target.shape)}.",
            )
        part.copy_(piece.data)
        rows_missing[name] -= piece.data.shape[0]
        if rows_missing[name] <= 0:
            del destinations[name], target, part
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
