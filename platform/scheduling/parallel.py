"""How a replica is spread over devices (pure): the choice, and every alternative with its numbers.

One device if it fits; else tensor parallelism (TP) inside one NVLink domain, where heads divide; else pipeline stages
(PP) over domains or nodes; mixture-of-experts models whose KV cache TP cannot split, or whose experts it cannot divide,
spread their experts instead (EP). More load than one replica bears is answered with more replicas, never with sharding.
TP over plain PCIe is refused unless it was asked for: two all-reduces per layer would wait for the wire.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Final

from scheduling.links import Collective, Link, all_reduce, all_to_all, send
from scheduling.words import size

GIB: Final = 1024**3
#: What an engine has beside weights and KV cache: activations, libraries, graphs; communicators when it is spread.
OVERHEAD_BYTES: Final = int(2.5 * GIB)
SPREAD_OVERHEAD_BYTES: Final = 3 * GIB
STAGED_OVERHEAD_BYTES: Final = int(3.5 * GIB)
MAX_TP: Final = 64
MAX_PP: Final = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Sizes of a model as it is stored on the devices; bytes.

    ``replicated_bytes`` of the weights are kept by every TP rank of every stage, ``ends_bytes`` (embedding and output
    projection) whole by the first rank, which needs most; ``expert_bytes`` are routed experts. ``latent_dim``
    is what MLA keeps per token and layer (0: keys and values per head). ``inner_size`` is that of the MLP of a dense
    layer (0: not known, or there is none), ``expert_size`` that of an expert, and ``block`` what quantization blocks
    must divide (1: anything). ``stages_supported``: the engine can
    run stages.
    """

    weights_bytes: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden_size: int
    kv_width: int = 2
    width: int = 2
    inner_size: int = 0
    replicated_bytes: int = 0
    ends_bytes: int = 0
    latent_dim: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_bytes: int = 0
    expert_size: int = 0
    moe_layers: int = 0
    block: int = 1
    stages_supported: bool = True

    def kv_bytes_per_token(self, tp: int, pp: int) -> int:
        """Per rank; keys and values of a head are kept whole, so below one head per rank they are copied."""
        layers = math.ceil(self.layers / pp)
        if self.latent_dim:
            return layers * self.latent_dim * self.kv_width
        return 2 * layers * max(1, self.kv_heads // tp) * self.head_dim * self.kv_width

    def weights_per_rank(self, tp: int, pp: int) -> int:
        """Of the rank that has most: in a stage with the most layers. What TP cannot divide is on every rank."""
        divided = self.weights_bytes - self.replicated_bytes - self.ends_bytes
        return math.ceil((divided / tp + self.replicated_bytes) * self.stage_share(pp)) + self.ends_bytes

    def stage_share(self, pp: int) -> float:
        """The part of all layers that the longest of ``pp`` stages has."""
        return math.ceil(self.layers / pp) / self.layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """Devices of one product. ``usable_bytes`` of each may be used (what CUDA sees times the fraction allowed).

    ``domain`` devices reach each other over ``link``; a node has ``domains`` of them, joined by ``between``; ``nodes``
    nodes are joined by ``fabric``.
    """

    product: str
    usable_bytes: int
    domain: int
    link: Link
    domains: int = 1
    between: Link | None = None
    nodes: int = 1
    fabric: Link | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """``floor_tokens`` must fit in one replica's KV cache, ``load_tokens`` in all replicas together.

    ``overhead_bytes`` is what every rank has beside weights and cache, and ``communicators_bytes`` what it has more
    when there are several; 0: as typical engines have.
    """

    floor_tokens: int
    load_tokens: int = 0
    tp_over_pcie: bool = False
    overhead_bytes: int = 0
    communicators_bytes: int = 0

    def overhead(self, tp: int, pp: int) -> int:
        """Bytes per rank beside weights and cache."""
        if self.overhead_bytes:
            return self.overhead_bytes + (self.communicators_bytes if tp * pp > 1 else 0)
        return OVERHEAD_BYTES if tp == pp == 1 else SPREAD_OVERHEAD_BYTES if pp == 1 else STAGED_OVERHEAD_BYTES


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """One way, with numbers per rank; ``why_not`` is "" for one that works. ``kv_tokens`` are of the whole replica."""

    tp: int
    pp: int
    ep: int
    weights_bytes: int
    kv_budget_bytes: int
    kv_tokens: int
    collectives: tuple[Collective, ...]
    replicas: int = 1
    why_not: str = ""

    @property
    def devices(self) -> int:
        return max(self.tp, self.ep) * self.pp

    @property
    def name(self) -> str:
        """``TP4 x PP2``."""
        kinds = (("TP", self.tp), ("EP", self.ep), ("PP", self.pp))
        return " x ".join(f"{kind}{count}" for kind, count in kinds if count > 1) or "one device"

    @property
    def bytes_per_token(self) -> int:
        """What one rank sends per token."""
        return sum(each.bytes_per_token for each in self.collectives)

    @property
    def sentence(self) -> str:
        """``TP4 x PP2: 16.4 GiB of weights per device, 36.9 GiB left for KV cache; all-reduce over NVLink 4 …``."""
        told = f"{self.name}: {size(self.weights_bytes)} of weights per device, {self.kv_tokens} tokens of KV cache"
        wires = (
            f"{each.name} over {each.link.name}, {each.bytes_per_token} bytes per token" for each in self.collectives
        )
        return "; ".join((told, *wires))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name, "sentence": self.sentence, "tp": self.tp, "pp": self.pp, "ep": self.ep,
            "replicas": self.replicas,
            "weights_bytes_per_rank": self.weights_bytes, "kv_budget_bytes_per_rank": self.kv_budget_bytes,
            "kv_tokens": self.kv_tokens, "bytes_per_token": self.bytes_per_token,
            "collectives": [each.as_dict() for each in self.collectives], "why_not": self.why_not,
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Choice:
    """``chosen`` is ``None`` when no way works; ``rejected`` has all others, each with why."""

    chosen: Option | None
    rejected: tuple[Option, ...]

    @property
    def sentence(self) -> str:
        """The way that was chosen with its numbers, or the nearest reason why none works."""
        if self.chosen is None:
            return f"{self.rejected[0].name}: {self.rejected[0].why_not}." if self.rejected else ""
        return self.chosen.sentence

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "chosen": self.chosen.as_dict() if self.chosen else None,
            "sentence": self.sentence,
            "rejected": [option.as_dict() for option in self.rejected],
        }


