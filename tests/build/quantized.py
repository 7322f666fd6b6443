"""Models held in every way that the engine has, and their perplexity on a text."""

import math
from pathlib import Path

import torch

from runtime.engine.causal import attention, loader, measure
from runtime.engine.causal.model import Decoder
from runtime.engine.formats.opening import open_model

_BLOCK_TOKENS = 16


def held(
    path: Path,
    quantization: str = "none",
    *,
    kv: str = "same",
    dtype: torch.dtype = torch.float32,
    kind: str = "huggingface",
    offload_layers: int = 0,
) -> Decoder:
    """The model at ``path``, ready for 512 positions."""
    model = loader.load(
        open_model(path, kind),
        dtype=dtype,
        device=torch.device("cpu"),
        quantization=quantization,
        kv=kv,
        offload_layers=offload_layers,
        progress=lambda _share: None,
    )
    model.resize_positions(512)
    return model


def logits_of(model: Decoder, tokens: list[int], chunk: int = 64) -> torch.Tensor:
    """Logits after every token, float32 [tokens, vocab], computed ``chunk`` tokens a step through the paged cache."""
    blocks = list(range(-(-len(tokens) // _BLOCK_TOKENS)))
    cache = measure.new_cache(model, len(blocks) * _BLOCK_TOKENS)
    rows = []
    with torch.inference_mode():
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            batch = attention.layout([(part, start, blocks)], list(range(len(part))), block_tokens=_BLOCK_TOKENS)
            rows.append(model.logits(model.forward(batch, cache)).clone())
    return torch.cat(rows)


def perplexity(model: Decoder, tokens: list[int]) -> float:
    """exp of the mean negative log-likelihood of each token after the first."""
    logits = logits_of(model, tokens)[:-1]
    chosen = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(tokens[1:])[:, None])
    return math.exp(-float(chosen.mean()))
