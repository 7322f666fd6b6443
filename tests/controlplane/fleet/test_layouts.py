"""MIG geometry against the figures that NVIDIA's guide gives, and layouts from demand."""

import random
import uuid

import msgspec
import pytest
from django.db import IntegrityError, transaction

from fleet import layouts, partitions
from fleet.errors import CapacityGone
from fleet.layouts import FAMILIES, MIB, Candidate, Illegal, Want, check, choose, maximal, propose
from fleet.models import Device
from fleet.partitions import Share
from kernel.isolation import Isolation
from runtime.wire.devices import (
    DeviceKind,
    MigFacts,
    MigInstance,
    MigLayoutPhase,
    MigLayoutReport,
    MigProfile,
)
from scheduling import reading
from tests.build.controlplane import client_for, make_user
from tests.build.machines import FakeAgent

H100, A30 = FAMILIES["H100-80GB"], FAMILIES["A30"]
GIB = 1024**3


def names(layout):
    return [each.profile.name for each in layout]


@pytest.mark.parametrize("family", ["A100-40GB", "A100-80GB", "H100-80GB", "H200"])
def test_a_seven_slice_gpu_has_nineteen_maximal_layouts_and_78_with_double_memory(family):
    geometry = FAMILIES[family]
    assert len(maximal(geometry, double=False)) == 19
    every = maximal(geometry)
    assert len(every) == 78
    assert len({tuple(sorted(names(layout))) for layout in every}) == 38


def test_a_four_slice_gpu_has_five():
    found = {tuple(each.profile.compute for each in layout) for layout in maximal(A30, double=False)}
    assert found == {(1, 1, 1, 1), (2, 1, 1), (1, 1, 2), (2, 2), (4,)}
    assert len(maximal(A30)) == 5


def test_every_layout_is_legal_and_keeps_within_the_compute_slices():
    for geometry in FAMILIES.values():
        for layout in maximal(geometry):
            assert check(geometry, [(each.profile.id, each.start) for each in layout]) == layout


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ([(9, 2)], "3g.40gb cannot begin at slice 2; it can at 0, 4."),
        ([(5, 0), (19, 3)], "overlaps"),
        ([(77, 0)], "no profile 77"),
        ([(20, 0), (20, 1)], r"At most 1 of 1g.10gb\+me"),
        ([(0, 0), (19, 6)], "overlaps"),
    ],
)
def test_what_cannot_be(wanted, said):
    with pytest.raises(Illegal, match=said):
        check(H100, wanted)


@pytest.mark.parametrize(
    ("product", "family"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A30", "A30"),
        ("NVIDIA L40S", ""),
        ("Tesla V100-SXM2-16GB", ""),
    ],
)
def test_the_family_of_a_product(product, family):
    assert layouts.family_of(product) == family
    assert layouts.geometry_of(product, None) is None


def test_what_the_device_says_counts_more_than_the_family():
    row = {"id": 14, "name": "2g.20gb", "compute_slices": 2, "memory_slices": 2, "memory_bytes": 1, "starts": [0, 2]}
    told = layouts.geometry_of("NVIDIA H100 80GB HBM3", {"profiles": [row]})
    assert (told.slices, told.compute, [each.name for each in told.profiles]) == (4, 2, ["2g.20gb"])


def test_the_choice_serves_the_most_and_wastes_the_least():
    assert names(choose(H100, [Want(30 * GIB), Want(30 * GIB)]).layout) in (["4g.40gb", "3g.40gb"], ["3g.40gb"] * 2)
    seven = choose(H100, [Want(9 * GIB)] * 7)
    assert (seven.served, names(seven.layout)) == (7, ["1g.10gb"] * 7)
    assert choose(H100, [Want(100 * GIB)]) is None
    mixed = choose(H100, [Want(35 * GIB), Want(15 * GIB), Want(5 * GIB)])
    assert mixed.served == 3
    assert choose(H100, [Want(5 * GIB, compute=2)]).served == 1


def test_kept_instances_stay_where_they_are():
    kept = check(H100, [(9, 0)])
    choice = choose(H100, [Want(15 * GIB), Want(5 * GIB)], kept=kept)
    assert kept[0] in choice.layout
    assert choice.served == 2