def choose(model: ModelFacts, hardware: Hardware, wanted: Wanted) -> Choice:
    """The first way that works, in the order of the module's first sentence."""
    chosen: Option | None = None
    rejected: list[Option] = []
    for option in _options(model, hardware, wanted):
        if option.why_not:
            rejected.append(option)
        elif chosen is None:
            chosen = option
        else:
            rejected.append(dataclasses.replace(option, why_not=_not_needed(chosen, option)))
    if chosen is not None and wanted.load_tokens > chosen.kv_tokens:
        chosen = dataclasses.replace(chosen, replicas=math.ceil(wanted.load_tokens / chosen.kv_tokens))
    return Choice(chosen, tuple(rejected))


def option_as_given(model: ModelFacts, hardware: Hardware, wanted: Wanted, *, tp: int, pp: int, ep: int = 1) -> Choice:
    """The way that was asked for, or why it cannot be; what would have been chosen is among the others."""
    if ep > 1:
        given = _experts(model, hardware, wanted, ep, tp=tp, pp=pp)
    else:
        given = _option(model, hardware, wanted, tp=tp, pp=pp)
    ranks = max(tp, ep)
    if not given.why_not and ranks > hardware.domain:
        given = dataclasses.replace(
            given, why_not=f"{ranks} ranks need one domain of {ranks}; the largest has {hardware.domain}"
        )
    free = choose(model, hardware, wanted)
    others = [option for option in (free.chosen, *free.rejected) if option is not None]
    rest = tuple(
        dataclasses.replace(option, why_not=option.why_not or f"{given.name} is asked for")
        for option in others
        if (option.tp, option.pp, option.ep) != (tp, pp, ep)
    )
    return Choice(None, (given, *rest)) if given.why_not else Choice(given, rest)


