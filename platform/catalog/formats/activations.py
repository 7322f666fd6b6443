"""What a graph needs beside its weights (pure): the values between its nodes that live at the same time.

Nodes run in the order of the file. A value lives from the node that makes it to the last one that reads it, inputs from
the start, outputs to the end. Where a shape is not stated a value counts as much as the largest that its node reads.
Reshaping costs nothing. See ``catalog.graphs`` for sizes that depend on what callers send.
"""

import dataclasses
from collections.abc import Iterable
from typing import Final

from catalog.formats.onnxheader import BITS, Graph, Node, Value
from catalog.graphs import DEFAULT_LENGTH, Terms, bytes_of

#: What the peak is sought at: the standard serving config's batch, and that length.
_BATCH: Final = 32
_TEXT_BYTES: Final = 64  # an element of text: a pointer, a length and a few words
_MOST_POWER: Final = 4
# Their output is their first input's memory under another shape.
_VIEWS: Final = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})
_CONSTANTS: Final = frozenset({"Constant"})


@dataclasses.dataclass(frozen=True)
class Activations:
    """The values that live at the peak. ``stated`` is the part of all values whose shape the file states (0 to 1)."""

    terms: Terms
    stated: float


def activations(graph: Graph) -> Activations:
    """The peak of what lives at the same time."""
    life = _Life(graph)
    for index, node in enumerate(graph.nodes):
        life.run(index, node)
    return Activations(life.best or life.live, life.stated / life.made if life.made else 1.0)


class _Life:
    def __init__(self, graph: Graph) -> None:
        self._values = graph.values
        self._constant = set(graph.initializers)
        self._root: dict[str, str] = {}
        self._sizes: dict[str, dict[tuple[int, int], int]] = {}
        self.live: dict[tuple[int, int], int] = {}
        self.best: dict[tuple[int, int], int] = {}
        self._most = -1
        self.made = self.stated = 0
        self._last = self._last_uses(graph)
        for value in graph.inputs:
            if value.name not in self._constant:
                self._sizes[value.name] = terms_of(value) or {}
                self._add(self._sizes[value.name], 1)

    def run(self, index: int, node: Node) -> None:
        """Its outputs are made beside its inputs; then goes what nobody reads any more."""
        made = [name for name in node.outputs if name]
        if node.operator in _CONSTANTS:
            self._constant |= set(made)
            return
        view = bool(made) and made[0] in self._root
        for name in made[1:] if view else made:
            self._sizes[name] = self._size(name, node)
            self._add(self._sizes[name], 1)
        self._note_peak()
        for name in {*self._roots(node.inputs), *self._roots(made)}:
            if self._last.get(name, index) <= index and name in self._sizes:
                self._add(self._sizes.pop(name), -1)

    def _size(self, name: str, node: Node) -> dict[tuple[int, int], int]:
        self.made += 1
        value = self._values.get(name)
        stated = terms_of(value) if value is not None else None
        if stated is not None:
            self.stated += 1
            return stated
        known = [self._sizes[each] for each in self._roots(node.inputs) if each in self._sizes]
        return max(known, key=_reference).copy() if known else {}

    def _roots(self, names: Iterable[str]) -> list[str]:
        return [self._root.get(name, name) for name in names if name]

    def _last_uses(self, graph: Graph) -> dict[str, int]:
        """The index of the last node that reads each value, in whatever shape; also finds what is only a view."""
        last: dict[str, int] = {}
        for index, node in enumerate(graph.nodes):
            source = next(iter(self._roots(node.inputs[:1])), "")
            if node.operator in _VIEWS and source and node.outputs and source not in self._constant:
                self._root[node.outputs[0]] = source
            for name in self._roots(node.inputs):
                last[name] = index
        ends = len(graph.nodes)
        kept = [value.name for value in (*graph.inputs, *graph.outputs)]
        return last | dict.fromkeys(self._roots(kept), ends)

    def _add(self, terms: Terms, sign: int) -> None:
        for powers, each in terms.items():
            left = self.live.get(powers, 0) + sign * each
            if left:
                self.live[powers] = left
            else:
                self.live.pop(powers, None)

    def _note_peak(self) -> None:
        now = _reference(self.live)
        if now > self._most:
            self._most, self.best = now, dict(self.live)


def terms_of(value: Value) -> dict[tuple[int, int], int] | None:
    """Bytes of a value; ``None`` where its type or its rank is not said."""
    if value.shape is None or not value.kind:
        return None
    count, rows, columns = 1, 0, 0
    for place, dim in enumerate(value.shape):
        if isinstance(dim, int):
            count *= dim
        elif place == 0:
            rows = 1
        else:
            columns = min(columns + 1, _MOST_POWER)
    bits = BITS[value.kind] or 8 * _TEXT_BYTES
    num_bytes = (count * bits + 7) // 8
    return {(rows, columns): num_bytes} if num_bytes else {}


def _reference(terms: Terms) -> int:
    return bytes_of(terms, batch=_BATCH, length=DEFAULT_LENGTH)
