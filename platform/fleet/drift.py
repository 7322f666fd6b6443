"""The numbers of devices that change all the time, of any number of nodes written in one statement."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from django.db import connection

from fleet.facts import DeviceFacts

NUMBERS: Final = ("memory_used_bytes", "utilization", "temperature_c", "power_w", "power_limit_w")

#: Rows are locked in one order, and none is waited for: the same numbers come again, newer.
_NOTE: Final = """
WITH told AS (
    SELECT * FROM unnest(
        %s::uuid[], %s::text[], %s::bigint[], %s::float8[], %s::float8[], %s::float8[], %s::float8[], %s::text[]
    ) AS t(node_id, uuid, memory_used_bytes, utilization, temperature_c, power_w, power_limit_w, readings)
), locked AS (
    SELECT device.id AS device_id, told.*
    FROM fleet_device device JOIN told ON told.uuid = device.uuid AND told.node_id = device.node_id
    ORDER BY device.uuid FOR NO KEY UPDATE OF device SKIP LOCKED
)
UPDATE fleet_device SET memory_used_bytes = locked.memory_used_bytes, utilization = locked.utilization,
    temperature_c = locked.temperature_c, power_w = locked.power_w, power_limit_w = locked.power_limit_w,
    readings = locked.readings::jsonb
FROM locked WHERE fleet_device.id = locked.device_id
"""


class Told(NamedTuple):
    """What a node says of a device; ``numbers`` are its columns as :func:`of` gives them."""

    node_id: uuid.UUID
    device_uuid: str
    numbers: Mapping[str, Any]


def of(fact: DeviceFacts) -> dict[str, Any]:
    """The columns of a device that drift (pure)."""
    return {name: getattr(fact, name) for name in NUMBERS} | {"readings": dict(fact.readings)}


def note(told: Sequence[Told]) -> None:
    """Write what drifted, each device once; in the caller's transaction, which has locked the nodes.

    A device that is another node's now is left alone.
    """
    if not told:
        return
    columns = [[each.numbers[name] for each in told] for name in NUMBERS]
    readings = [json.dumps(each.numbers["readings"]) for each in told]
    with connection.cursor() as cursor:
        nodes, devices = [each.node_id for each in told], [each.device_uuid for each in told]
        cursor.execute(_NOTE, [nodes, devices, *columns, readings])