def _not_needed(chosen: Option, option: Option) -> str:
    if option.devices > chosen.devices:
        return (
            f"{chosen.name} is enough: {option.devices} devices send {option.bytes_per_token} bytes per token and "
            f"rank instead of {chosen.bytes_per_token}; more load is for more replicas"
        )
    return f"{chosen.name} comes first on as many devices"


def _options(model: ModelFacts, hardware: Hardware, wanted: Wanted) -> Iterator[Option]:
    yield _option(model, hardware, wanted, tp=1, pp=1)
    spread_experts = bool(model.experts) and bool(model.latent_dim)
    for ranks in _up_to(hardware.domain):
        if ranks == 1:
            continue
        ways = [_option(model, hardware, wanted, tp=ranks, pp=1)]
        if model.experts:
            ways.insert(0 if spread_experts else 1, _experts(model, hardware, wanted, ranks))
        yield from ways
    widest = [ranks for ranks in _up_to(hardware.domain) if not _illegal(model, hardware, wanted, ranks)]
    groups = hardware.domains * hardware.nodes
    for stages in _up_to(min(groups * hardware.domain, model.layers, MAX_PP)):
        for tp in sorted(widest, reverse=True):
            if stages > 1 and stages * tp <= groups * hardware.domain and (tp == max(widest) or tp == 1):
                yield _option(model, hardware, wanted, tp=tp, pp=stages)


def _up_to(limit: int) -> list[int]:
    return [count for count in range(1, min(limit, MAX_TP) + 1) if limit % count == 0 or count & (count - 1) == 0]


