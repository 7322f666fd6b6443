"""How a replica is spread over devices (pure): the choice, and every alternative with its numbers.

In this order, the first that works:

1. one device;
2. tensor parallelism (TP) inside one NVLink domain, where heads divide (on a node without NVLink, inside the node);
   mixture-of-experts models whose KV cache TP cannot split, or whose experts it cannot divide, spread their experts
   instead (EP);
3. pipeline stages (PP) of such domains, or of single devices, over domains and nodes: sums stay on NVLink, and only
   hidden states cross what is slower;
4. TP (or EP) over several domains of a node, where NVLink joins pairs or quads: the PCIe between them carries all.

A way that the config names is taken as it is. TP and EP over plain PCIe are refused unless ``tp_over_pcie`` says so:
two all-reduces per layer would wait for the wire. More load than one replica bears is answered with more replicas,
never with sharding.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Final

from scheduling import whynot
from scheduling.links import Collective, all_reduce, all_to_all, send
from scheduling.ranks import Hardware, ModelFacts, Wanted
from scheduling.whynot import WOULD_WORK, Refused, Why
from scheduling.words import size

MAX_TP: Final = 64
MAX_PP: Final = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """One way, with numbers per rank; ``refused`` is ``None`` for the one that is taken. ``kv_tokens`` are of the whole
    replica."""

    tp: int
    pp: int
    ep: int
    weights_bytes: int
    kv_budget_bytes: int
    kv_tokens: int
    collectives: tuple[Collective, ...]
    replicas: int = 1
    refused: Refused | None = None

    @property
    def why_not(self) -> str:
        """Why it is not taken, in a sentence; "" for the one that is."""
        return self.refused.sentence if self.refused is not None else ""

    @property
    def code(self) -> Why | None:
        """The same as a code."""
        return self.refused.code if self.refused is not None else None

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
        """``TP4: 16.4 GiB of weights per device, 90112 tokens of KV cache in all; all-reduce over NVLink 4 …``."""
        told = (
            f"{self.name}: {size(self.weights_bytes)} of weights per device, {self.kv_tokens} tokens of KV cache in all"
        )
        wires = (
            f"{each.name} over {each.link.name}, {each.bytes_per_token} bytes per token and rank"
            for each in self.collectives
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
            "code": self.code or "",
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Choice:
    """``chosen`` is ``None`` when no way works; ``rejected`` has all others, each with why."""

    chosen: Option | None
    rejected: tuple[Option, ...]

    @property
    def refused(self) -> Refused | None:
        """The nearest reason why none works, with the name of the way; ``None`` where one does.

        Where only the word of the config is missing, that is nearer than what one device lacks.
        """
        if self.chosen is not None or not self.rejected:
            return None
        near = self.rejected[0]
        if near.devices == 1:
            near = next((option for option in self.rejected if option.code is Why.TP_OVER_PCIE), near)
        return Refused(near.refused.code, f"{near.name}: {near.why_not}.") if near.refused is not None else None

    @property
    def sentence(self) -> str:
        """The way that was chosen with its numbers, or the nearest reason why none works."""
        if self.chosen is not None:
            return self.chosen.sentence
        return self.refused.sentence if self.refused is not None else ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "chosen": self.chosen.as_dict() if self.chosen else None,
            "sentence": self.sentence,
            "code": self.refused.code.value if self.refused is not None else "",
            "rejected": [option.as_dict() for option in self.rejected],
        }


def choose(model: ModelFacts, hardware: Hardware, wanted: Wanted) -> Choice:
    """The first way that works, in the order that the module states."""
    chosen: Option | None = None
    rejected: list[Option] = []
    for option in _options(model, hardware, wanted):
        if option.refused is not None:
            rejected.append(option)
        elif chosen is None:
            chosen = option
        else:
            rejected.append(dataclasses.replace(option, refused=_not_needed(chosen, option)))
    if chosen is not None and wanted.load_tokens > chosen.kv_tokens:
        chosen = dataclasses.replace(chosen, replicas=math.ceil(wanted.load_tokens / chosen.kv_tokens))
    return Choice(chosen, tuple(rejected))


def option_as_given(model: ModelFacts, hardware: Hardware, wanted: Wanted, *, tp: int, pp: int, ep: int = 1) -> Choice:
    """The way that was asked for, or why it cannot be; what would have been chosen is among the others."""
    if ep > 1:
        given = _experts(model, hardware, wanted, ep, tp=tp, pp=pp)
    else:
        given = _option(model, hardware, wanted, tp=tp, pp=pp)
    free = choose(model, hardware, wanted)
    others = [option for option in (free.chosen, *free.rejected) if option is not None]
    asked = Refused(Why.OTHER_ASKED_FOR, f"{given.name} is asked for")
    rest = tuple(
        dataclasses.replace(option, refused=asked if option.code in {None, *WOULD_WORK} else option.refused)
        for option in others
        if (option.tp, option.pp, option.ep) != (tp, pp, ep)
    )
    return Choice(None, (given, *rest)) if given.refused is not None else Choice(given, rest)


def _not_needed(chosen: Option, option: Option) -> Refused:
    why = f"{chosen.name} comes first on as many devices"
    if option.devices > chosen.devices:
        why = (
            f"{chosen.name} is enough: {option.devices} devices send {option.bytes_per_token} bytes per token and "
            f"rank instead of {chosen.bytes_per_token}; more load is for more replicas"
        )
    return Refused(Why.NOT_NEEDED, why)


def _options(model: ModelFacts, hardware: Hardware, wanted: Wanted) -> Iterator[Option]:
    yield _option(model, hardware, wanted, tp=1, pp=1)
    inside = _up_to(hardware.domain)
    for ranks in inside:
        yield from _together(model, hardware, wanted, ranks)
    widest = max(ranks for ranks in inside if _may_share(model, hardware, wanted, ranks))
    for stages in _up_to(min(hardware.groups(1) * hardware.nodes, model.layers, MAX_PP)):
        for tp in sorted({widest, 1}, reverse=True):
            if 1 < stages <= hardware.groups(tp) * hardware.nodes:
                yield _option(model, hardware, wanted, tp=tp, pp=stages)
    for ranks in _up_to(hardware.reach):
        if ranks > hardware.domain:
            yield from _together(model, hardware, wanted, ranks)


def _together(model: ModelFacts, hardware: Hardware, wanted: Wanted, ranks: int) -> Iterator[Option]:
    """The ways in which ``ranks`` devices of a node hold one stage."""
    if ranks == 1:
        return
    ways = [_option(model, hardware, wanted, tp=ranks, pp=1)]
    if model.experts:
        ways.insert(0 if model.latent_dim else 1, _experts(model, hardware, wanted, ranks))
    yield from ways


def _up_to(limit: int) -> list[int]:
    return [count for count in range(1, min(limit, MAX_TP) + 1) if limit % count == 0 or count & (count - 1) == 0]


def _may_share(model: ModelFacts, hardware: Hardware, wanted: Wanted, ranks: int) -> bool:
    if ranks == 1:
        return True
    told = hardware.link_of(ranks).nvlink or wanted.tp_over_pcie
    return told and whynot.tensor(model, ranks) is None


def _option(model: ModelFacts, hardware: Hardware, wanted: Wanted, *, tp: int, pp: int) -> Option:
    overhead = wanted.overhead(tp, pp)
    weights = model.weights_per_rank(tp, pp)
    budget = hardware.usable_bytes - weights - overhead
    tokens = max(0, budget) // model.kv_bytes_per_token(tp, pp)
    return Option(
        tp=tp, pp=pp, ep=1, weights_bytes=weights, kv_budget_bytes=budget, kv_tokens=tokens,
        collectives=_around(model, hardware, tp, pp, group=tp),
        refused=_impossible(model, hardware, tp, pp, group=tp)
        or whynot.too_large(hardware.usable_bytes, weights, overhead, tokens, wanted.floor_tokens)
        or _unasked(model, hardware, wanted, tp),
    )  # fmt: skip


def _around(model: ModelFacts, hardware: Hardware, tp: int, pp: int, *, group: int) -> tuple[Collective, ...]:
    """What ``tp`` ranks and stages of ``group`` ranks send each other."""
    found = []
    if tp > 1:
        layers = math.ceil(model.layers / pp)
        found.append(all_reduce(layers, tp, model.hidden_size, model.width, hardware.link_of(tp)))
    if pp > 1 and (link := hardware.between_stages(group, pp)) is not None:
        found.append(send(pp, model.hidden_size, model.width, link))
    return tuple(found)


def _impossible(model: ModelFacts, hardware: Hardware, tp: int, pp: int, *, group: int) -> Refused | None:
    """Why ``tp`` ranks and stages of ``group`` ranks cannot be, whatever is asked for."""
    return (
        whynot.tensor(model, tp)
        or whynot.reach(group, hardware.reach, node=hardware.reach > hardware.domain)
        or whynot.stages(model, pp, hardware.between_stages(group, pp))
    )


def _unasked(model: ModelFacts, hardware: Hardware, wanted: Wanted, tp: int) -> Refused | None:
    """That is the last thing to be said: where it is said, the word of the config is all that is missing."""
    link = hardware.link_of(tp)
    return None if tp == 1 or link.nvlink or wanted.tp_over_pcie else whynot.tensor_over(model, tp, link)


def _experts(model: ModelFacts, hardware: Hardware, wanted: Wanted, ranks: int, *, tp: int = 1, pp: int = 1) -> Option:
    """Experts spread over the ranks of a stage; ``tp`` of them share attention and whatever else is no expert.

    Each group that shares attention keeps the KV cache of its own requests.
    """
    shared = dataclasses.replace(model, weights_bytes=model.weights_bytes - model.expert_bytes)
    weights = shared.weights_per_rank(tp, pp) + math.ceil(model.expert_bytes / ranks * model.stage_share(pp))
    overhead = wanted.overhead(ranks, pp)
    budget = hardware.usable_bytes - weights - overhead
    groups = max(ranks // tp, 1)
    each = max(0, budget) // model.kv_bytes_per_token(tp, pp)
    link = hardware.link_of(ranks)
    moved = all_to_all(
        math.ceil((model.moe_layers or model.layers) / pp), ranks, model.experts_per_token, model.hidden_size,
        1 if model.block > 1 else model.width, model.width, link,
    )  # fmt: skip
    told = link.nvlink or wanted.tp_over_pcie
    whole = dataclasses.replace(model, expert_size=0)  # experts stay whole, so their inner size need not divide
    return Option(
        tp=tp, pp=pp, ep=ranks, weights_bytes=weights, kv_budget_bytes=budget, kv_tokens=groups * each,
        collectives=(moved, *_around(model, hardware, tp, pp, group=ranks)),
        refused=whynot.experts(model.experts, tp=tp, ep=ranks)
        or _impossible(whole, hardware, tp, pp, group=ranks)
        or whynot.too_large(hardware.usable_bytes, weights, overhead, each, wanted.floor_tokens)
        or (None if told else whynot.experts_over(moved)),
    )  # fmt: skip
