"""Over how many devices one replica is spread (pure): the parallel plan of what is asked for, for the fleet there is.

A replica that fits on one device of the fleet is never spread: it waits for room there. One that fits on none gets, for
every product that can, the plan that ``parallel`` chooses; where the serving config says how, that and nothing else.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from catalog import holding
from catalog.estimate import Estimate, VersionFacts, is_graph, shape_of
from catalog.holding import Shape
from scheduling import topology, whynot
from scheduling.answers import Ask
from scheduling.need import Need, key_of
from scheduling.parallel import Choice, Option, choose, option_as_given
from scheduling.products import bound
from scheduling.ranks import Hardware, ModelFacts, Wanted
from scheduling.snapshot import Snapshot
from scheduling.whynot import Refused, Why

#: What communicators between ranks keep of each device.
COMMUNICATORS_BYTES: Final = 512 * 1024**2
#: Kinds of devices that a replica can be spread over. Simulated ones run stand-ins, whatever the engine.
SPREADABLE: Final = ("cuda", "simulated")


class SpreadConfig(Protocol):
    """A serving config, as far as it says how a replica is spread."""

    @property
    def engine(self) -> str: ...
    @property
    def tensor_parallel(self) -> int: ...
    @property
    def pipeline_parallel(self) -> int: ...
    @property
    def expert_parallel(self) -> int: ...
    @property
    def tp_over_pcie(self) -> bool: ...
    @property
    def watermark_critical(self) -> float: ...


@dataclasses.dataclass(frozen=True)
class Given:
    """How the serving config wants it (0: to be chosen): ``pipeline`` stages of ``tensor`` ranks each, or of ``expert``
    ranks where experts are spread, which are a multiple of ``tensor``."""

    tensor: int = 0
    pipeline: int = 0
    expert: int = 0
    over_pcie: bool = False

    @property
    def named(self) -> bool:
        """True when it says how many ranks there are."""
        return bool(self.tensor or self.pipeline or self.expert)

    @property
    def ranks(self) -> int:
        return max(self.tensor, self.expert, 1) * max(self.pipeline, 1)


@dataclasses.dataclass(frozen=True)
class Spread:
    """What plans over several devices are made from. ``critical`` is the part of a device that may be used."""

    model: ModelFacts
    floor_tokens: int
    overhead_bytes: int
    critical: float
    given: Given
    engine: str


def spread_of(version: VersionFacts, config: SpreadConfig, needs: Mapping[str, Need]) -> Spread | None:
    """The facts of a version for plans over several devices; ``None`` where it runs on no device of that kind, or is a
    graph, which nothing here divides."""
    need = next((needs[kind] for kind in SPREADABLE if kind in needs), None)
    if need is None or need.estimate is None or is_graph(version):
        return None
    sized = need.estimate
    return Spread(
        model=_model(shape_of(version), sized, need.weight_width),
        floor_tokens=math.ceil(sized.kv_floor_bytes / sized.kv_bytes_per_token),
        overhead_bytes=sized.workspace_bytes + sized.context_bytes,
        critical=config.watermark_critical,
        given=Given(
            config.tensor_parallel, config.pipeline_parallel, config.expert_parallel, over_pcie=config.tp_over_pcie
        ),
        engine=config.engine,
    )


def _model(shape: Shape, sized: Estimate, width: float) -> ModelFacts:
    """Keys and values as the estimate counts them: bytes per head, scales included; or those of latent attention, which
    every rank of TP keeps whole.

    Embedding and output projection are never held in less than a byte per weight.
    """
    ends = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
    held = sized.weights_bytes / shape.parameters if shape.parameters else 0.0
    ends_bytes = min(sized.weights_bytes, int(ends * max(1.0, width or held)))
    matrices, others = holding.undivided(shape)
    latent = sized.kv_bytes_per_token // shape.layers if shape.latent_dim else 0
    per_head = sized.kv_bytes_per_token // (2 * shape.layers * shape.kv_heads)
    experts = 3 * shape.hidden_size * shape.expert_size * shape.num_experts * shape.sparse_layers
    share = min(1.0, experts / shape.parameters) if shape.parameters else 0.0
    return ModelFacts(
        weights_bytes=sized.weights_bytes,
        ends_bytes=ends_bytes,
        replicated_bytes=min(sized.weights_bytes - ends_bytes, int(matrices * held + others * max(held, width))),
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=per_head,
        kv_width=1,
        latent_dim=latent,
        hidden_size=shape.hidden_size,
        inner_size=shape.intermediate_size if shape.sparse_layers < shape.layers else 0,
        width=max(1, round(width)),
        experts=shape.num_experts,
        experts_per_token=shape.experts_per_token,
        expert_bytes=int(sized.weights_bytes * share),
        expert_size=shape.expert_size,
        moe_layers=shape.sparse_layers,
    )


def spread_out(asks: Sequence[Ask], snapshot: Snapshot) -> list[Ask]:
    """``asks`` on the products that they name, with plans over several devices of ``snapshot`` where one is not
    enough."""
    here = sorted({device.product for device in snapshot.devices})
    known: dict[str, list[topology.Kind]] = {}
    made: dict[tuple[Any, ...], dict[str, Need]] = {}

    def kinds(kind: str) -> list[topology.Kind]:
        if kind not in known:
            known[kind] = topology.kinds(snapshot.nodes, snapshot.devices, kind)
        return known[kind]

    found = []
    for ask in asks:
        if ask.spread is None and not ask.products:
            found.append(ask)
            continue
        key = (ask.spread, ask.products, *sorted(ask.needs.items()))
        needs = made.get(key)
        if needs is None:
            allowed = bound(ask.needs, ask.products, here)
            needs = made[key] = needs_for(ask.spread, allowed, kinds) if ask.spread is not None else allowed
        found.append(dataclasses.replace(ask, needs=needs))
    return found


def needs_for(
    spread: Spread, needs: Mapping[str, Need], kinds: Callable[[str], Sequence[topology.Kind]]
) -> dict[str, Need]:
    """The needs by kind of device, and by product where a replica is spread over several."""
    found: dict[str, Need] = {}
    for kind, need in needs.items():
        if kind not in SPREADABLE:
            if spread.given.ranks == 1:
                found[kind] = need
            continue
        found |= _of_kind(spread, need, kinds(kind))
    return found or dict(needs)


def _of_kind(spread: Spread, need: Need, products: Sequence[topology.Kind]) -> dict[str, Need]:
    one = {need.kind: need}
    products = [
        each
        for each in products
        if each.product not in need.besides and (not need.products or each.product in need.products)
    ]
    if (need.besides or need.products) and not products:
        return one
    largest = max((each.largest_bytes for each in products), default=0)
    if spread.given.ranks == 1 and (spread.given.named or not products or need.memory_bytes <= largest):
        return one
    real = need.kind == "cuda"
    if real and spread.given.expert > 1:
        return {need.kind: dataclasses.replace(need, unsupported=_no_experts(spread))}
    spread = _of_engine(spread) if real else spread
    ways = [(_real if real else _simulated)(spread, need, each) for each in products]
    made = [(way.product, way.need) for way in ways if way.need is not None]
    if not made:
        choice = ways[0].choice if ways else None
        refused = ways[0].refused if ways else None
        if refused is not None and not spread.given.named and refused.code not in _SAID_FIRST:
            refused = None  # what one device lacks says it better
        return {need.kind: dataclasses.replace(need, choice=choice, unsupported=refused)}
    made.sort(key=lambda pair: pair[1].devices * pair[1].stages)  # stable: the most plentiful first among equals
    others = {way.product: way.refused for way in ways if way.refused is not None}
    found: dict[str, Need] = {}
    for product, planned in made:
        planned = dataclasses.replace(planned, elsewhere=others)
        if planned.linked and spread.given.over_pcie:  # within NVLink while there is room, else over what there is
            found[f"{key_of(need.kind, product)}/nvlink"] = planned
            planned = dataclasses.replace(planned, linked=False, linked_by=0)
        found[key_of(need.kind, product)] = planned
    return found


#: What is said of a plan rather than what one device lacks: something a person can give.
_SAID_FIRST: Final = (Why.TP_OVER_PCIE, Why.NO_RANK_ADDRESS)


class _Way(NamedTuple):
    """How a replica is spread over devices of one product, or why it is not."""

    product: str
    choice: Choice
    need: Need | None
    refused: Refused | None


def _simulated(spread: Spread, need: Need, kind: topology.Kind) -> _Way:
    choice = _choice(spread, kind)
    made = _ranks(spread, need, kind, choice.chosen, choice) if choice.chosen is not None else None
    return _Way(kind.product, choice, made, choice.refused)


def _real(spread: Spread, need: Need, kind: topology.Kind) -> _Way:
    """On one node where that can hold it; else over those that take part in replicas over several nodes."""
    one = _choice(spread, _one_node(kind))
    if one.chosen is not None:
        return _Way(kind.product, one, _side_by_side(_ranks(spread, need, kind, one.chosen, one), kind), None)
    many = _choice(spread, kind.joined) if kind.joined is not None else None
    if many is not None and many.chosen is not None and kind.joined is not None:
        made = _ranks(spread, need, kind.joined, many.chosen, many)
        return _Way(kind.product, many, dataclasses.replace(made, over_nodes=True), None)
    anywhere = _choice(spread, kind).chosen if kind.nodes > 1 else None
    if anywhere is None or one.refused is None or one.refused.code is Why.TP_OVER_PCIE:
        return _Way(kind.product, one, None, one.refused)
    able = kind.joined.nodes if kind.joined is not None else 0
    missing = whynot.apart(kind.nodes, kind.product, able)
    return _Way(kind.product, one, None, missing._replace(sentence=f"{anywhere.name}: {missing.sentence}."))


def _no_experts(spread: Spread) -> Refused:
    return Refused(
        Why.NOT_SUPPORTED,
        f"The {spread.engine} engine divides experts like every other matrix and does not spread them: use "
        "tensor_parallel instead of expert_parallel.",
    )


def _of_engine(spread: Spread) -> Spread:
    """Without the ways that the engine does not go: to it experts are matrices like others."""
    return dataclasses.replace(spread, model=dataclasses.replace(spread.model, experts=0))


def _one_node(kind: topology.Kind) -> topology.Kind:
    """As if there were one node."""
    return dataclasses.replace(kind, nodes=1)


def _side_by_side(need: Need, kind: topology.Kind) -> Need:
    """All stages as one group of devices, which is on one node: within one NVLink domain where that holds all of them,
    else each stage of several within one where its ranks are linked."""
    every = need.devices * need.stages
    inside = every <= kind.domain
    return dataclasses.replace(
        need,
        devices=every,
        stages=1,
        linked=every > 1 and kind.link.nvlink if inside else need.linked,
        linked_by=0 if inside or not need.linked else need.devices,
        host_bytes=need.host_bytes * need.stages,
        millicpus=need.millicpus * need.stages,
    )


def _choice(spread: Spread, kind: topology.Kind) -> Choice:
    hardware = Hardware(
        product=kind.product,
        usable_bytes=int(kind.memory_bytes * spread.critical),
        domain=kind.domain,
        link=kind.link,
        domains=kind.domains,
        between=kind.between,
        node_devices=kind.node_devices,
        nodes=kind.nodes,
        fabric=kind.fabric,
    )
    wanted = Wanted(
        floor_tokens=spread.floor_tokens,
        tp_over_pcie=spread.given.over_pcie,
        overhead_bytes=spread.overhead_bytes,
        communicators_bytes=COMMUNICATORS_BYTES,
    )
    if spread.given.named:
        given = spread.given
        return option_as_given(
            spread.model, hardware, wanted,
            tp=max(given.tensor, 1), pp=max(given.pipeline, 1), ep=max(given.expert, 1),
        )  # fmt: skip
    return choose(spread.model, hardware, wanted)


def _ranks(spread: Spread, need: Need, kind: topology.Kind, chosen: Option, choice: Choice) -> Need:
    """What each rank needs: its part of the weights, its KV floor, and beside them what every process has."""
    group = max(chosen.tp, chosen.ep)
    per_token = spread.model.kv_bytes_per_token(chosen.tp, chosen.pp)
    parts = chosen.weights_bytes + spread.floor_tokens * per_token + spread.overhead_bytes + COMMUNICATORS_BYTES
    return dataclasses.replace(
        need,
        memory_bytes=min(max(math.ceil(parts / spread.critical), 1), kind.memory_bytes),
        host_bytes=need.host_bytes * group,
        millicpus=need.millicpus * group,
        devices=group,
        stages=chosen.pp,
        linked=1 < group <= kind.domain and kind.link.nvlink,
        products=frozenset({kind.product}),
        choice=choice,
    )
