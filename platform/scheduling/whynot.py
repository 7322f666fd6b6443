"""Why a replica is not spread over devices in some way (pure): a code that others decide by, and a sentence to read."""

import enum
from typing import Final, NamedTuple

from scheduling.links import Collective, Link, all_reduce
from scheduling.ranks import ModelFacts
from scheduling.words import size


class Why(enum.StrEnum):
    """What stands against a way over several devices."""

    TP_OVER_PCIE = "TpOverPcie"  # nothing else: it would work if it were asked for
    NOT_DIVISIBLE = "NotDivisible"
    TOO_LARGE = "TooLarge"
    TOO_MANY_RANKS = "TooManyRanks"
    NOT_JOINED = "NotJoined"
    NOT_SUPPORTED = "NotSupported"
    NO_RANK_ADDRESS = "NoRankAddress"  # it would work over nodes that take no part in replicas over several
    NOT_NEEDED = "NotNeeded"  # it would work; another comes first
    OTHER_ASKED_FOR = "OtherAskedFor"  # it would work; the config names another


#: Codes of ways that would work.
WOULD_WORK: Final = frozenset({Why.NOT_NEEDED, Why.OTHER_ASKED_FOR})


class Refused(NamedTuple):
    """A code with its sentence. Nothing decides by the words of the sentence."""

    code: Why
    sentence: str


def tensor(model: ModelFacts, ranks: int) -> Refused | None:
    """Why the model cannot be divided among ``ranks`` that share every layer."""
    if ranks == 1:
        return None
    why = ""
    if model.heads % ranks:
        why = f"{model.heads} attention heads do not divide by {ranks}"
    elif not model.latent_dim and model.kv_heads % ranks and ranks % model.kv_heads:
        why = f"{model.kv_heads} KV heads and {ranks} ranks do not divide"
    elif model.inner_size % ranks:
        why = f"an MLP of {model.inner_size} inner values does not divide by {ranks}"
    elif model.expert_size and (model.expert_size % ranks or (model.expert_size // ranks) % model.block):
        why = f"experts of {model.expert_size} do not divide by {ranks} into blocks of {model.block}"
    return Refused(Why.NOT_DIVISIBLE, why) if why else None


def experts(count: int, *, tp: int, ep: int) -> Refused | None:
    """Why so many experts cannot be spread over ``ep`` ranks of which ``tp`` share attention."""
    if ep <= 1:
        return None
    if not count:
        return Refused(
            Why.NOT_SUPPORTED,
            "expert parallelism is for mixture-of-experts models, and this one is dense: it has no experts to spread",
        )
    if count % ep:
        return Refused(Why.NOT_DIVISIBLE, f"{count} experts do not divide by {ep}")
    if ep % tp:
        return Refused(Why.NOT_DIVISIBLE, f"{ep} ranks of experts are no multiple of the {tp} that share attention")
    return None


def stages(model: ModelFacts, count: int, link: Link | None) -> Refused | None:
    """Why there cannot be ``count`` stages; ``link`` is what joins their groups of devices."""
    if count > model.layers:
        return Refused(Why.TOO_MANY_RANKS, f"{model.layers} layers are fewer than {count} stages")
    if count > 1 and link is None:
        return Refused(Why.NOT_JOINED, "nothing joins the groups of devices that it needs")
    if count > 1 and not model.stages_supported:
        return Refused(Why.NOT_SUPPORTED, "the engine cannot run this architecture in stages")
    return None


def reach(ranks: int, most: int, *, node: bool) -> Refused | None:
    """Why ``ranks`` cannot be together where ``most`` can: on one ``node``, or in one domain of devices."""
    if ranks <= most:
        return None
    where = f"node of {ranks} devices" if node else f"domain of {ranks}"
    return Refused(Why.TOO_MANY_RANKS, f"{ranks} ranks need one {where}; the largest has {most}")


def tensor_over(model: ModelFacts, ranks: int, link: Link) -> Refused:
    """Tensor parallelism over a link that is no NVLink, for which nobody has asked."""
    sent = all_reduce(model.layers, ranks, model.hidden_size, model.width, link)
    return Refused(
        Why.TP_OVER_PCIE,
        f"tensor parallelism over {link.name}: {sent.bytes_per_token} bytes per token and rank in {sent.calls} "
        "all-reduces per step; say tp_over_pcie, or use stages",
    )


def experts_over(moved: Collective) -> Refused:
    """Expert parallelism over a link that is no NVLink, for which nobody has asked."""
    return Refused(
        Why.TP_OVER_PCIE,
        f"all-to-all over {moved.link.name}: {moved.bytes_per_token} bytes per token and rank; say tp_over_pcie, or "
        "use stages",
    )


def apart(nodes: int, product: str, able: int) -> Refused:
    """It would work over more nodes than the ``able`` ones that take part in replicas over several nodes."""
    return Refused(
        Why.NO_RANK_ADDRESS,
        f"it needs several nodes: of {nodes} with {product}, {able} take part in replicas over several nodes",
    )


def too_large(usable: int, weights: int, overhead: int, tokens: int, floor: int) -> Refused | None:
    """What is short where a device has ``usable`` bytes and a replica needs ``floor`` tokens of KV cache."""
    parts = f"{size(weights)} of weights and {size(overhead)} of workspace per device"
    budget = usable - weights - overhead
    if budget <= 0:
        return Refused(Why.TOO_LARGE, f"{parts} do not fit {size(usable)}: short by {size(-budget)}")
    if tokens < floor:
        return Refused(Why.TOO_LARGE, f"{parts} leave {size(budget)}: {tokens} tokens of KV cache, {floor} are needed")
    return None
