"""Sums over the ranks of a stage, and hidden states from stage to stage: torch.distributed, NCCL on GPUs, gloo on CPUs.

On one node both meet over the loopback interface and a file in the replica's private folder: no port of theirs can be
reached from outside. Ranks of several nodes meet at a TCP store of the leader and send over the interface that has the
node's rank address: without any proof of who it is, and in the clear.
"""

import datetime
import ipaddress
import os
import socket
from typing import Final
from urllib.parse import urlsplit

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]  # it has them, and does not say so

from runtime.engine import errors
from runtime.engine.ranks.split import REASON, Split

# Ranks wait for each other as long as nobody asks anything: who dies is noticed by its socket, not by a timeout.
_PATIENCE: Final = datetime.timedelta(days=3650)
_LOOPBACK: Final = "lo"


def interface_of(address: str) -> str:
    """The network interface that has ``address``; the loopback interface for "" and for what is the machine itself.

    Raises:
        errors.StartError: none has it.
    """
    if not address or ipaddress.ip_address(address).is_loopback:
        return _LOOPBACK
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return name
    raise errors.StartError(REASON, f"No network interface of this machine has the rank address {address}.")


def open_store(where: str, size: int, listener: socket.socket | None = None) -> Store:
    """Where ``size`` ranks find each other: the file or the port that ``where`` names. It is served on ``listener``."""
    parts = urlsplit(where)
    if parts.scheme == "file":
        return FileStore(parts.path, size)
    return TCPStore(
        parts.hostname or "",
        parts.port or 0,
        size,
        is_master=listener is not None,
        timeout=_PATIENCE,
        wait_for_workers=False,
        master_listen_fd=listener.detach() if listener is not None else None,
    )


class Peers:
    """The other ranks, as the forward pass meets them. All ranks make theirs at one time.

    ``address`` is this node's where ranks of other nodes reach it; "" where all are on one.
    """

    def __init__(self, split: Split, store: Store, address: str, device: torch.device) -> None:
        interface = interface_of(address)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # that one, not all whose names begin so
        self._split = split
        self._device = device
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=split.rank,
            world_size=split.size,
            timeout=_PATIENCE,
        )
        stages = [
            dist.new_group(list(range(first, first + split.tensor))) for first in range(0, split.size, split.tensor)
        ]
        self._stage = stages[split.stage]

    def total(self, part: Tensor) -> Tensor:
        """The sum of what the ranks of this stage have; ``part`` itself becomes it."""
        if self._split.tensor > 1:
            dist.all_reduce(part, group=self._stage)
        return part

    def pass_on(self, hidden: Tensor) -> None:
        """Give ``hidden`` to the next stage."""
        dist.send(hidden.contiguous(), self._split.rank + self._split.tensor)

    def take(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """What the stage before this one passes on: [rows, width]."""
        return self._received(rows, width, dtype, self._split.rank - self._split.tensor)

    def return_picks(self, hidden: Tensor) -> None:
        """Give the hidden states that are wanted to the leader."""
        dist.send(hidden.contiguous(), 0)

    def take_picks(self, rows: int, width: int, dtype: torch.dtype) -> Tensor:
        """The leader's side of it: what the first rank of the last stage returns."""
        return self._received(rows, width, dtype, self._split.size - self._split.tensor)

    def _received(self, rows: int, width: int, dtype: torch.dtype, source: int) -> Tensor:
        found = torch.empty((rows, width), dtype=dtype, device=self._device)
        dist.recv(found, source)
        return found