def _illegal(model: ModelFacts, hardware: Hardware, wanted: Wanted, tp: int) -> str:
    """Why the model cannot be divided so, or must not be over this link; "" when it can."""
    if tp == 1:
        return ""
    if model.heads % tp:
        return f"{model.heads} attention heads do not divide by {tp}"
    if not model.latent_dim and model.kv_heads % tp and tp % model.kv_heads:
        return f"{model.kv_heads} KV heads and {tp} ranks do not divide"
    if model.inner_size % tp:
        return f"an MLP of {model.inner_size} inner values does not divide by {tp}"
    if model.expert_size and (model.expert_size % tp or (model.expert_size // tp) % model.block):
        return f"experts of {model.expert_size} do not divide by {tp} into blocks of {model.block}"
    if not hardware.link.nvlink and not wanted.tp_over_pcie:
        sent = all_reduce(model.layers, tp, model.hidden_size, model.width, hardware.link)
        return (
            f"tensor parallelism over {hardware.link.name}: {sent.bytes_per_token} bytes per token and rank in "
            f"{sent.calls} all-reduces per step; say tp_over_pcie, or use stages"
        )
    return ""


def _option(model: ModelFacts, hardware: Hardware, wanted: Wanted, *, tp: int, pp: int) -> Option:
    overhead = wanted.overhead(tp, pp)
    weights = model.weights_per_rank(tp, pp)
    budget = hardware.usable_bytes - weights - overhead
    tokens = max(0, budget) // model.kv_bytes_per_token(tp, pp)
    collectives, why_not = _around(model, hardware, wanted, tp, pp, group=tp)
    return Option(
        tp=tp, pp=pp, ep=1, weights_bytes=weights, kv_budget_bytes=budget, kv_tokens=tokens,
        collectives=tuple(collectives),
        why_not=why_not or _too_big(hardware, weights, overhead, budget, tokens, wanted),
    )  # fmt: skip


def _around(
    model: ModelFacts, hardware: Hardware, wanted: Wanted, tp: int, pp: int, *, group: int
) -> tuple[list[Collective], str]:
    """What ``tp`` ranks and stages of ``group`` ranks send each other, and why they cannot be."""
    collectives = []
    if tp > 1:
        collectives.append(all_reduce(math.ceil(model.layers / pp), tp, model.hidden_size, model.width, hardware.link))
    why_not = _illegal(model, hardware, wanted, tp)
    if pp > model.layers:
        why_not = why_not or f"{model.layers} layers are fewer than {pp} stages"
    if pp > 1:
        link = _between_stages(hardware, group, pp)
        if link is None:
            why_not = why_not or "nothing joins the groups of devices that it needs"
        else:
            collectives.append(send(pp, model.hidden_size, model.width, link))
        if not model.stages_supported:
            why_not = why_not or "the engine cannot run this architecture in stages"
    return collectives, why_not


def undividable(experts: int, *, tp: int, ep: int) -> str:
    """Why so many experts cannot be spread over ``ep`` ranks of which ``tp`` share attention; "" when they can."""
    if ep <= 1:
        return ""
    if not experts:
        return "expert parallelism is for mixture-of-experts models, and this one is dense: it has no experts to spread"
    if experts % ep:
        return f"{experts} experts do not divide by {ep}"
    if ep % tp:
        return f"{ep} ranks of experts are no multiple of the {tp} that share attention"
    return ""


def _experts(model: ModelFacts, hardware: Hardware, wanted: Wanted, ranks: int, *, tp: int = 1, pp: int = 1) -> Option:
    """Experts spread over the ranks of a stage; ``tp`` of them share attention and whatever else is no expert.

    Each group that shares attention keeps the KV cache of its own requests.
    """
    shared = dataclasses.replace(model, weights_bytes=model.weights_bytes - model.expert_bytes)
    weights = shared.weights_per_rank(tp, pp) + math.ceil(model.expert_bytes / ranks * model.stage_share(pp))
    overhead = wanted.overhead(ranks, pp)
    budget = hardware.usable_bytes - weights - overhead
    groups = max(ranks // tp, 1)
    tokens = groups * (max(0, budget) // model.kv_bytes_per_token(tp, pp))
    moved = all_to_all(
        math.ceil((model.moe_layers or model.layers) / pp), ranks, model.experts_per_token, model.hidden_size,
        1 if model.block > 1 else model.width, model.width, hardware.link,
    )  # fmt: skip
    why_not = undividable(model.experts, tp=tp, ep=ranks)
    if not hardware.link.nvlink and not wanted.tp_over_pcie:
        why_not = why_not or f"all-to-all over {hardware.link.name}: {moved.bytes_per_token} bytes per token and rank"
    # Experts stay whole, so their inner size need not divide.
    around, illegal = _around(dataclasses.replace(model, expert_size=0), hardware, wanted, tp, pp, group=ranks)
    return Option(
        tp=tp, pp=pp, ep=ranks, weights_bytes=weights, kv_budget_bytes=budget, kv_tokens=tokens,
        collectives=(moved, *around),
        why_not=why_not or illegal or _too_big(hardware, weights, overhead, budget, tokens // groups, wanted),
    )  # fmt: skip


def _between_stages(hardware: Hardware, tp: int, pp: int) -> Link | None:
    """The slowest link that ``pp`` groups of ``tp`` devices have to cross."""
    per_domain = hardware.domain // tp
    if pp <= per_domain:
        return hardware.link
    if pp <= per_domain * hardware.domains:
        return hardware.between
    return hardware.fabric if pp <= per_domain * hardware.domains * hardware.nodes else None


def _too_big(hardware: Hardware, weights: int, overhead: int, budget: int, tokens: int, wanted: Wanted) -> str:
    parts = f"{size(weights)} of weights and {size(overhead)} of workspace per device"
    if budget <= 0:
        return f"{parts} do not fit {size(hardware.usable_bytes)}: short by {size(-budget)}"
    if tokens < wanted.floor_tokens:
        return f"{parts} leave {size(budget)}: {tokens} tokens of KV cache, {wanted.floor_tokens} are needed"
    return ""