def test_an_idle_gpu_is_cut_before_one_that_would_have_to_be_emptied():
    busy, idle = Candidate("busy", H100, holders=2), Candidate("idle", A30)
    found = propose([busy, idle], [Want(5 * GIB)] * 6)
    assert (found.key, found.served, found.must_move) == ("idle", 4, 0)
    assert propose([busy], [Want(5 * GIB)]).must_move == 2
    served_already = Candidate("cut", A30, layout=choose(A30, [Want(5 * GIB)] * 4).layout)
    assert propose([served_already], [Want(5 * GIB)] * 4) is None


def test_choices_are_deterministic_and_never_promise_what_does_not_fit():
    draw = random.Random(7)
    for _ in range(60):
        geometry = draw.choice(list(FAMILIES.values()))
        wants = [Want(draw.randrange(1, 90_000) * MIB, draw.randint(1, 4)) for _ in range(draw.randint(1, 9))]
        choice = choose(geometry, wants)
        assert choice == choose(geometry, wants)
        if choice is not None:
            assert check(geometry, [(each.profile.id, each.start) for each in choice.layout]) == choice.layout
            fitting = [want for want in wants if any(p.memory_bytes >= want.memory_bytes for p in geometry.profiles)]
            assert 1 <= choice.served <= min(len(fitting), len(choice.layout))


# --- with rows


@pytest.fixture
def cuttable(db):
    """An agent with one A30 that can be cut, and nothing on it."""
    agent = FakeAgent(kind=DeviceKind.CUDA)
    agent.devices = [a30()]
    agent.join()
    agent.report()
    return agent


def a30(*instances):
    mig = MigFacts(enabled=bool(instances), instances=list(instances), profiles=PROFILES)
    device = FakeAgent.device(DeviceKind.CUDA, 24 * GIB, mig=mig)
    return msgspec.structs.replace(device, uuid="GPU-a30", product="NVIDIA A30")


PROFILES = [
    MigProfile(
        id=each.id, name=each.name, compute_slices=each.compute, memory_slices=each.slices,
        memory_bytes=each.memory_bytes, starts=list(each.starts), max_instances=each.most, media=each.media,
    )
    for each in A30.profiles
]  # fmt: skip


def instance(start, profile=5, uuid=""):
    shape = A30.profile(profile)
    return MigInstance(
        uuid=uuid or f"MIG-{start}", gpu_instance_id=start, profile_id=profile, profile=shape.name, start=start,
        memory_slices=shape.slices, compute_slices=shape.compute, memory_bytes=shape.memory_bytes,
    )  # fmt: skip


def post(device, verb, **body):
    admin = client_for(make_user(admin=True))
    answer = admin.post(f"/api/v1/devices/{device.id}/{verb}", body, format="json")
    return answer.status_code, answer.json()


def gpu():
    return Device.objects.get(uuid="GPU-a30")


HALVES = [{"profile_id": 5, "start": 0}, {"profile_id": 5, "start": 2}]


def test_a_layout_goes_to_the_node_and_its_instances_come_back_as_devices(cuttable):
    status, body = post(gpu(), "layout", placements=HALVES)
    assert (status, body["layout"], body["layout_phase"]) == (200, [[5, 0], [5, 2]], "waiting")
    (told,) = cuttable.assignments().layouts
    assert [(each.profile_id, each.start) for each in told.placements] == [(5, 0), (5, 2)]
    cuttable.devices = [a30(instance(0), instance(2))]
    done = MigLayoutReport(device_uuid="GPU-a30", generation=told.generation, phase=MigLayoutPhase.APPLIED)
    cuttable.report(layouts=[done])
    assert gpu().layout_phase == "applied"
    found = (
        Device.objects.filter(parent=gpu()).order_by("slice_start").values_list("uuid", "slice_start", "slice_count")
    )
    assert list(found) == [("MIG-0", 0, 2), ("MIG-2", 2, 2)]
    views = reading.take().devices
    assert [(view.uuid, view.parent) for view in views] == [("MIG-0", "GPU-a30"), ("MIG-2", "GPU-a30")]


