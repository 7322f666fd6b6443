"""Generations of desired state.

``bump`` raises a counter in the transaction of the change and, once that is committed, pushes a hint. Readers read the
counter and the rows in one REPEATABLE READ snapshot, so a table never claims a generation whose changes it lacks.
"""

from collections.abc import Collection
from typing import Final

from django.db import connection, transaction
from django.db.models.expressions import RawSQL

from ledger import hints
from ledger.models import Generation

ROUTES = "routes"
#: One statement instead of three: a counter is locked from here to the commit.
_RAISE: Final = """
INSERT INTO ledger_generation AS kept (name, value) VALUES (%s, 1)
ON CONFLICT (name) DO UPDATE SET value = kept.value + 1 RETURNING value
"""


def of_node(node_id: object) -> str:
    """Name of the counter of a node's assignments."""
    return f"node:{node_id}"


def bump(name: str) -> int:
    """Raise the counter ``name`` by one and return it. Needs a transaction; serialises with other bumps of the name."""
    if not connection.in_atomic_block:
        raise RuntimeError("a generation rises in the transaction of its change")
    with connection.cursor() as cursor:
        cursor.execute(_RAISE, [name])
        value = int(cursor.fetchone()[0])
    transaction.on_commit(lambda: hints.push(name, {"generation": value}))
    return value


def current(name: str) -> int:
    """The counter ``name``; 0 before the first bump."""
    return Generation.objects.filter(name=name).values_list("value", flat=True).first() or 0


def current_of(names: Collection[str]) -> dict[str, int]:
    """The counters ``names``; those that never rose are missing."""
    return dict(Generation.objects.filter(name__in=names).values_list("name", "value"))


def stamp(name: str) -> tuple[int, str]:
    """The counter ``name`` and the transaction that wrote it: no other state of the database has the same."""
    found = Generation.objects.filter(name=name).annotate(by=RawSQL("ledger_generation.xmin::text", ())).first()
    return (found.value, found.by) if found is not None else (0, "")
