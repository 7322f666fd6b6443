"""Planned bytes beside measured ones."""

from types import SimpleNamespace
from typing import Any

from console.presenters import measured


def _deployment(*replicas: tuple[Any, Any]) -> Any:
    rows = [SimpleNamespace(explanation=explanation, ledger=ledger) for explanation, ledger in replicas]
    return SimpleNamespace(replicas=SimpleNamespace(all=lambda: rows))


def test_a_replica_that_has_reported_stands_beside_its_plan() -> None:
    need = {"weights_bytes": 1000, "kv_bytes_per_token": 60, "workspace_bytes": 300}
    ledger = {
        "weights_bytes": 990, "workspace_bytes": 250, "kv_total_bytes": 6400, "kv_blocks_total": 10,
        "kv_block_tokens": 10,
    }  # fmt: skip
    silent, waiting = ({"need": need}, None), ({}, ledger)
    rows = measured.compared([_deployment(silent), _deployment(silent, waiting, ({"need": need}, ledger))])
    assert [(row.weights, row.kv, row.workspace) for row in rows] == [((1000, 990), (60, 64), (300, 250))]
    many = measured.compared([_deployment(({"need": need}, {"weights_bytes": 1}))] * 20)
    assert len(many) == measured.MAX_ROWS
    assert many[0].kv == (60, 0)
