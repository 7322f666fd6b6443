"""One request on its way to a replica: what it asks, the slot it gets, and what the slot's use has shown."""

from typing import Final

import msgspec

from runtime.gateway import affinity
from runtime.gateway.balance import Choice
from runtime.gateway.holding import RANKS
from runtime.gateway.replicas import Deployment, Replica
from runtime.wire.routes import EndpointEntry


class Ask:
    """One request looking for a replica. ``until`` is its deadline and ``since`` when it came, monotonic seconds.

    ``picked`` is the id of the only deployment that may serve it, if any.
    """

    __slots__ = (
        "_keys",
        "body",
        "draw",
        "endpoint",
        "held",
        "picked",
        "prompt",
        "rank",
        "salt",
        "since",
        "sticky",
        "tenant_id",
        "tried",
        "until",
        "weight",
    )

    def __init__(
        self,
        endpoint: EndpointEntry,
        body: bytes,
        *,
        tenant_id: str,
        salt: str,
        since: float,
        until: float,
        weight: float = 1.0,
        priority: str = "default",
        sticky: bytes = b"",
        draw: float = 0.0,
        picked: str = "",
    ) -> None:
        self.endpoint = endpoint
        self.body = body
        self.tenant_id = tenant_id
        self.salt = salt
        self.since = since
        self.until = until
        self.weight = weight
        self.rank = RANKS.get(priority, RANKS["default"])
        self.sticky = sticky
        self.draw = draw
        self.picked = picked
        self.prompt = len(body) // affinity.BYTES_PER_TOKEN
        self.tried: set[str] = set()
        self.held = 0.0  # seconds it was held back here
        self._keys: list[int] | None = None

    def keys(self) -> list[int]:
        """The prefix keys, computed when first asked for."""
        if self._keys is None:
            self._keys = affinity.keys_of(affinity.prompt_of(self.body), self.salt)
        return self._keys


class Slot:
    """A place on a replica, taken. Goes back to :meth:`Traffic.release` once."""

    __slots__ = ("choice", "deployment", "released", "replica", "work")

    def __init__(self, choice: Choice, replica: Replica, deployment: Deployment, work: float) -> None:
        self.choice = choice
        self.replica = replica
        self.deployment = deployment
        self.work = work
        self.released = False


class Outcome(msgspec.Struct, frozen=True):
    """How a slot was used. ``broken``: the engine broke off, or was not even reached (``unreached``); ``error``: it
    answered with a 5xx of its own; neither and no ``e2e_ms``: nothing is shown. Milliseconds from sending on.
    """

    broken: bool = False
    unreached: bool = False
    error: bool = False
    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None
    completion: int = 0


NOTHING: Final = Outcome()
BROKEN: Final = Outcome(broken=True)
UNREACHED: Final = Outcome(broken=True, unreached=True)
ERROR: Final = Outcome(error=True)
