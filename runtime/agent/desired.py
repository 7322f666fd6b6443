"""What this node should run, as far as it was told: accepted by generation, kept on disk, never set back."""

from collections.abc import Mapping

import msgspec

from runtime.agent.records import DesiredState, Records
from runtime.base import logs
from runtime.wire import version
from runtime.wire.assignments import NodeAssignments

log = logs.get(__name__)


class DesiredKeeper:
    """Holds the newest assignments. ``current`` is ``None`` until this node was ever told anything."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._highest: dict[str, int] = {}
        self.current: NodeAssignments | None = None

    @property
    def generation(self) -> int:
        """The newest generation acted on; 0 before the first."""
        return self.current.generation if self.current else 0

    @property
    def highest(self) -> Mapping[str, int]:
        """The newest generation ever seen of each replica, oldest first."""
        return self._highest

    def load(self, node_id: str) -> None:
        """Go on from what the last agent knew, if it was the same node."""
        kept = self._records.load_desired()
        if kept is not None and kept.assignments.node_id == node_id:
            self.current, self._highest = kept.assignments, dict(kept.highest)

    def accept(self, offered: NodeAssignments, node_id: str) -> bool:
        """Take ``offered`` unless it is older, for another node or in another protocol; True when it is new."""
        why = self._objection(offered, node_id)
        if why:
            log.warning("assignments_refused", generation=offered.generation, applied=self.generation, message=why)
            return False
        if self.current is not None and offered.generation == self.current.generation:
            return False
        for item in offered.replicas:
            newest = max(item.generation, self._highest.pop(item.replica_id, 0))
            self._highest[item.replica_id] = newest  # at the end: used most recently
        self.current = offered
        self._save()
        log.info("assignments_accepted", generation=offered.generation, replicas=len(offered.replicas))
        return True

    def want_nothing(self) -> None:
        """This node was removed by a person: end everything, whatever generation comes next."""
        if self.current is not None and self.current.replicas:
            self.current = msgspec.structs.replace(self.current, replicas=[])
            self._save()

    def reset(self, node_id: str) -> None:
        """The node has a new identity: the generations of the old one mean nothing."""
        if self.current is not None and self.current.node_id != node_id:
            self.current, self._highest = None, {}
            self._records.drop_desired()

    def _objection(self, offered: NodeAssignments, node_id: str) -> str:
        if not version.compatible(offered.protocol):
            return f"protocol {offered.protocol.major} is not spoken here: update the agent"
        if offered.node_id != node_id:
            return "they are for another node"
        if offered.generation < self.generation:
            return "they are older than what this node acts on"
        return ""

    def _save(self) -> None:
        if self.current is None:
            return
        try:
            self._records.save_desired(DesiredState(assignments=self.current, highest=self._highest))
        except OSError as exc:  # act on it all the same: the control plane tells it again after a restart
            log.warning("desired_state_not_saved", error=str(exc))
