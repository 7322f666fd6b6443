"""Places for all stages of one replica (pure), on devices of one product: all or nothing."""

import dataclasses
import uuid

from scheduling import rank
from scheduling.board import Board, Spot
from scheduling.need import Need
from scheduling.snapshot import DeviceView, NodeView

View = tuple[NodeView, list[DeviceView]]
Views = dict[int, View]


def products(board: Board, need: Need) -> list[str]:
    """Stages are equally fast: all of one product. The most plentiful first."""
    counts: dict[str, int] = {}
    for each in board.bins:
        for device, usable in zip(each.devices, each.usable, strict=True):
            if usable and device.kind == need.kind and (not need.products or device.product in need.products):
                counts[device.product] = counts.get(device.product, 0) + 1
    return sorted(counts, key=lambda product: (-counts[product], product))


def of_product(need: Need, product: str) -> Need:
    """One stage of ``need``, on devices of ``product``."""
    return dataclasses.replace(need, products=frozenset({product}), stages=1)


def closed(stage: Need) -> Need:
    """What books a stage while others are looked for: a stage shares no device with another."""
    return dataclasses.replace(stage, whole=True)


def look(board: Board, need: Need, wish: rank.Wish, product: str) -> list[Spot]:
    """Spots for all stages of ``need`` on devices of one product, none used twice; none where one stage finds none.

    Nothing stays booked. Stages are alike, and so are the devices that can take one: whichever are taken first, as many
    stages find places.
    """
    stage = of_product(need, product)
    spots: list[Spot] = []
    before: Views = {}
    for _number in range(need.stages):
        spot = rank.best(board, stage, wish)
        if spot is None:
            break
        if spot.bin not in before:
            before |= board.views([spot.bin])
        board.take(spot, closed(stage))
        spots.append(spot)
    board.restore(before)
    return spots if len(spots) == need.stages else []


def place(board: Board, need: Need, wish: rank.Wish, product: str) -> list[Spot]:
    """As :func:`look`, and book what is found: the deployment has a replica more on these nodes."""
    spots = look(board, need, wish, product)
    for spot in spots:
        board.take(spot, of_product(need, product))
    _count(board, wish.deployment_id, spots)
    return spots


def _count(board: Board, deployment: uuid.UUID, spots: list[Spot]) -> None:
    counts = board.replicas.setdefault(deployment, {})
    for at in {spot.bin for spot in spots}:
        counts[at] = counts.get(at, 0) + 1
