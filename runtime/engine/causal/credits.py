"""How many requests a gateway may have here at one time. Pure.

The fair queue is in the engine, so it has to see what waits: credits cover the running slots and the whole waiting
queue, and are shared equally among the gateways that were heard of lately. A gateway holds back only what is beyond
its credits.
"""

from collections import OrderedDict
from typing import Final

MEMORY_SECONDS: Final = 120.0
MAX_GATEWAYS: Final = 64


def share(*, slots: int, places: int, gateways: int, admission_open: bool) -> int:
    """Credits of one of ``gateways`` gateways: its part of ``slots`` (running) and ``places`` (waiting).

    Never below 1 while admission is open, whatever the number of gateways; 0 when it is closed.
    """
    if not admission_open:
        return 0
    return max(1, (slots + places) // max(1, gateways))


class GatewayRoll:
    """The gateways heard of in the last ``MEMORY_SECONDS``, at most ``MAX_GATEWAYS``: the longest silent leaves."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()  # longest silent first

    def hear(self, gateway: str, now: float) -> int:
        """Note that ``gateway`` asks at monotonic time ``now``; return among how many credits are shared.

        An empty name is a caller that is no gateway: it is told what a gateway would get, and takes no share.
        """
        while self._seen and next(iter(self._seen.values())) < now - MEMORY_SECONDS:
            self._seen.popitem(last=False)
        if gateway:
            self._seen[gateway] = now
            self._seen.move_to_end(gateway)
            if len(self._seen) > MAX_GATEWAYS:
                self._seen.popitem(last=False)
        return len(self._seen)
