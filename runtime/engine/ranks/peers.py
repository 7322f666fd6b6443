"""Sums over the ranks of a stage, and hidden states from stage to stage: torch.distributed, NCCL on GPUs, gloo on CPUs.

On one node both meet over the loopback interface and a file in the replica's private folder: no port of theirs can be
reached from outside.
"""

import datetime
import os
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from runtime.engine.ranks.split import Split

# Ranks wait for each other as long as nobody asks anything: who dies is noticed by its socket, not by a timeout.
_PATIENCE: Final = datetime.timedelta(days=3650)
_INTERFACE: Final = "lo"


class Peers:
    """The other ranks, as the forward pass meets them. All ranks make theirs at one time."""

    def __init__(self, split: Split, meeting: Path, device: torch.device) -> None:
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, _INTERFACE)
        self._split = split
        self._device = device
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=meeting.as_uri(),
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
