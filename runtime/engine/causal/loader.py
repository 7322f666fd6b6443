"""Weights from a model source into a decoder: each tensor is read once, cast and copied into its place."""

from collections.abc import Callable

import torch

from runtime.engine import errors
from runtime.engine.causal.model import Decoder
from runtime.engine.formats.source import ModelSource

Progress = Callable[[float], None]


def load(source: ModelSource, *, dtype: torch.dtype, device: torch.device, progress: Progress) -> Decoder:
    """Build the decoder of ``source``; ``progress`` is told the share of bytes read, 0..1.

    Raises:
        errors.StartError: a tensor is missing, unknown, or has another shape than the config says.
    """
    model = Decoder(source.config, dtype=dtype, device=device)
    _fill(model, source, progress)
    if source.rope_factors is not None:
        model.rope.divide(source.rope_factors)
    model.seal()
    return model


def _fill(model: Decoder, source: ModelSource, progress: Progress) -> None:
    """Copy every tensor into its place; nothing but the model refers to the places afterwards."""
    destinations = model.destinations()
    rows_missing = {name: tensor.shape[0] for name, tensor in destinations.items()}
    done = 0
    for piece in source.pieces():
        done += piece.num_bytes
        progress(min(1.0, done / max(1, source.total_bytes)))
        target = destinations.get(piece.name)
        if target is None:
            _check_ignorable(piece.name, source)
            continue
        part = target[piece.row : piece.row + piece.data.shape[0]]
        if part.shape != piece.data.shape:
            raise errors.StartError(
                "DamagedModel",
                f"Tensor {piece.name} has shape {tuple(piece.data.shape)}, the config says {tuple(target.shape)}.",
            )
        part.copy_(piece.data)
        rows_missing[piece.name] -= piece.data.shape[0]
    missing = sorted(name for name, rows in rows_missing.items() if rows > 0)
    if missing:
        shown = ", ".join(missing[:3])
        raise errors.StartError("DamagedModel", f"{len(missing)} tensors are missing, among them {shown}.")


def _check_ignorable(name: str, source: ModelSource) -> None:
    """Accept tensors that hold nothing of their own: tied heads and derived rotary tables."""
    if name == "lm_head.weight" and source.config.tie_embeddings:
        return
    if name.endswith("rotary_emb.inv_freq"):
        return
    raise errors.StartError(
        "UnsupportedModel", f"Tensor {name} belongs to no part of {source.config.architecture.name}."
    )
