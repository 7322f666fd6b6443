"""What a transaction has changed for others to see, collected and announced once, at its end.

Counters are locked until the commit, so they are raised last and always in the same order: nodes by id, then the route
table. Two transactions can then wait for each other, but never in a circle.
"""

import uuid
from collections.abc import Callable
from typing import Final

from ledger import generations, hints, outbox

#: Outbox topic: capacity appeared or was freed; whoever places things looks again.
CAPACITY_CHANGED: Final = "fleet.capacity_changed"
#: Outbox topic: devices went bad; whoever runs something there replaces it.
DEVICES_SICK: Final = "fleet.devices_sick"


class Changes:
    """Collect while working, :meth:`announce` as the last thing in the transaction."""

    def __init__(self) -> None:
        self._nodes: dict[uuid.UUID, list[Callable[[int], None]]] = {}
        self._routes = False
        self._platform: set[str] = set()
        self._tenants: set[tuple[uuid.UUID, str, str]] = set()
        self._topics: dict[str, dict[str, str]] = {}

    def node(self, node_id: uuid.UUID, told: Callable[[int], None] | None = None) -> None:
        """What the node should run has changed; ``told`` is called with the counter that stands for the change."""
        waiting = self._nodes.setdefault(node_id, [])
        if told is not None:
            waiting.append(told)

    def routes(self) -> None:
        """What gateways serve from has changed."""
        self._routes = True

    def platform(self, what: str) -> None:
        """Something on the platform pages has changed."""
        self._platform.add(what)

    def tenant(self, tenant_id: uuid.UUID, what: str, subject: object = "") -> None:
        """Something on a tenant's pages has changed."""
        self._tenants.add((tenant_id, what, str(subject)))

    def wake(self, topic: str) -> None:
        """A loop should look now instead of at its next beat."""
        self._topics[topic] = {}

    def announce(self) -> None:
        """Raise the counters and, after the commit, push the hints."""
        for topic, payload in sorted(self._topics.items()):
            outbox.emit(topic, payload)
        for node_id in sorted(self._nodes):
            value = generations.bump(generations.of_node(node_id))
            for told in self._nodes[node_id]:
                told(value)
        if self._routes:
            generations.bump(generations.ROUTES)
        for what in sorted(self._platform):
            hints.push_on_commit(hints.PLATFORM_TOPIC, {"what": what})
        for tenant_id, what, subject in sorted(self._tenants):
            hints.push_on_commit(hints.tenant_topic(tenant_id), {"what": what, "id": subject})
