"""A decoder as a program of the C kernels: one call computes a whole step, and the interpreter is free meanwhile.

The program is made from the decoder's layers, so an architecture is served here as soon as its layers say what they
are made of; what the kernels do not know is computed by :mod:`model` with torch instead (:func:`supports`).
"""

import ctypes
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runtime.engine.causal import attention
from runtime.engine.causal.config import DecoderConfig
from runtime.engine.causal.layers import Layer
from runtime.engine.causal.linear import Linear, NativeLinear
from runtime.engine.causal.rotary import RotaryTable
from runtime.engine.kernels import library
from runtime.engine.kernels.library import Op

# Buffers between operations. The last layer goes on with the rows that are asked for alone.
_X, _NORM, _QKV, _ATTENDED, _GATES, _GATED, _PICKED_X, _PICKED_ATTENDED, _HIDDEN, _BEST = range(10)
_IN, _OUT = range(2)
# Of the keys and values that a thread attends to with 32 sequences, as much as its second-level cache has room for:
# what is asked for earlier than in the product before attention is gone when it is wanted, and products pay for it.
_SHARE: Final = 0.35


def supports(config: DecoderConfig, kernels: library.Library) -> bool:
    """True when the kernels know all that ``config`` asks for."""
    return config.plain and config.head_dim % kernels.lanes == 0


