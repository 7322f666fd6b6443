"""``Authorization: Bearer mpn_…`` of nodes and gateways, for HTTP and sockets alike."""

from fleet.errors import MachineRemoved, MachineUnknown
from fleet.joining import digest_of
from fleet.models import Gateway, Node
from fleet.states import NodeState


def bearer_of(header: str) -> str:
    """The secret inside an ``Authorization`` header, "" when there is none."""
    scheme, _, text = header.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def node_of(header: str) -> Node:
    """The node behind an ``Authorization`` header.

    Raises:
        MachineUnknown: no such credential (401).
        MachineRemoved: the node was removed; its agent must join again (410).
    """
    # Every report asks: only what its callers read, in no order.
    known = Node.objects.only("name", "state", "credential_digest").order_by()
    node = known.filter(credential_digest=digest_in(header)).first()
    if node is None:
        raise MachineUnknown("The node's credential is unknown; join with a new token.")
    if node.state == NodeState.REMOVED:
        raise MachineRemoved("This node was removed; join again with a new token.")
    return node


def gateway_of(header: str) -> Gateway:
    """The gateway behind an ``Authorization`` header. Raises as :func:`node_of`."""
    gateway = Gateway.objects.filter(credential_digest=digest_in(header)).first()
    if gateway is None:
        raise MachineUnknown("The gateway's credential is unknown; join with a new token.")
    if gateway.removed_at is not None:
        raise MachineRemoved("This gateway was removed; join again with a new token.")
    return gateway


def digest_in(header: str) -> str:
    """The digest of the credential in an ``Authorization`` header.

    Raises:
        MachineUnknown: there is none.
    """
    secret = bearer_of(header)
    if not secret.startswith("mpn_"):
        raise MachineUnknown("Send the credential as Authorization: Bearer mpn_…")
    return digest_of(secret)
