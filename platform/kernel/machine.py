"""State machines: a transition table, and the one function that moves a row along it.

Nobody writes a state field but :func:`move`. It updates where the row is in an allowed source state and raises when no
row moved, so two movers can never both win. The caller records the returned :class:`Move` in the ledger, in the same
transaction.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from django.db import models, transaction

from kernel import clock, errors

S = TypeVar("S", bound=str)


@dataclasses.dataclass(frozen=True)
class Move:
    """One move that happened."""

    subject: str
    subject_id: str
    source: str
    target: str
    reason: str
    message: str


class Transitions(Generic[S]):
    """Allowed edges: ``{source: {targets}}``. Every state appears as a source, terminal ones with no target."""

    def __init__(self, name: str, edges: Mapping[S, Iterable[S]]) -> None:
        self.name = name
        self._edges: dict[S, frozenset[S]] = {source: frozenset(targets) for source, targets in edges.items()}
        unknown = {target for targets in self._edges.values() for target in targets} - set(self._edges)
        if unknown:
            raise ValueError(f"{name}: targets that are no states: {sorted(unknown)}")

    @property
    def states(self) -> frozenset[S]:
        return frozenset(self._edges)

    @property
    def terminal(self) -> frozenset[S]:
        """States without a way out."""
        return frozenset(state for state, targets in self._edges.items() if not targets)

    def allows(self, source: S, target: S) -> bool:
        """True when there is an edge from ``source`` to ``target``."""
        return target in self._edges.get(source, frozenset())

    def sources_of(self, target: S) -> frozenset[S]:
        """Every state from which ``target`` can be reached in one move."""
        return frozenset(source for source, targets in self._edges.items() if target in targets)


def move(
    row: models.Model,
    transitions: Transitions[S],
    to: S,
    *,
    reason: str = "",
    message: str = "",
    expect: Iterable[S] | None = None,
    **fields: Any,
) -> Move:
    """Move ``row`` to state ``to`` and write ``fields`` with it; ``row`` is refreshed in place.

    The state that is left is the database's: that of ``row`` is tried first, and where it is behind, the row is locked
    and read.

    ``expect`` narrows the allowed source states further. Columns ``reason``, ``message`` and ``state_changed_at`` are
    written where the model has them. Must run inside a transaction that also records the move.

    Raises:
        errors.StaleTransition: the row is in a state from which ``to`` is not allowed, or is gone.
    """
    sources = transitions.sources_of(to)
    if expect is not None:
        sources &= frozenset(expect)
    if not transaction.get_connection(row._state.db).in_atomic_block:
        raise RuntimeError(f"{transitions.name}: a move needs a transaction")
    names = {field.name for field in row._meta.concrete_fields}
    values: dict[str, Any] = {"state": to, **fields}
    for name, value in (("reason", reason), ("message", message), ("state_changed_at", clock.now())):
        if name in names:
            values[name] = value
    rows = type(row)._base_manager.filter(pk=row.pk)
    current = getattr(row, "state", None)
    if current not in sources or not rows.filter(state=current).update(**values):  # ``row`` is behind the database
        current = rows.order_by().select_for_update(no_key=True).values_list("state", flat=True).first()
        if current is None or current not in sources:
            raise errors.StaleTransition(
                f"{transitions.name} {row.pk} is {current or 'gone'}; it cannot become {to} from there.",
                data={"state": current, "wanted": str(to), "allowed_from": sorted(sources)},
            )
        rows.update(**values)
    for name, value in values.items():
        setattr(row, name, value)
    return Move(transitions.name, str(row.pk), str(current), str(to), reason, message)
