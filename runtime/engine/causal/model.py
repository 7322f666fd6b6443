"""The decoder: Llama, Mistral, Qwen2, Qwen3, on one flat batch of tokens.

All tokens of a step, of whatever sequence, go through each projection as one matrix product; projections that share
an input are one product. Weights are filled in by :mod:`loader` through :meth:`Decoder.destinations` and then sealed.
"""

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional

from runtime.engine.causal import attention, rotary
from runtime.engine.causal.config import DecoderConfig
from runtime.engine.causal.linear import Linear


@dataclasses.dataclass(slots=True)
class _LayerWeights:
    """Fused weights of one layer while they are being loaded."""

    input_norm: Tensor
    post_norm: Tensor
    qkv: Tensor
    output: Tensor
    gate_up: Tensor
    down: Tensor
    qkv_bias: Tensor | None
    output_bias: Tensor | None
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None


@dataclasses.dataclass(slots=True)
class _Layer:
    """One layer, ready to run."""

    input_norm: Tensor
    post_norm: Tensor
    qkv: Linear
    output: Linear
    gate_up: Linear
    down: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    window: int


@dataclasses.dataclass(frozen=True, slots=True)
class ModelBatch:
    """Input of one step: ``tokens`` and ``positions`` are int64 [tokens]; ``rows`` picks what needs logits."""

    tokens: Tensor
    positions: Tensor
    rows: Tensor
    attention: attention.AttentionBatch


