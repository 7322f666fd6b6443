"""What this room does with outbox messages; idempotent, since delivery is at least once."""

import uuid
from collections.abc import Mapping
from typing import Any

from catalog import services, validation
from ledger import outbox


@outbox.handles(services.VALIDATE_TOPIC)
def validate(payload: Mapping[str, Any]) -> None:
    """Check the version that was finalized."""
    validation.validate(uuid.UUID(payload["version"]))
