"""Versions that are one graph: kept and estimated like any, told where they would fit, and not deployed."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from catalog import services
from catalog.errors import NoEngine
from catalog.estimate import MIB
from catalog.models import ModelVersion
from kernel import scope
from runtime.wire.devices import DeviceKind
from tests.build import catalog
from tests.build.controlplane import actor_for, client_for, make_tenant, owner_of
from tests.build.machines import GIB, FakeAgent
from tests.build.onnx import model, node, perceptron, tensor, value

pytestmark = pytest.mark.django_db


@pytest.fixture
def made() -> Any:
    """A tenant with a graph of 192 bytes of weights, whose values take 64 MiB a row."""
    tenant = make_tenant("acme")
    wide = value("h", ["batch", 16 * MIB])
    graph = perceptron(
        [tensor("w1", [4, 8]), tensor("w2", [8, 2])],
        nodes=[node("Gemm", ["x", "w1"], ["h"]), node("Gemm", ["h", "w2"], ["y"])],
        values=[wide],
    )
    version = catalog.checked_version(tenant, {"m.onnx": model(graph)}, model=catalog.make_model(tenant, "sight"))
    return tenant, version, client_for(owner_of(tenant))


def test_it_is_described_and_estimated(made: Any) -> None:
    tenant, version, client = made
    body = client.get(f"/api/v1/tenants/{tenant.slug}/models/sight/versions/{version.number}").json()
    assert (body["state"], body["format"], body["architecture"], body["max_model_len"]) == ("ready", "onnx", "Graph", 0)
    assert body["metadata"]["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["batch", 4]}]
    estimate = body["estimate"]
    assert (estimate["weights_bytes"], estimate["kv_bytes_per_token"], estimate["kv_floor_bytes"]) == (192, 0, 0)
    assert estimate["workspace_bytes"] == 2 * 32 * (64 * MIB + 16 + 8) + 64 * MIB


def test_no_engine_runs_it(made: Any) -> None:
    tenant, version, client = made
    body = {"endpoint": "sight", "model": "sight", "version": version.number, "config": {}, "replicas": 1}
    answer = client.post(f"/api/v1/tenants/{tenant.slug}/deployments", body, format="json")
    assert (answer.status_code, answer.json()["code"]) == (409, "no_engine")
    assert answer.json()["detail"].startswith("No engine here runs ONNX models.")
    with scope.all_tenants(), pytest.raises(NoEngine):
        services.make_revision(actor=actor_for(owner_of(tenant)), tenant=tenant, version=version, config={})


@pytest.mark.parametrize(("rows", "fits"), [(32, True), (1024, False)])
def test_the_dry_run_tells_where_it_would_fit(made: Any, rows: int, fits: bool) -> None:
    """On 24 GiB: 32 rows take about 4 GiB, 1024 about 128."""
    tenant, version, client = made
    agent = FakeAgent("gpu", kind=DeviceKind.CUDA, memory_bytes=24 * GIB, cpus=16, host_bytes=64 * GIB)
    agent.join()
    agent.report()
    body = {"model": "sight", "version": version.number, "config": {"max_num_seqs": rows}, "replicas": 1}
    answer = client.post(f"/api/v1/tenants/{tenant.slug}/fit", body, format="json").json()
    assert (answer["fits"], answer["reason"]) == (False, "NoEngine")
    (device,) = answer["devices"]
    assert device["fits"] is fits
    assert fits or "lower max_num_seqs" in device["would_fit_if"]


def test_a_decoder_without_context_is_refused_by_the_database(made: Any) -> None:
    _tenant, version, _client = made
    with scope.all_tenants(), pytest.raises(IntegrityError), transaction.atomic():
        ModelVersion.objects.filter(id=version.id).update(format="gguf")
