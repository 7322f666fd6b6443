"""What engines measured takes the place of the estimate, by version, serving config and product."""

import dataclasses
import math

import msgspec
import pytest

from catalog import configs
from kernel import scope
from runtime.wire.memory import MemoryLedger
from runtime.wire.reports import Phase
from scheduling import cycle
from scheduling.fit import fit
from scheduling.measured import MARGIN, refine
from scheduling.need import needs_of
from serving import services
from serving.models import Peak, Replica
from serving.peaks import Measured
from tests.build import catalog
from tests.build.controlplane import actor_for, make_tenant, owner_of
from tests.build.machines import GIB, FakeAgent

pytestmark = pytest.mark.django_db
MIB = 1024**2


@pytest.fixture
def tenant():
    return make_tenant("acme")


@pytest.fixture
def version(tenant):
    return catalog.checked_version(tenant)


def ask(tenant, version, **config):
    return fit(
        actor=actor_for(owner_of(tenant)), tenant=tenant, model=version.model.name, version=version.number,
        config=config,
    )  # fmt: skip


def measure(agent, ledger):
    """The replica of ``agent`` reports ``ledger``."""
    agent.obey()
    (key,) = agent.replicas
    agent.change(key, Phase.READY, ledger=ledger)
    agent.report()
    with scope.all_tenants():  # as if the numbers before were written long ago
        Replica.objects.update(observed_at=None)
    agent.report()


def test_peaks_are_kept_and_planned_with(tenant, version):
    agent = FakeAgent()
    agent.join()
    agent.report()
    before = ask(tenant, version)
    assert before.need["measured"] is False
    services.deploy_version(
        actor=actor_for(owner_of(tenant)), tenant=tenant, endpoint_name="chat", model=version.model.name,
        version=version.number, config={}, replicas=1,
    )  # fmt: skip
    cycle.run()
    weights = before.need["weights_bytes"]
    ledger = MemoryLedger(
        total_bytes=GIB, weights_bytes=weights, workspace_bytes=50 * MIB, context_bytes=200 * MIB,
        kv_total_bytes=GIB // 4,
    )  # fmt: skip
    measure(agent, ledger)
    with scope.all_tenants():
        (peak,) = Peak.objects.all()
    assert (peak.product, peak.workspace_bytes, peak.context_bytes) == ("Test cpu", 50 * MIB, 200 * MIB)
    after = ask(tenant, version)
    assert after.need["measured"] is True
    assert after.need["context_bytes"] == math.ceil(MARGIN * 200 * MIB)
    assert after.need["kv_floor_bytes"] == before.need["kv_floor_bytes"]
    assert after.need["total_bytes"] < before.need["total_bytes"]
    assert ask(tenant, version, max_num_seqs=8).need["measured"] is False  # another config is another profile
    larger = msgspec.structs.replace(ledger, workspace_bytes=80 * MIB, context_bytes=150 * MIB)
    measure(agent, larger)
    with scope.all_tenants():
        (peak,) = Peak.objects.all()
    assert (peak.workspace_bytes, peak.context_bytes) == (80 * MIB, 200 * MIB)  # the largest of each


def test_what_cannot_be_true_is_not_believed(tenant, version):
    settings = configs.DEFAULTS
    needs = needs_of(version, settings)
    sized = needs["cuda"].estimate
    good = Measured("cuda", "H100", sized.weights_bytes, 10 * MIB, 300 * MIB)
    refined = refine(needs, [good], settings.watermark_critical)
    assert refined["cuda/H100"].measured
    assert refined["cuda"].besides == {"H100"}
    assert refined["cuda/H100"].products == {"H100"}
    assert refined["cpu"] == needs["cpu"]
    for wrong in (
        dataclasses.replace(good, context_bytes=0),
        dataclasses.replace(good, weights_bytes=sized.weights_bytes // 3),
        dataclasses.replace(good, kind="other"),
    ):
        assert refine(needs, [wrong], settings.watermark_critical) == needs
    limited = {"cuda": dataclasses.replace(needs["cuda"], memory_bytes=20 * GIB)}
    assert refine(limited, [good], settings.watermark_critical) == limited
