"""The outbox: in the transaction or not at all, at least once, with back-off."""

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from django.db import transaction

from kernel import clock
from ledger import outbox
from ledger.models import OutboxMessage

pytestmark = pytest.mark.django_db


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    calls: list[Any] = []

    def handle(payload: Mapping[str, Any]) -> None:
        calls.append(payload["n"])
        if payload.get("fail", 0) >= len(calls):
            raise ValueError("not yet")

    outbox.handles("tests.topic")(handle)
    yield calls
    del outbox._handlers["tests.topic"]


def test_a_message_is_handled_once_when_it_succeeds(seen: list[Any]) -> None:
    with transaction.atomic():
        outbox.emit("tests.topic", {"n": 1})
    assert (outbox.drain(), outbox.drain(), seen) == (1, 0, [1])


def test_a_rolled_back_change_leaves_no_message(seen: list[Any]) -> None:
    with pytest.raises(RuntimeError), transaction.atomic():
        outbox.emit("tests.topic", {"n": 1})
        raise RuntimeError
    assert (outbox.drain(), seen) == (0, [])


def test_a_failing_message_backs_off_and_is_never_dropped(seen: list[Any]) -> None:
    with transaction.atomic():
        outbox.emit("tests.topic", {"n": 1, "fail": 1})
    assert outbox.drain() == 0
    message = OutboxMessage.objects.get(topic="tests.topic")
    assert message.error == "ValueError: not yet"
    assert outbox.drain() == 0
    with clock.frozen(clock.now() + datetime.timedelta(seconds=3)):
        assert outbox.drain() == 1
    assert seen == [1, 1]


def test_what_is_done_is_forgotten_after_a_day_and_nothing_else(seen: list[Any]) -> None:
    with transaction.atomic():
        outbox.emit("tests.topic", {"n": 1})
    outbox.drain()
    with transaction.atomic():
        outbox.emit("tests.topic", {"n": 2, "fail": 99})
    outbox.drain()
    assert outbox.forget_done() == 0
    with clock.frozen(clock.now() + datetime.timedelta(days=2)):
        assert outbox.forget_done() == 1
    assert OutboxMessage.objects.get().payload["n"] == 2
