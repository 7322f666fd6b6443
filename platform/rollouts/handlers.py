"""What this room does with outbox messages. The handler only wakes the loop, which looks for itself."""

from collections.abc import Mapping
from typing import Any

from ledger import outbox
from rollouts import advance, tasks


@outbox.handles(advance.WAKE)
def wake(_payload: Mapping[str, Any]) -> None:
    """Something about a rollout changed."""
    tasks.advance_all.delay()
