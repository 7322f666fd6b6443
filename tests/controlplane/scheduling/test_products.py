"""A serving config names the devices that are accepted."""

import pytest

from fleet.models import Partition
from kernel import scope
from scheduling import cycle
from scheduling.models import PastRequest
from scheduling.need import key_of
from scheduling.plan import plan
from scheduling.products import bound, matching
from scheduling.spreading import spread_out
from scheduling.whynot import Refused, Why
from serving.models import Replica
from tests.build.controlplane import client_for, make_tenant, owner_of
from tests.build.fleets import ask, gpu, need, node, snapshot, tenant
from tests.build.spreads import described, wide_version

FLEET = ["NVIDIA A10", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "L40S"]


@pytest.mark.parametrize(
    ("names", "want"),
    [
        (["H100"], FLEET[2:4]),
        (["h100 80gb"], FLEET[2:4]),
        (["A10"], FLEET[:1]),
        (["a100-sxm4"], FLEET[1:2]),
        (["A100 80GB"], []),
        (["H100 80GB HBM3 MIG"], FLEET[3:4]),
        (["L40S", "NVIDIA A10"], [FLEET[0], FLEET[4]]),
        (["NVIDIA"], FLEET[:4]),
        (["-", " "], []),
        (["B200"], []),
    ],
)
def test_the_words_of_a_name_stand_in_that_of_a_product(names, want):
    assert matching(names, FLEET) == frozenset(want)


def test_what_is_measured_of_other_products_is_no_need():
    generic = need("cuda", 40, besides=frozenset({"H100"}))
    needs = {"cuda": generic, key_of("cuda", "H100"): need("cuda", 30, products=frozenset({"H100"})), "cpu": need()}
    assert bound(needs, (), ["H100", "L40S"]) == needs
    only = bound(needs, ("L40S",), ["H100", "L40S", "Test CPU"])
    assert {key: each.products for key, each in only.items()} == {"cuda": {"L40S"}, "cpu": {"L40S"}}
    nowhere = bound(needs, ("B200",), ["H100", "L40S"])
    assert {each.products for each in nowhere.values()} == {frozenset({"B200"})}


def planned(*names, tenants=(), **facts):
    fleet = snapshot(
        [node(millicpus=64_000)], [gpu(1, gib=80, gpu_millis=1000), gpu(2, gib=48, product="L40S", gpu_millis=1000)],
        [], tenants,
    )  # fmt: skip
    wanted = ask(needs={"cuda": need("cuda", 20, 1, 500)}, products=names, **facts)
    (answer,) = plan(fleet, spread_out([wanted], fleet))
    return answer


def test_it_goes_where_it_is_named_and_nowhere_else():
    assert planned("L40S").chosen.product == "L40S"
    assert planned("H100").chosen.product == "H100"
    none = planned("B200")
    assert (none.chosen, none.reason) == (None, "WrongProduct")
    assert {each.refusal.message for each in none.candidates} == {
        "This needs one of B200; this is H100.", "This needs one of B200; this is L40S."
    }  # fmt: skip


def test_a_quota_counts_the_products_that_are_named():
    """20 GiB count a quarter of an H100, and more than two fifths of an L40S."""
    small = tenant(1, -1, -1, 0, limit_millis=300)
    facts = {"tenants": [small], "tenant_id": small.id}
    assert planned(**facts).chosen.product == "H100"
    refused = planned("L40S", **facts)
    assert (refused.reason, refused.over_quota) == (
        "QuotaExceeded", "The quota on GPUs is 0.3; 0 are held and 0.417 more are asked for."
    )  # fmt: skip
    assert planned("B200", **facts).chosen is None


def test_where_no_plan_can_be_on_what_is_named_others_say_that_it_is_not_for_them():
    plan_less = need("cuda", 20, products=frozenset({"L40S"}), unsupported=Refused(Why.TP_OVER_PCIE, "over PCIe"))
    fleet = snapshot([node()], [gpu(1, gib=80), gpu(2, gib=48, product="L40S")])
    (answer,) = plan(fleet, [ask(needs={"cuda": plan_less})])
    told = {each.device.product: (each.refusal.reason, each.refusal.message) for each in answer.candidates}
    assert told == {
        "H100": ("WrongProduct", "This needs one of L40S; this is H100."),
        "L40S": ("ParallelPlanImpossible", "over PCIe"),
    }  # fmt: skip


MIXED = "driver: {version: '550.54.15'}\ndevices:\n- {product: h100-sxm5-80gb}\n- {product: l40s-48gb}\n"


@pytest.mark.django_db
def test_from_rest_to_the_device_and_the_demand_that_is_learned(tmp_path):
    acme = make_tenant("acme")
    version = wide_version(acme)
    described("mixed", tmp_path, MIXED)
    client = client_for(owner_of(acme))
    body = {"model": version.model.name, "version": str(version.number), "config": {"products": "l40s"}}
    dry = client.post("/api/v1/tenants/acme/fit", body, format="json").json()
    assert dry["fits"]
    assert [(each["fits"], each["reason"]) for each in dry["devices"]] == [(True, ""), (False, "WrongProduct")]
    made = client.post("/api/v1/tenants/acme/deployments", body | {"endpoint": "chat"}, format="json")
    assert made.status_code == 201, made.content
    cycle.run()
    with scope.all_tenants():
        assert Replica.objects.get().state == "assigned", Replica.objects.get().message
        assert "L40S" in Partition.objects.get().device.product
    assert made.json()["revision"]["config"]["products"] == ["l40s"]
    assert any("L40S" in name for name in PastRequest.objects.get().products)
