"""What joins devices, and what collectives put on it (pure). Bytes, seconds; one direction of one device.

Sources: NVIDIA's data sheets as collected in stas00/ml-engineering; ring collectives move 2(N-1)/N of their payload.
"""

import dataclasses
from typing import Final

GB: Final = 1_000_000_000


@dataclasses.dataclass(frozen=True)
class Link:
    """``bytes_per_second`` is one direction of one device; about 0.8 of it is what collectives reach."""

    name: str
    bytes_per_second: int
    nvlink: bool = False


NVLINK3: Final = Link("NVLink 3", 300 * GB, nvlink=True)
NVLINK4: Final = Link("NVLink 4", 450 * GB, nvlink=True)
NVLINK5: Final = Link("NVLink 5", 900 * GB, nvlink=True)
PCIE4: Final = Link("PCIe 4.0 x16", 31 * GB)
PCIE5: Final = Link("PCIe 5.0 x16", 63 * GB)
RDMA_400: Final = Link("RDMA 400 Gb/s", 50 * GB)
ETHERNET_100: Final = Link("Ethernet 100 Gb/s", 12 * GB)
_REACHED: Final = 0.8
#: The name of what stages send each other.
SEND: Final = "send/recv"


@dataclasses.dataclass(frozen=True)
class Collective:
    """``bytes_per_token`` is what one rank sends per token of a step; ``calls`` how often per step.

    ``overlap`` says whether compute goes on meanwhile.
    """

    name: str
    calls: int
    bytes_per_token: int
    link: Link
    overlap: str

    def seconds_per_token(self) -> float:
        """Time on the wire per token of a long prefill, without latencies."""
        return self.bytes_per_token / (self.link.bytes_per_second * _REACHED)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "name": self.name,
            "calls": self.calls,
            "bytes_per_token": self.bytes_per_token,
            "link": self.link.name,
            "overlap": self.overlap,
        }


def all_reduce(layers: int, ranks: int, hidden_size: int, width: int, link: Link) -> Collective:
    """Tensor parallelism: after the attention output and after the MLP of every layer."""
    sent = 2 * layers * 2 * (ranks - 1) * hidden_size * width // ranks
    return Collective("all-reduce", 2 * layers, sent, link, "exposed: the next product waits for the sum")


def send(stages: int, hidden_size: int, width: int, link: Link) -> Collective:
    """Pipeline parallelism: hidden states and residual, point to point, at every boundary between stages."""
    sent = 2 * hidden_size * width
    return Collective(
        SEND, stages - 1, sent, link, f"hidden behind other micro-batches while at least {stages} are in flight"
    )


def all_to_all(
    moe_layers: int, ranks: int, experts_per_token: int, hidden_size: int, out: int, back: int, link: Link
) -> Collective:
    """Expert parallelism: every token to its experts (``out`` bytes an element) and back (``back`` bytes)."""
    sent = moe_layers * experts_per_token * hidden_size * (out + back) * (ranks - 1) // ranks
    return Collective("all-to-all", 2 * moe_layers, sent, link, "partly hidden behind the shared expert and attention")
