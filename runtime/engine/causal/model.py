"""The decoder, whatever its architecture, on one flat batch of tokens.

All tokens of a step, of whatever sequence, go through each projection as one matrix product; projections that share
an input are one product. Weights are filled in by :mod:`loader` through :meth:`Decoder.destinations`; each layer is
sealed as soon as it is whole. Where the C kernels serve the model, :mod:`native` computes; here the same is done with
torch, on any device. What an architecture is made of is said by :mod:`config`, not here.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from torch.nn import functional

from runtime.engine.causal import attention, flash, layers, native, offload, rotary, sdpa, storages
from runtime.engine.causal.config import DecoderConfig
from runtime.engine.causal.device_cache import DeviceKvCache
from runtime.engine.causal.linear import Backend, Embedding, Linear
from runtime.engine.causal.quantized import INT4_GROUPS
from runtime.engine.ranks.split import WHOLE, Cut, Split, cuts

if TYPE_CHECKING:
    from runtime.engine.ranks.peers import Peers

# What belongs to no layer is sealed by these names.
_EMBEDDING: Final = "embedding"
_HEAD: Final = "head"

Cache = attention.KvCache | DeviceKvCache
Step = sdpa.TorchBatch | flash.FlashBatch


class Decoder:
    """Weights and forward pass. Build, fill :meth:`destinations`, :meth:`seal`, then :meth:`forward`.

    ``quantization`` is how weights are held (:mod:`linear`); ``kv`` how keys and values are (:mod:`attention`); the
    last ``offload_layers`` layers wait in host memory (:mod:`offload`). In 4 bits at most ``int4_group`` weights share
    a scale. ``config`` is of the whole model; of one that is ``split``, ``self.config`` is this rank's part, and
    ``peers`` must be there before it computes.
    """

    peers: "Peers | None" = None

    def __init__(
        self,
        config: DecoderConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        quantization: str = "none",
        kv: str = "same",
        offload_layers: int = 0,
        int4_group: int = INT4_GROUPS[0],
        split: Split = WHOLE,
    ) -> None:
        self.split = split
        self._numbers = split.layers(config.num_layers)
        self._cuts = cuts(config, split)
        self.config = config = split.local(config)
        self.dtype = dtype
        self.device = device
        self.kv = attention.KvForm(kv, dtype)
        self._backend = Backend(dtype=dtype, device=device, quantization=quantization, int4_group=int4_group)
        kind = config.architecture
        self._norm = self._new(config.hidden_size)
        self._norm_bias = self._new(config.hidden_size) if kind.norm == "layer" else None
        self._positions = self._new(config.max_positions, config.hidden_size) if kind.names.positions else None
        self._head_bias = self._new(config.vocab_size) if kind.head_bias else None
        self._raw: dict[str, Tensor] = {}
        if split.first:
            self._raw[_EMBEDDING] = self._new(config.vocab_size, config.hidden_size)
        if split.leads and not config.tie_embeddings:
            self._raw[_HEAD] = self._new(config.vocab_size, config.hidden_size)
        self._loading = {number: layers.empty(config, number, self._new) for number in self._numbers}
        self._ready: dict[int, offload.Resident] = {}
        self._offload = offload_layers
        self._layers: list[offload.Resident] = []
        self._embedding: Embedding | None = None
        self._head: Linear | None = None
        self._native: native.NativeForward | None = None
        self.flash = flash.kernel_for(config, dtype, device, not self.kv.quantized)
        self.rope = rotary.RotaryTable(config, device)
        self.local_rope = rotary.RotaryTable(config, device, config.local_rope) if config.local_rope else self.rope

    def _new(self, *shape: int) -> Tensor:
        return storages.staging(shape, self.dtype, self._backend.staging)

    def destinations(self) -> dict[str, Tensor]:
        """Where each tensor goes, by its Hugging Face name: views to copy into, of the tensor's own shape."""
        names = self.config.architecture.names
        plain = {
            f"{names.embedding}.weight": self._raw.get(_EMBEDDING),
            f"{names.head}.weight": self._raw.get(_HEAD),
            f"{names.head}.bias": self._head_bias,
            f"{names.positions}.weight": self._positions,
            f"{names.norm}.weight": self._norm,
            f"{names.norm}.bias": self._norm_bias,
        }
        found = {name: tensor for name, tensor in plain.items() if tensor is not None}
        for number, raw in self._loading.items():
            found.update(layers.destinations(self.config, number, raw))
        return found

    def cut(self, name: str) -> Cut | None:
        """What of the tensor called ``name`` is here; ``None`` when it is whole."""
        if not self._cuts or not self.part(name).isdecimal():
            return None
        return self._cuts.get(name.split(".", self.config.architecture.names.layer.count(".") + 2)[-1])

    def elsewhere(self, name: str) -> bool:
        """True when another rank has the tensor called ``name``."""
        part = self.part(name)
        if part.isdecimal():
            return int(part) not in self._numbers and int(part) < len(self.config.sparse)
        return self.split.size > 1 and part in (_EMBEDDING, _HEAD) and not self.split.leads

    def full_name(self, name: str) -> str:
        """``name`` as :meth:`destinations` has it, where checkpoints may leave out its first part."""
        kind = self.config.architecture
        first = kind.names.layer.split(".")[0] + "."
        return first + name if kind.bare and not name.startswith((first, kind.names.head)) else name

    def part(self, name: str) -> str:
        """What is sealed together with the tensor called ``name``: a layer's number, the embedding, or the head."""
        names = self.config.architecture.names
        if name.startswith(f"{names.layer}."):
            return name.removeprefix(f"{names.layer}.").split(".")[0]
        ends = {f"{names.embedding}.weight": _EMBEDDING, f"{names.head}.weight": _HEAD}
        return ends.get(name, name)

    def seal_part(self, part: str) -> None:
        """``part`` is whole: bring it into its final shape, so that at most a few layers are held twice."""
        if part.isdecimal():
            number = int(part)
            raw = self._loading.pop(number)
            if self.split.index:  # what is added once is added by the first rank of a stage
                raw.output_bias = raw.down_bias = None
            whole = layers.ready(self.config, number, raw, self._backend)
            waits = number >= len(self.config.sparse) - self._offload
            self._ready[number] = offload.Offloaded(whole) if waits else whole
        elif part == _EMBEDDING:
            self._embedding = self._backend.embedding(self._raw.pop(part))
            self._head = self._embedding if self.config.tie_embeddings and self.split.leads else self._head
        elif part == _HEAD:
            self._head = self._backend.head(self._raw.pop(part))

    def seal(self) -> None:
        """All weights are there; call once."""
        for part in [*self._raw, *(str(number) for number in self._loading)]:
            self.seal_part(part)
        self._norm = self._backend.plain(self._norm)
        self._norm_bias = self._backend.optional(self._norm_bias)
        self._positions = self._backend.optional(self._positions)
        self._head_bias = self._backend.optional(self._head_bias)
        self._layers = [self._ready.pop(number) for number in sorted(self._ready)]
        kernels = None if self.split.size > 1 else self._backend.kernels
        if kernels is not None and not (self.kv.quantized or self._offload) and native.supports(self.config, kernels):
            assert self._embedding is not None
            assert self._head is not None
            self._native = native.NativeForward(
                self.config,
                kernels,
                embedding=self._embedding,
                layers=[layer for layer in self._layers if isinstance(layer, layers.Layer)],
                norm=self._norm,
                head=self._head,
                rope=self.rope,
            )

    @property
    def program(self) -> native.NativeForward | None:
        """The model as a program of the kernels, where there is one."""
        return self._native

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights on the device, exactly as held."""
        ends = {id(end): end.num_bytes for end in (self._embedding, self._head) if end is not None}
        plain = (self._norm, self._norm_bias, self._positions, self._head_bias)
        held = sum(tensor.numel() * tensor.element_size() for tensor in plain if tensor is not None)
        return held + sum(ends.values()) + sum(layer.num_bytes for layer in self._layers)

    def resize_positions(self, positions: int) -> None:
        """Make the rotary tables for positions ``0 .. positions - 1``."""
        for table in {id(table): table for table in (self.rope, self.local_rope)}.values():
            table.resize(positions)

    @property
    def recordable(self) -> bool:
        """True when a step is the same operations whatever its values: no router, and every layer where it computes."""
        whole = not self._offload and self.split.size == 1
        return self.flash is not None and not any(self.config.sparse) and whole

    def forward(self, batch: attention.StepBatch, cache: Cache) -> Tensor:
        """Compute all tokens of ``batch``, fill the cache, return hidden states [len(batch.picks), hidden]."""
        if self._native is not None:
            assert isinstance(cache, attention.KvCache)
            return self._native.hidden(batch, cache)
        if self.flash is not None:
            assert isinstance(cache, DeviceKvCache)
            most = cache.blocks * cache.block_tokens
            return self.compute(flash.prepare(batch, self.flash, self.device, most), cache)
        windows = tuple(set(self.config.windows))
        most = sdpa.PADDING * (
            cache.slots if isinstance(cache, attention.KvCache) else cache.blocks * cache.block_tokens
        )
        return self.compute(sdpa.prepare(batch, windows, self.dtype, self.device, most), cache)

    def compute(self, step: Step, cache: Cache) -> Tensor:
        """The same for a step that is on the device, with torch."""
        x = self._entering(step)
        turns = self._turns(step)
        for number, layer in enumerate(self._layers):
            with offload.here(layer) as present:
                x = self._layer(number, present, x, turns[bool(present.window)], step, cache)
        return self._leaving(x, step)

    def _entering(self, step: Step) -> Tensor:
        """The hidden states that the first layer here reads."""
        if not self.split.first:
            return self._others.take(step.tokens.shape[0], self.config.hidden_size, self.dtype)
        assert self._embedding is not None
        x = self._embedding.rows(step.tokens)
        if self.config.architecture.scaled_embedding:
            x = x * torch.tensor(self.config.hidden_size**0.5, dtype=self.dtype)
        if self._positions is not None:
            x = x + functional.embedding(step.positions, self._positions)
        return x

    def _leaving(self, x: Tensor, step: Step) -> Tensor:
        """Normed hidden states of the picked rows, where they are wanted: with the leader."""
        if not self.split.last:
            self._others.pass_on(x)
            rows = step.picks.shape[0] if self.split.leads else 0
            return self._others.take_picks(rows, self.config.hidden_size, self.dtype) if rows else x[:0]
        hidden = self._normed(x.index_select(0, step.picks), self._norm, self._norm_bias)
        if not self.split.first and not self.split.index and len(hidden):
            self._others.return_picks(hidden)
        return hidden

    @property
    def _others(self) -> "Peers":
        assert self.peers is not None
        return self.peers

    def _total(self, part: Tensor) -> Tensor:
        """What the ranks of this stage have, added up."""
        return part if self.peers is None else self.peers.total(part)

    def _turns(self, step: Step) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]] | tuple[None, None]:
        """Rotations of the step's positions: in layers that see everything, and in layers with a window."""
        if not self.config.architecture.rotary:
            return None, None
        turn = self.rope.at(step.positions, self.dtype)
        return turn, turn if self.local_rope is self.rope else self.local_rope.at(step.positions, self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [rows, vocab] of ``hidden`` [rows, hidden]."""
        if self._native is not None:
            return self._native.logits(hidden)
        assert self._head is not None
        logits = self._head(hidden).float()
        if self._head_bias is not None:
            logits += self._head_bias
        cap = self.config.logit_cap
        return torch.tanh(logits / cap) * cap if cap else logits

    def best(self, logits: Tensor) -> tuple[list[int], list[bool]] | None:
        """Arg-max of each row and whether the row is finite; ``None`` where the sampler finds them as cheaply."""
        return self._native.best(logits) if self._native is not None else None

    def products(self, rows: int) -> Callable[[], object]:
        """What computes the matrix products of a step of ``rows`` rows alone: the limit that steps are held against."""
        if self._native is not None:
            return self._native.products(rows)
        cfg = self.config
        inner = cfg.expert_size if any(cfg.sparse) else cfg.intermediate_size
        widths = (cfg.hidden_size, cfg.num_heads * cfg.head_dim, *(cfg.hidden_size, inner) * max(1, cfg.num_experts))
        inputs = [torch.zeros((rows, width), dtype=self.dtype, device=self.device) for width in widths]

        def run() -> None:
            for layer in self._layers:
                with offload.here(layer) as present:
                    for linear, x in zip(present.linears, inputs, strict=False):
                        linear(x)
            self.logits(inputs[0])

        return run

    def _layer(
        self,
        number: int,
        layer: layers.Layer,
        x: Tensor,
        turn: tuple[Tensor, Tensor] | None,
        step: Step,
        cache: Cache,
    ) -> Tensor:
        entering = self._normed(x, layer.input_norm, layer.input_norm_bias)
        attended = self._attention(number, layer, entering, turn, step, cache)
        if layer.post_norm is None:  # side by side
            return self._total(attended + layer.mlp(entering)) + x
        attended = self._total(attended)
        if layer.attention_after is not None:
            attended = self._normed(attended, layer.attention_after)
        x = x + attended
        thought = self._total(layer.mlp(self._normed(x, layer.post_norm, layer.post_norm_bias)))
        if layer.mlp_after is not None:
            thought = self._normed(thought, layer.mlp_after)
        return x + thought

    def _attention(
        self,
        number: int,
        layer: layers.Layer,
        x: Tensor,
        turn: tuple[Tensor, Tensor] | None,
        step: Step,
        cache: Cache,
    ) -> Tensor:
        cfg = self.config
        qkv = layer.qkv(x).view(x.shape[0], -1, cfg.head_dim)
        query, keys, values = torch.split(qkv, [cfg.num_heads, cfg.num_kv_heads, cfg.num_kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, keys = self._normed(query, layer.query_norm), self._normed(keys, layer.key_norm)
        if turn is not None:
            rotated = rotary.rotate(torch.cat((query, keys), dim=1), *turn)
            query, keys = torch.split(rotated, [cfg.num_heads, cfg.num_kv_heads], dim=1)
        cache.write(number, step.slots, keys, values)
        out = self._attend(query, cache, number, layer.window, step)
        return layer.output(out.reshape(x.shape[0], -1))

    def _attend(self, query: Tensor, cache: Cache, number: int, window: int, step: Step) -> Tensor:
        cfg = self.config
        if isinstance(step, flash.FlashBatch):
            assert self.flash is not None
            assert isinstance(cache, DeviceKvCache)
            return flash.attend(query, cache, number, self.flash, step, window=window, scale=cfg.scale)
        return sdpa.attend(query, cache, number, sdpa.Form(window=window, scale=cfg.scale, cap=cfg.score_cap), step)

    def _normed(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        kind, eps = self.config.architecture.norm, self.config.rms_eps
        if kind == "layer":
            return functional.layer_norm(x, weight.shape, weight, bias, eps)
        if kind == "rms1":
            return functional.rms_norm(x.float(), weight.shape, 1.0 + weight.float(), eps).to(self.dtype)
        if self.dtype == torch.float32:
            return functional.rms_norm(x, weight.shape, weight, eps)
        # as transformers does it: the mean in float32, the scale in the model's own type
        return weight * functional.rms_norm(x.float(), weight.shape, None, eps).to(self.dtype)
