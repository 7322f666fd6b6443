"""What is divided among the ranks of a replica, and what they run on (pure): a model, devices and their links."""

import dataclasses
import math
from typing import Final

from scheduling.links import Link

GIB: Final = 1024**3
#: What an engine has beside weights and KV cache: activations, libraries, graphs; communicators when it is spread.
OVERHEAD_BYTES: Final = int(2.5 * GIB)
SPREAD_OVERHEAD_BYTES: Final = 3 * GIB
STAGED_OVERHEAD_BYTES: Final = int(3.5 * GIB)


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

    ``domain`` devices reach each other over ``link``; a node has ``domains`` of them, joined by ``between``, and
    ``node_devices`` devices in all (0: those of its domains); ``nodes`` nodes are joined by ``fabric``.
    """

    product: str
    usable_bytes: int
    domain: int
    link: Link
    domains: int = 1
    between: Link | None = None
    node_devices: int = 0
    nodes: int = 1
    fabric: Link | None = None

    @property
    def reach(self) -> int:
        """So many devices of a node can share every layer, over whatever joins them."""
        if self.between is None:
            return self.domain
        return max(self.node_devices or self.domain * self.domains, self.domain)

    def link_of(self, ranks: int) -> Link:
        """The slowest link among ``ranks`` devices of one node."""
        return self.link if ranks <= self.domain or self.between is None else self.between

    def groups(self, ranks: int) -> int:
        """So many groups of ``ranks`` devices are on one node; each is within a domain where that is large enough."""
        if ranks == 1 or ranks > self.domain:
            return self.reach // ranks
        return self.domain // ranks * self.domains

    def between_stages(self, ranks: int, stages: int) -> Link | None:
        """The slowest link that ``stages`` groups of ``ranks`` devices have to cross; ``None``: there is none."""
        if stages <= self.domain // ranks:
            return self.link
        if stages <= self.groups(ranks):
            return self.between
        return self.fabric if stages <= self.groups(ranks) * self.nodes else None


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
