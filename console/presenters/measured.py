"""What replicas were planned with, beside what their engines found. Pure."""

import dataclasses
from collections.abc import Iterable
from typing import Any, Final

MAX_ROWS: Final = 6


@dataclasses.dataclass(frozen=True)
class Compared:
    """Bytes of one replica: planned and measured. ``kv`` is bytes per token; a part that is not known is 0."""

    deployment: Any
    weights: tuple[int, int]
    kv: tuple[int, int]
    workspace: tuple[int, int]


def compared(deployments: Iterable[Any]) -> list[Compared]:
    """One row for each deployment of which a replica has reported; at most ``MAX_ROWS``."""
    found: list[Compared] = []
    for deployment in deployments:
        for replica in deployment.replicas.all():
            need, ledger = (replica.explanation or {}).get("need"), replica.ledger
            if need and ledger and ledger.get("weights_bytes"):
                found.append(_row(deployment, need, ledger))
                break
        if len(found) == MAX_ROWS:
            break
    return found


def _row(deployment: Any, need: dict[str, Any], ledger: dict[str, Any]) -> Compared:
    tokens = int(ledger.get("kv_blocks_total") or 0) * int(ledger.get("kv_block_tokens") or 0)
    return Compared(
        deployment,
        weights=(int(need.get("weights_bytes") or 0), int(ledger["weights_bytes"])),
        kv=(
            int(need.get("kv_bytes_per_token") or 0),
            int(ledger.get("kv_total_bytes") or 0) // tokens if tokens else 0,
        ),
        workspace=(int(need.get("workspace_bytes") or 0), int(ledger.get("workspace_bytes") or 0)),
    )
