"""The guarded mover, on a real row."""

import threading

import pytest
from django.db import connection, transaction

from fleet.models import Node
from fleet.states import NODE, NodeState
from kernel import clock, errors, ids
from kernel.machine import Transitions, move

pytestmark = pytest.mark.django_db(transaction=True)


def make_node(state: NodeState = NodeState.READY) -> Node:
    now = clock.now()
    return Node.objects.create(
        name="n", machine_id=str(ids.new_id()), state=state, state_changed_at=now, created_at=now
    )


def test_a_move_along_an_edge_writes_state_and_reason() -> None:
    node = make_node()
    with transaction.atomic():
        moved = move(node, NODE, NodeState.CORDONED, reason="Asked", message="An admin asked.")
    node.refresh_from_db()
    assert (moved.source, moved.target, node.state) == ("ready", "cordoned", "cordoned")


def test_a_move_without_an_edge_changes_nothing() -> None:
    node = make_node(NodeState.REMOVED)
    with transaction.atomic(), pytest.raises(errors.StaleTransition, match="is removed"):
        move(node, NODE, NodeState.READY)
    node.refresh_from_db()
    assert node.state == NodeState.REMOVED


def test_a_move_outside_a_transaction_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="needs a transaction"):
        move(make_node(), NODE, NodeState.CORDONED)


def test_of_two_movers_at_once_one_wins() -> None:
    node = make_node()
    outcomes: list[str] = []
    barrier = threading.Barrier(2)

    def run() -> None:
        mine = Node.objects.get(pk=node.pk)
        barrier.wait()
        try:
            with transaction.atomic():
                move(mine, NODE, NodeState.CORDONED, expect=[NodeState.READY])
            outcomes.append("moved")
        except errors.StaleTransition:
            outcomes.append("stale")
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["moved", "stale"]


def test_a_table_with_an_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match="no states"):
        Transitions("thing", {"a": ["b"]})


def test_a_move_leaves_the_state_that_the_database_holds() -> None:
    behind = make_node()
    Node.objects.filter(pk=behind.pk).update(state=NodeState.CORDONED)
    with transaction.atomic():
        moved = move(behind, NODE, NodeState.DRAINING)
    assert (moved.source, behind.state, Node.objects.get(pk=behind.pk).state) == ("cordoned", "draining", "draining")


def test_a_move_of_a_row_that_is_gone_or_behind_its_allowed_state_changes_nothing() -> None:
    behind, gone = make_node(), make_node()
    Node.objects.filter(pk=behind.pk).update(state=NodeState.REMOVED)
    Node.objects.filter(pk=gone.pk).delete()
    with transaction.atomic(), pytest.raises(errors.StaleTransition, match="is removed"):
        move(behind, NODE, NodeState.CORDONED)
    with transaction.atomic(), pytest.raises(errors.StaleTransition, match="is gone"):
        move(gone, NODE, NodeState.CORDONED)
    assert (behind.state, Node.objects.get().state) == ("ready", "removed")