class NativeForward:
    """The passes of one model: tokens to hidden states, hidden states to logits."""

    def __init__(
        self,
        config: DecoderConfig,
        kernels: library.Library,
        *,
        embedding: Linear,
        layers: list[Layer],
        norm: Tensor,
        head: Linear,
        rope: RotaryTable,
    ) -> None:
        self._config = config
        self._rope = rope
        self._kept = (layers, norm)  # the programs hold addresses inside
        self._int8 = any(_is_int8(linear) for layer in layers for linear in layer.linears)
        heads = config.num_heads * config.head_dim
        widths = {
            _X: config.hidden_size,
            _NORM: config.hidden_size,
            _QKV: heads + 2 * config.num_kv_heads * config.head_dim,
            _ATTENDED: heads,
            _GATES: 2 * config.intermediate_size,
            _GATED: config.intermediate_size,
            _PICKED_X: config.hidden_size,
            _PICKED_ATTENDED: heads,
            _HIDDEN: config.hidden_size,
            _BEST: 2 * -(-config.vocab_size // min(kernels.panel, library.I8_COLUMNS)),
        }
        self._widths = [widths[number] for number in sorted(widths)]
        self._quantized_width = max(config.hidden_size, heads, config.intermediate_size) if self._int8 else 0
        body = self._body_ops(embedding, layers, norm)
        self._to_hidden = len(body)
        self._whole = library.Program(
            kernels, _look_ahead([*body, *self._best_ops(head)]), self._widths, quantized_width=self._quantized_width
        )
        self._head = library.Program(
            kernels,
            [*(self._quantize(_IN, config.hidden_size) if _is_int8(head) else []), self._linear(head, _IN, _OUT)],
            [config.hidden_size, config.vocab_size],
            quantized_width=config.hidden_size if _is_int8(head) else 0,
        )
        self._products = library.Program(
            kernels,
            self._products_ops(layers, head),
            [*self._widths, config.vocab_size],
            quantized_width=self._quantized_width,
        )
        self._best = library.Program(
            kernels, [Op(kind=library.ARGMAX, in_=_IN, n=config.vocab_size)], [config.vocab_size], quantized_width=0
        )

    def _body_ops(self, embedding: Linear, layers: list[Layer], norm: Tensor) -> list[Op]:
        assert isinstance(embedding, NativeLinear)
        ops = [Op(kind=library.EMBED, out=_X, weight=ctypes.pointer(embedding.packed.struct))]
        x, attended = _X, _ATTENDED
        for number, layer in enumerate(layers):
            ops += self._attention_ops(number, layer)
            if number == len(layers) - 1:
                x, attended = _PICKED_X, _PICKED_ATTENDED
                width = self._config.num_heads * self._config.head_dim
                ops.append(Op(kind=library.GATHER, in_=_X, out=x, n=self._config.hidden_size))
                ops.append(Op(kind=library.GATHER, in_=_ATTENDED, out=attended, n=width))
            ops += self._quantize(attended, self._config.num_heads * self._config.head_dim)
            ops.append(self._linear(layer.output, attended, x, library.ADD))
            ops += self._mlp_ops(layer, x)
        ops.append(self._norm(norm, x, _HIDDEN, quantized=False))
        return ops

    def _attention_ops(self, number: int, layer: Layer) -> list[Op]:
        cfg = self._config
        turned = {
            "eps": cfg.rms_eps,
            "norm": _address(layer.query_norm),
            "key_norm": _address(layer.key_norm),
        }
        return [
            self._norm(layer.input_norm, _X, _NORM, quantized=self._int8),
            self._linear(layer.qkv, _NORM, _QKV),
            Op(
                kind=library.ROPE,
                in_=_QKV,
                layer=number,
                **turned,
            ),
            Op(
                kind=library.ATTEND,
                in_=_QKV,
                out=_ATTENDED,
                layer=number,
                window=layer.window,
                scale=cfg.head_dim**-0.5,
                **turned,  # attention does it for rows that are alone in their sequence
            ),
        ]

    def _mlp_ops(self, layer: Layer, x: int) -> list[Op]:
        assert layer.post_norm is not None
        assert isinstance(layer.gate_up, NativeLinear)
        entering = self._norm(layer.post_norm, x, _NORM, quantized=self._int8)
        if layer.gate_up.packed.interleaved:
            gates = self._linear(layer.gate_up, _NORM, _GATED, library.GATED)
            return [entering, gates, self._linear(layer.down, _GATED, x, library.ADD)]
        return [
            entering,
            self._linear(layer.gate_up, _NORM, _GATES),
            Op(
                kind=library.GATE,
                in_=_GATES,
                out=_GATED,
                n=self._config.intermediate_size,
                act=library.SILU,
                flags=library.QUANTIZED if self._int8 else 0,
            ),
            self._linear(layer.down, _GATED, x, library.ADD),
        ]

    def _best_ops(self, head: Linear) -> list[Op]:
        """From hidden states to their best tokens, without writing logits that nobody reads."""
        assert isinstance(head, NativeLinear)
        return [
            *(self._quantize(_HIDDEN, self._config.hidden_size) if _is_int8(head) else []),
            self._linear(head, _HIDDEN, _BEST, library.ONLY_BEST),
            Op(kind=library.BEST, in_=_BEST, weight=ctypes.pointer(head.packed.struct)),
        ]

    def _norm(self, weight: Tensor, source: int, target: int, *, quantized: bool) -> Op:
        return Op(
            kind=library.NORM,
            in_=source,
            out=target,
            n=self._config.hidden_size,
            eps=self._config.rms_eps,
            norm=_address(weight),
            flags=library.QUANTIZED if quantized else 0,
        )

    def _quantize(self, source: int, width: int) -> list[Op]:
        return [Op(kind=library.QUANTIZE, in_=source, n=width)] if self._int8 else []

    @staticmethod
    def _linear(linear: Linear, source: int, target: int, flags: int = 0) -> Op:
        assert isinstance(linear, NativeLinear)
        weight = ctypes.pointer(linear.packed.struct)
        return Op(kind=library.LINEAR, in_=source, out=target, flags=flags, weight=weight, act=library.SILU)

    def _products_ops(self, layers: list[Layer], head: Linear) -> list[Op]:
        """The matrix products of a step and nothing else."""
        places = ((_NORM, _QKV), (_ATTENDED, _X), (_NORM, _GATES), (_GATED, _X))
        ops = [
            self._linear(linear, source, target)
            for layer in layers
            for linear, (source, target) in zip(layer.linears, places, strict=True)
        ]
        return _look_ahead([*ops, self._linear(head, _NORM, len(self._widths))])

    def products(self, rows: int) -> Callable[[], None]:
        """What computes the matrix products of a step of ``rows`` rows alone: the limit that steps are held against."""
        inputs = {number: torch.rand((rows, self._widths[number])) - 0.5 for number in (_NORM, _ATTENDED, _GATED)}
        addresses = {number: tensor.data_ptr() for number, tensor in inputs.items()}
        step = library.Step(rows=rows)

        def run() -> None:
            self._products.reserve(rows, frozenset(inputs))
            self._products.run(step, torch.get_num_threads(), addresses)

        return run

    def times(self, batch: attention.StepBatch, cache: attention.KvCache) -> dict[int, int]:
        """Nanoseconds that a step of greedy rows takes, by kind of operation."""
        kinds = self._whole.kinds
        spent = np.zeros(len(kinds), np.int64)
        self.greedy(batch, cache, spent)
        return {kind: int(spent[np.array(kinds) == kind].sum()) for kind in set(kinds)}

    def hidden(self, batch: attention.StepBatch, cache: attention.KvCache) -> Tensor:
        """Compute all tokens of ``batch``, fill the cache, return hidden states [len(batch.picks), hidden].

        Raises:
            IndexError: a token or position that the model does not have: C would read beyond its tables.
        """
        step = self._step(batch, cache)
        self._whole.reserve(max(len(batch.tokens), 1))
        self._whole.run(step, torch.get_num_threads(), {}, count=self._to_hidden)
        return torch.from_numpy(self._whole.buffer(_HIDDEN, len(batch.picks))).clone()

    def greedy(
        self, batch: attention.StepBatch, cache: attention.KvCache, spent: NDArray[np.int64] | None = None
    ) -> tuple[list[int], list[bool]]:
        """The same, and in one go what :meth:`best` finds in the logits of the picks, which are not written.

        The nanoseconds of each operation are added to ``spent``.
        """
        picks = len(batch.picks)
        best, finite = np.empty(picks, np.int32), np.empty(picks, np.uint8)
        step = self._step(batch, cache)
        step.argmax, step.finite = best.ctypes.data, finite.ctypes.data
        step.nanoseconds = None if spent is None else spent.ctypes.data
        self._whole.reserve(max(len(batch.tokens), 1))
        self._whole.run(step, torch.get_num_threads(), {})
        return best.tolist(), finite.astype(bool).tolist()

    def _step(self, batch: attention.StepBatch, cache: attention.KvCache) -> library.Step:
        rows, picks = len(batch.tokens), len(batch.picks)
        cos, sin = self._rope.tables
        _check_range(batch.tokens, self._config.vocab_size, "token")
        _check_range(batch.positions, cos.shape[0], "position")
        return library.Step(
            rows=rows,
            num_spans=len(batch.spans),
            num_single=batch.num_single,
            num_picks=picks,
            tokens=batch.tokens.ctypes.data,
            positions=batch.positions.ctypes.data,
            row_span=batch.row_span.ctypes.data,
            tables=batch.tables.ctypes.data,
            picks=batch.picks.ctypes.data,
            spans=batch.spans.ctypes.data,
            shape=library.AttentionShape(
                heads=self._config.num_heads,
                kv_heads=self._config.num_kv_heads,
                head_dim=self._config.head_dim,
                rotary_dim=cos.shape[1],
                block_tokens=batch.block_tokens,
                slots=cache.slots,
                cache=cache.data.data_ptr(),
                cos=cos.data_ptr(),
                sin=sin.data_ptr(),
            ),
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [rows, vocab] of ``hidden`` [rows, hidden]."""
        hidden = hidden.contiguous()
        out = torch.empty((hidden.shape[0], self._config.vocab_size), dtype=torch.float32)
        self._head.reserve(hidden.shape[0], frozenset((_IN, _OUT)))
        step = library.Step(rows=hidden.shape[0])
        self._head.run(step, torch.get_num_threads(), {_IN: hidden.data_ptr(), _OUT: out.data_ptr()})
        return out

    def best(self, logits: Tensor) -> tuple[list[int], list[bool]]:
        """Arg-max of each row of ``logits``, and whether the row is finite."""
        rows = logits.shape[0]
        logits = logits.contiguous()
        best, finite = np.empty(rows, np.int32), np.empty(rows, np.uint8)
        self._best.reserve(rows, frozenset((_IN,)))
        step = library.Step(rows=rows, argmax=best.ctypes.data, finite=finite.ctypes.data)
        self._best.run(step, torch.get_num_threads(), {_IN: logits.data_ptr()})
        return best.tolist(), finite.astype(bool).tolist()


def _look_ahead(ops: list[Op]) -> list[Op]:
    """``ops``, where a product knows what the next one reads, and the one before an attention asks for its keys."""
    products: list[Op] = []
    for op in ops:
        if op.kind == library.LINEAR:
            if products:
                products[-1].after = op.weight
            products.append(op)
        elif op.kind == library.ATTEND and not op.window:
            products[-1].layer, products[-1].share = op.layer, _SHARE
    return ops


def _check_range(values: NDArray[np.int32], limit: int, what: str) -> None:
    if len(values) and not (int(values.min()) >= 0 and int(values.max()) < limit):
        raise IndexError(f"A {what} is not within 0..{limit - 1}.")


def _is_int8(linear: Linear) -> bool:
    return isinstance(linear, NativeLinear) and linear.packed.struct.format == library.I8


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
