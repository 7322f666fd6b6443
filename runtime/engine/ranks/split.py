"""What one rank of a replica holds of a model: its layers, its heads, its part of every matrix. Pure, no torch.

Ranks are numbered stage by stage (:class:`runtime.wire.assignments.World`). The ranks of a stage divide every layer
(tensor parallelism, Megatron-LM, arXiv 1909.08053): projections that come first by their outputs, those that come
second by their inputs, so that each half of a layer needs one sum over the ranks. Stages have consecutive layers. Rank
0 has the output projection; the embedding is on every rank of the first stage.
"""

import dataclasses
from typing import Final

from runtime.engine import errors
from runtime.engine.causal.config import DecoderConfig
from runtime.wire.assignments import World

Range = tuple[int, int]

REASON: Final = "UnsupportedPlacement"


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """Of a tensor with ``size`` entries along dimension ``dim`` a rank keeps ``ranges``, one after another."""

    dim: int
    size: int
    ranges: tuple[Range, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Where rank ``rank`` stands among ``stages`` stages of ``tensor`` ranks."""

    rank: int = 0
    tensor: int = 1
    stages: int = 1

    @property
    def size(self) -> int:
        """All ranks."""
        return self.tensor * self.stages

    @property
    def stage(self) -> int:
        """Its stage."""
        return self.rank // self.tensor

    @property
    def index(self) -> int:
        """Its place inside its stage."""
        return self.rank % self.tensor

    @property
    def first(self) -> bool:
        """True in the stage that sees the tokens."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """True in the stage whose hidden states are the model's."""
        return self.stage == self.stages - 1

    @property
    def leads(self) -> bool:
        """True for the rank that takes requests and samples."""
        return self.rank == 0

    def layers(self, count: int) -> range:
        """The layers of its stage out of ``count``; stages that cannot have as many as others come first."""
        each, more = divmod(count, self.stages)
        short = self.stages - more  # stages without one more
        begin = self.stage * each + max(0, self.stage - short)
        return range(begin, begin + each + (self.stage >= short))

    def share(self, count: int) -> Range:
        """Its part of ``count`` things that divide by the ranks of a stage."""
        each = count // self.tensor
        return self.index * each, (self.index + 1) * each

    def kv_share(self, kv_heads: int) -> Range:
        """Its key heads: a part, or with fewer heads than ranks the one that its query heads look at."""
        if kv_heads >= self.tensor:
            return self.share(kv_heads)
        head = self.index * kv_heads // self.tensor
        return head, head + 1

    def local(self, config: DecoderConfig) -> DecoderConfig:
        """``config`` as this rank computes it; what has an entry per layer keeps all of them.

        Raises:
            errors.StartError: the model does not divide so.
        """
        check(config, self)
        first, last = self.kv_share(config.num_kv_heads)
        return dataclasses.replace(
            config,
            num_layers=len(self.layers(config.num_layers)),
            num_heads=config.num_heads // self.tensor,
            num_kv_heads=last - first,
            intermediate_size=config.intermediate_size // self.tensor,
            expert_size=config.expert_size // self.tensor,
        )


WHOLE: Final = Split()


def of_world(world: World | None) -> Split:
    """How the first rank of this node stands in ``world``.

    Raises:
        errors.StartError: it spreads experts, or what it says of ranks cannot be.
    """
    if world is None or world.size == 1:
        return WHOLE
    if world.expert > 1:
        raise errors.StartError(REASON, "The causal engine does not spread experts: give tensor_parallel instead.")
    here = world.ranks
    if not here or here != sorted({*here} & {*range(world.size)}) or world.size != world.tensor * world.pipeline:
        raise errors.StartError(
            REASON, f"There are no ranks {here} of {world.size} in {world.pipeline} stages of {world.tensor}."
        )
    if len(here) < world.size:
        leader_of(world)
    return Split(rank=here[0], tensor=world.tensor, stages=world.pipeline)


def leader_of(world: World) -> tuple[str, int]:
    """Address and port where the leader of ranks on several nodes waits for them.

    Raises:
        errors.StartError: there is none.
    """
    host, _colon, port = world.leader.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise errors.StartError(
            REASON,
            f"{len(world.ranks)} of {world.size} ranks are on this node, and {world.leader!r} is no address where they "
            "meet the others.",
        )
    return host, int(port)


def here_of(world: World | None) -> list[int]:
    """The ranks of this node."""
    return world.ranks if world is not None else [0]


def check(config: DecoderConfig, split: Split) -> None:
    """Whether the model divides as ``split`` says.

    Raises:
        errors.StartError: it does not; the message has the numbers.
    """
    ranks, heads = split.tensor, config.num_kv_heads
    indivisible = [
        f"{count} {what}"
        for count, what in (
            (config.num_heads, "attention heads"),
            (0 if all(config.sparse) else config.intermediate_size, "inner values of an MLP"),
            (config.expert_size, "inner values of an expert"),
        )
        if count % ranks
    ]
    if heads % ranks and ranks % heads:
        indivisible.append(f"{heads} key heads")
    if indivisible:
        raise errors.StartError(REASON, f"{', '.join(indivisible)} do not divide by {ranks} ranks.")
    if split.stages > config.num_layers:
        raise errors.StartError(REASON, f"{config.num_layers} layers are fewer than {split.stages} stages.")


def cuts(config: DecoderConfig, split: Split) -> dict[str, Cut]:
    """How the tensors of any layer of the whole model ``config`` are cut, by their names inside the layer.

    What is not named is on every rank of the stage as it is.
    """
    if split.tensor == 1:
        return {}
    names, dim = config.architecture.names, config.head_dim
    heads, kv_heads = _scaled(split.share(config.num_heads), dim), _scaled(split.kv_share(config.num_kv_heads), dim)
    parts = [(config.num_heads * dim, heads)] + [(config.num_kv_heads * dim, kv_heads)] * 2
    rows = _rows(names.qkv, parts)
    columns = {names.output: Cut(1, config.num_heads * dim, (heads,))}
    ways = 2 if config.architecture.gated else 1
    if not all(config.sparse):
        inner = (config.intermediate_size, split.share(config.intermediate_size))
        rows |= _rows(names.gate_up, [inner] * ways)
        columns[names.down] = Cut(1, inner[0], (inner[1],))
    inner = (config.expert_size, split.share(config.expert_size))
    for number in range(config.num_experts):
        prefix = f"{names.expert}.{number}."
        rows |= _rows(tuple(prefix + name for name in names.expert_gate_up), [inner] * ways)
        columns[prefix + names.expert_down] = Cut(1, inner[0], (inner[1],))
    turned = config.architecture.transposed
    weights = {f"{name}.weight": _turned(cut) if turned else cut for name, cut in (rows | columns).items()}
    return weights | {f"{name}.bias": cut for name, cut in rows.items()}


def _scaled(part: Range, by: int) -> Range:
    return part[0] * by, part[1] * by


def _rows(names: tuple[str, ...], parts: list[tuple[int, Range]]) -> dict[str, Cut]:
    """Parts of a stacked matrix, each its size and what is kept of it: one name has them all, or each has its own."""
    if len(names) > 1:
        return {name: Cut(0, size, (kept,)) for name, (size, kept) in zip(names, parts, strict=True)}
    begin, ranges = 0, []
    for size, (first, last) in parts:
        ranges.append((begin + first, begin + last))
        begin += size
    return {names[0]: Cut(0, begin, tuple(ranges))}


def _turned(cut: Cut) -> Cut:
    return dataclasses.replace(cut, dim=1 - cut.dim)