class Decoder:
    """Weights and forward pass. Build, fill :meth:`destinations`, :meth:`seal`, then :meth:`forward`."""

    def __init__(self, config: DecoderConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self.dtype = dtype
        self.device = device
        self._embedding = self._new(config.vocab_size, config.hidden_size)
        self._norm = self._new(config.hidden_size)
        self._head = None if config.tie_embeddings else self._new(config.vocab_size, config.hidden_size)
        self._loading = [self._layer_weights() for _ in range(config.num_layers)]
        self._layers: list[_Layer] = []
        self._head_linear: Linear | None = None
        self.rope = rotary.RotaryTable(config, device)

    def _new(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def _layer_weights(self) -> _LayerWeights:
        cfg = self.config
        qkv = (cfg.num_heads + 2 * cfg.num_kv_heads) * cfg.head_dim
        qk_norm = cfg.architecture.qk_norm
        return _LayerWeights(
            input_norm=self._new(cfg.hidden_size),
            post_norm=self._new(cfg.hidden_size),
            qkv=self._new(qkv, cfg.hidden_size),
            output=self._new(cfg.hidden_size, cfg.num_heads * cfg.head_dim),
            gate_up=self._new(2 * cfg.intermediate_size, cfg.hidden_size),
            down=self._new(cfg.hidden_size, cfg.intermediate_size),
            qkv_bias=self._new(qkv) if cfg.attention_bias else None,
            output_bias=self._new(cfg.hidden_size) if cfg.output_bias else None,
            gate_up_bias=self._new(2 * cfg.intermediate_size) if cfg.mlp_bias else None,
            down_bias=self._new(cfg.hidden_size) if cfg.mlp_bias else None,
            query_norm=self._new(cfg.head_dim) if qk_norm else None,
            key_norm=self._new(cfg.head_dim) if qk_norm else None,
        )

    def destinations(self) -> dict[str, Tensor]:
        """Where each tensor goes, by its Hugging Face name: views to copy into, of the tensor's own shape."""
        found = {"model.embed_tokens.weight": self._embedding, "model.norm.weight": self._norm}
        if self._head is not None:
            found["lm_head.weight"] = self._head
        for number, layer in enumerate(self._loading):
            found.update(self._layer_destinations(f"model.layers.{number}.", layer))
        return found

    def _layer_destinations(self, prefix: str, layer: _LayerWeights) -> dict[str, Tensor]:
        cfg = self.config
        heads, kv_heads = cfg.num_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim
        named: dict[str, Tensor | None] = {
            "input_layernorm.weight": layer.input_norm,
            "post_attention_layernorm.weight": layer.post_norm,
            "self_attn.o_proj.weight": layer.output,
            "self_attn.o_proj.bias": layer.output_bias,
            "self_attn.q_norm.weight": layer.query_norm,
            "self_attn.k_norm.weight": layer.key_norm,
            "mlp.down_proj.weight": layer.down,
            "mlp.down_proj.bias": layer.down_bias,
        }
        for kind, fused in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
            if fused is not None:
                parts = torch.split(fused, [heads, kv_heads, kv_heads])
                named.update({f"self_attn.{p}_proj.{kind}": t for p, t in zip("qkv", parts, strict=True)})
        for kind, fused in (("weight", layer.gate_up), ("bias", layer.gate_up_bias)):
            if fused is not None:
                gate, up = fused.chunk(2)
                named.update({f"mlp.gate_proj.{kind}": gate, f"mlp.up_proj.{kind}": up})
        return {prefix + name: tensor for name, tensor in named.items() if tensor is not None}

    def seal(self) -> None:
        """Bring the loaded weights into the shape they are computed in; call once, when all are there."""
        while self._loading:
            raw = self._loading.pop(0)  # drop each layer's plain weights before the next is packed
            self._layers.append(
                _Layer(
                    input_norm=raw.input_norm,
                    post_norm=raw.post_norm,
                    qkv=Linear(raw.qkv, raw.qkv_bias),
                    output=Linear(raw.output, raw.output_bias),
                    gate_up=Linear(raw.gate_up, raw.gate_up_bias),
                    down=Linear(raw.down, raw.down_bias),
                    query_norm=raw.query_norm,
                    key_norm=raw.key_norm,
                    window=self.config.windows[len(self._layers)],
                )
            )
        if self._head is not None:
            self._head_linear = Linear(self._head)
            self._head = None

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights, exactly as held."""
        plain = [self._embedding, self._norm]
        total = self._head_linear.num_bytes if self._head_linear else 0
        for layer in self._layers:
            total += sum(part.num_bytes for part in (layer.qkv, layer.output, layer.gate_up, layer.down))
            plain += [layer.input_norm, layer.post_norm]
            plain += [norm for norm in (layer.query_norm, layer.key_norm) if norm is not None]
        return total + sum(tensor.numel() * tensor.element_size() for tensor in plain)

    def forward(self, batch: ModelBatch, cache: attention.KvCache) -> Tensor:
        """Compute all tokens of ``batch``, fill the cache, return hidden states [len(batch.rows), hidden]."""
        x = functional.embedding(batch.tokens, self._embedding)
        cos, sin = self.rope.at(batch.positions, self.dtype)
        for number, layer in enumerate(self._layers):
            x = x + self._attention(number, layer, self._rms(x, layer.input_norm), cos, sin, batch, cache)
            hidden = layer.gate_up(self._rms(x, layer.post_norm))
            gate, up = hidden.chunk(2, dim=-1)
            x = x + layer.down(functional.silu(gate) * up)
        return self._rms(x.index_select(0, batch.rows), self._norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [rows, vocab] of ``hidden`` [rows, hidden]."""
        logits = self._head_linear(hidden) if self._head_linear else functional.linear(hidden, self._embedding)
        return logits.float()

    def _attention(
        self,
        number: int,
        layer: _Layer,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        batch: ModelBatch,
        cache: attention.KvCache,
    ) -> Tensor:
        cfg = self.config
        qkv = layer.qkv(x).view(x.shape[0], -1, cfg.head_dim)
        rotated, values = torch.split(qkv, [cfg.num_heads + cfg.num_kv_heads, cfg.num_kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, keys = torch.split(rotated, [cfg.num_heads, cfg.num_kv_heads], dim=1)
            rotated = torch.cat((self._rms(query, layer.query_norm), self._rms(keys, layer.key_norm)), dim=1)
        query, keys = torch.split(rotary.rotate(rotated, cos, sin), [cfg.num_heads, cfg.num_kv_heads], dim=1)
        cache.write(number, batch.attention.slots, keys, values)
        out = attention.attend(query, cache, number, layer.window, batch.attention)
        return layer.output(out.reshape(x.shape[0], -1))

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.dtype == torch.float32:
            return functional.rms_norm(x, weight.shape, weight, self.config.rms_eps)
        # as transformers does it: the mean in float32, the scale in the model's own type
        return weight * functional.rms_norm(x.float(), weight.shape, None, self.config.rms_eps).to(self.dtype)
