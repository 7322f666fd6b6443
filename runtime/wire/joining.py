"""How an agent or a gateway gets its own credential: once, with a one-time token."""

import msgspec

from runtime.wire.version import CURRENT, ProtocolVersion


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """``name`` is what people see; ``machine_id`` tells a returning machine from a new one."""

    token: str
    name: str
    machine_id: str
    version: str
    protocol: ProtocolVersion = CURRENT


class JoinReply(msgspec.Struct, frozen=True, kw_only=True):
    """``credential`` is shown once; the control plane keeps its hash."""

    id: str
    credential: str


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """Pushed over the WebSocket: something changed, re-read. Losing one costs latency, never correctness.

    A gateway sends one back when it serves from ``generation``; its reports say so, too.
    """

    topic: str  # "assignments" or "routes"
    generation: int
