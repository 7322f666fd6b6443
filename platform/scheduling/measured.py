"""Needs from what engines have measured, by product (pure); the arithmetic of the estimate stays where nothing was."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Final

from scheduling.need import Need, key_of
from serving.peaks import Measured

#: Workspace and context differ a little from run to run: what is needed is so much more than was measured.
MARGIN: Final = 1.1
#: Weights below this part of what arithmetic says were not all there when they were measured.
CREDIBLE: Final = 0.5


def refine(needs: Mapping[str, Need], measured: Iterable[Measured], critical: float) -> dict[str, Need]:
    """``needs``, with one more for each product on which this was measured; ``critical`` is the watermark."""
    found = dict(needs)
    for one in measured:
        base = found.get(one.kind)
        refined = _refined(base, one, critical) if base is not None else None
        if base is not None and refined is not None:
            found[key_of(one.kind, one.product)] = refined
            found[one.kind] = dataclasses.replace(base, besides=base.besides | {one.product})
    return found


def _refined(base: Need, one: Measured, critical: float) -> Need | None:
    """``None`` where a limit was given by hand, or what was measured cannot be true."""
    sized = base.estimate
    if sized is None or base.memory_bytes != sized.total_bytes:
        return None
    if one.context_bytes <= 0 or one.weights_bytes < CREDIBLE * sized.weights_bytes:
        return None
    workspace, context = math.ceil(MARGIN * one.workspace_bytes), math.ceil(MARGIN * one.context_bytes)
    parts = one.weights_bytes + sized.kv_floor_bytes + workspace + context
    headroom = math.ceil(parts / critical) - parts
    host = parts + headroom if one.kind == "cpu" else sized.host_memory_bytes
    now = dataclasses.replace(
        sized, weights_bytes=one.weights_bytes, workspace_bytes=workspace, context_bytes=context,
        headroom_bytes=headroom, host_memory_bytes=host,
    )  # fmt: skip
    return dataclasses.replace(
        base,
        estimate=now,
        memory_bytes=now.total_bytes,
        host_bytes=base.host_bytes + host - sized.host_memory_bytes,
        products=frozenset({one.product}),
        besides=frozenset(),
        measured=True,
    )