def test_an_instance_has_one_owner_and_its_gpu_none(cuttable):
    cuttable.devices = [a30(instance(0), instance(2))]
    cuttable.report()
    first = Device.objects.get(uuid="MIG-0")
    take(first)
    with pytest.raises(CapacityGone):
        take(first)
    with pytest.raises(CapacityGone, match="cut by MIG"):
        take(gpu())
    assert post(gpu(), "layout", placements=[])[1]["code"] == "layout_in_use"
    take(Device.objects.get(uuid="MIG-2"))


def test_the_database_refuses_instances_that_overlap(cuttable):
    cuttable.devices = [a30(instance(0), instance(2))]
    cuttable.report()
    with pytest.raises(IntegrityError), transaction.atomic():
        Device.objects.filter(uuid="MIG-2").update(slice_start=1)


def test_a_new_layout_replaces_the_instances_of_the_old_one(cuttable):
    cuttable.devices = [a30(instance(0), instance(2))]
    cuttable.report()
    cuttable.devices = [a30(instance(0, 0, "MIG-whole"))]
    cuttable.report()
    assert list(Device.objects.filter(parent=gpu()).values_list("uuid", flat=True)) == ["MIG-whole"]


def test_what_no_gpu_can_be_cut_into_is_refused_and_a_change_can_be_taken_back(cuttable):
    status, body = post(gpu(), "layout", placements=[{"profile_id": 5, "start": 1}])
    assert (status, body["code"]) == (400, "layout_impossible")
    assert post(gpu(), "layout/rollback")[1]["code"] == "layout_impossible"
    post(gpu(), "layout", placements=HALVES)
    assert post(gpu(), "layout/rollback")[1]["layout"] == []
    assert gpu().layout_generation == 2
    assert [each.placements for each in cuttable.assignments().layouts] == [[]]


def test_what_runs_in_an_instance_leaves_when_its_gpu_goes_bad(cuttable):
    cuttable.devices = [a30(instance(0))]
    cuttable.report()
    Device.objects.filter(uuid="GPU-a30").update(state="quarantined", message="bad")
    (view,) = reading.take().devices
    assert (view.state, view.message) == ("quarantined", "bad")


def take(device):
    with transaction.atomic():
        share = Share(memory_bytes=GIB, host_bytes=GIB, millicpus=500, isolation=Isolation.MIG)
        locked = partitions.lock_device(device.id)
        return partitions.take(uuid.uuid4(), [partitions.Rank(device=locked, share=share)])[0]


def test_profiles_without_placements_are_those_of_the_family():
    """Drivers tell an agent without privileges what there is and not where it may begin."""
    told = {"id": 19, "name": "1g.10gb", "compute_slices": 1, "memory_slices": 0, "memory_bytes": GIB, "starts": []}
    assert layouts.geometry_of("NVIDIA H100 80GB HBM3", {"profiles": [told]}) is H100
    assert layouts.geometry_of("NVIDIA H100 NVL", {"profiles": [told]}) is None


@pytest.mark.parametrize("odd", [{"starts": list(range(64))}, {"starts": [-1, 0]}, {"memory_slices": 4096}])
def test_a_geometry_that_no_gpu_has_is_not_planned_with(odd):
    row = {"id": 19, "name": "1g.10gb", "compute_slices": 1, "memory_slices": 1, "memory_bytes": GIB, "starts": [0]}
    assert layouts.geometry_of("NVIDIA H100 80GB HBM3", {"profiles": [row | odd]}) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("3g.40gb", "3g.39gb", True),  # drivers 535 and 545 call it so
        ("1g.24gb", "1g.23gb", True),  # one chip, two drivers
        ("1g.5gb", "1g.6gb", False),
        ("1g.10gb", "1g.12gb", False),
        ("2g.20gb", "1g.20gb", False),
        ("1g.10gb+me", "1g.10gb", False),
        ("", "", True),
        ("3g.40gb", "", False),
    ],
)
def test_a_shape_is_its_slices_and_its_memory_and_not_its_label(one, other, same):
    assert layouts.same_shape(one, other) is layouts.same_shape(other, one) is same
    assert Want(0, profile=one).takes(layouts.Profile(9, other, 3, 4, (0, 4))) is (same or not one)
