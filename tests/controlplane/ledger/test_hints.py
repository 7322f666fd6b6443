"""Hints over the real layer: sent by a thread that keeps its connection, in order, and lost without harm."""

import asyncio
import logging

from channels.layers import get_channel_layer

from ledger import hints

TOPIC = "tenant:hints-of-this-test"


async def heard_of(count):
    """What a listener hears of so many pushes from another thread."""
    layer = get_channel_layer()
    channel = await layer.new_channel()
    await layer.group_add(hints.group_of(TOPIC), channel)
    try:
        loop = asyncio.get_running_loop()
        for number in range(count):
            await loop.run_in_executor(None, hints.push, TOPIC, {"number": number})
        return [(await asyncio.wait_for(layer.receive(channel), 10))["data"]["number"] for _ in range(count)]
    finally:
        await layer.group_discard(hints.group_of(TOPIC), channel)


def test_hints_arrive_in_order_in_one_loop_after_another():
    assert asyncio.run(heard_of(3)) == [0, 1, 2]
    assert asyncio.run(heard_of(2)) == [0, 1], "the sender outlives the loops of those who listen"


def test_a_layer_that_is_down_loses_the_hint_and_says_so(monkeypatch, caplog):
    async def away(_group, _message):
        raise ConnectionError("nobody listens")

    monkeypatch.setattr(get_channel_layer(), "group_send", away)
    with caplog.at_level(logging.WARNING):
        hints.push(TOPIC, {"number": 1})
    assert [record.message for record in caplog.records] == ["hint lost"]
