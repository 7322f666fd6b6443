"""What stands behind attention in a layer: one MLP, or a router and experts of which each token visits a few."""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from runtime.engine.causal.linear import Linear

Activation = Callable[[Tensor], Tensor]


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
}


class Dense:
    """``down(act(gate) * up)``, or ``down(act(up))`` where there is no gate. Input and output are [tokens, hidden]."""

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation, *, gated: bool) -> None:
        self.gate_up = gate_up
        self.down = down
        self._activation = activation
        self._gated = gated
        self.num_bytes = gate_up.num_bytes + down.num_bytes

    def __call__(self, x: Tensor) -> Tensor:
        hidden = self.gate_up(x)
        if not self._gated:
            return self.down(self._activation(hidden))
        gate, up = hidden.chunk(2, dim=-1)
        return self.down(self._activation(gate) * up)


class Experts:
    """A mixture: the router's ``top_k`` best experts for each token, weighted by their probabilities.

    ``normalize`` makes the weights of the chosen add up to one. Tokens are sorted by expert, so that each expert that
    was chosen computes once a step whatever the number of tokens.
    """

    def __init__(self, router: Linear, experts: list[Dense], *, top_k: int, normalize: bool) -> None:
        self._router = router
        self.experts = experts
        self.top_k = top_k
        self._normalize = normalize
        self.num_bytes = router.num_bytes + sum(expert.num_bytes for expert in experts)

    def __call__(self, x: Tensor) -> Tensor:
        probabilities = torch.softmax(self._router(x).float(), dim=-1)
        weights, chosen = torch.topk(probabilities, self.top_k, dim=-1)
        if self._normalize:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        order = torch.argsort(chosen.reshape(-1), stable=True)
        rows = order // self.top_k
        sizes = torch.bincount(chosen.reshape(-1), minlength=len(self.experts)).tolist()
        parts = [
            expert(part)
            for expert, part in zip(self.experts, torch.split(x.index_select(0, rows), sizes), strict=True)
            if part.shape[0]
        ]
        visited = torch.cat(parts) * weights.reshape(-1)[order][:, None].to(x.dtype)
        # back into the order of tokens before they are added up: that order is the same beside anybody
        places = torch.empty_like(visited).index_copy_(0, order, visited)
        return places.view(x.shape[0], self.top_k, -1).sum(dim=1)
