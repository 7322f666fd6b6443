"""MIG layouts on the agent: what is planned, what is refused, what is put back. The driver is the simulated one."""

import asyncio
import random

import msgspec
import pytest
from agent_rig import eventually

from runtime.agent.devices import description
from runtime.agent.devices.port import GpuInstance, MigError
from runtime.agent.devices.simulated import SimulatedSource
from runtime.agent.mig import MigKeeper, carry_out, difference, satisfied
from runtime.base.clock import FakeClock
from runtime.wire.devices import DeviceKind, GpuProcess, MigLayout, MigLayoutPhase, MigPlacement


@pytest.fixture
def source(tmp_path):
    return SimulatedSource(description.locate("dgx-h100"), seed="s", state=tmp_path / "mig.json")


def place(profile, start):
    return MigPlacement(profile_id=profile, start=start)


def layout(source, *places, generation=1):
    uuid = source.scan()[0].uuid
    return MigLayout(device_uuid=uuid, generation=generation, placements=[place(*item) for item in places])


def cut(source):
    uuid = source.scan()[0].uuid
    return sorted((item.profile_id, item.start) for item in source.instances(uuid))


def test_only_the_difference_is_touched():
    existing = [GpuInstance(id=1, profile_id=9, start=4), GpuInstance(id=2, profile_id=19, start=0)]
    surplus, missing = difference(existing, [place(9, 4), place(14, 0)])
    assert [item.id for item in surplus] == [2]
    assert missing == [place(14, 0)]


def test_a_layout_survives_the_agent_and_its_instances_keep_their_uuids(source, tmp_path):
    carry_out(source, layout(source, (9, 4), (19, 0)))
    before = source.scan()[0].mig.instances
    again = SimulatedSource(description.locate("dgx-h100"), seed="s", state=tmp_path / "mig.json")
    assert again.scan()[0].mig.instances == before
    assert satisfied(layout(source, (19, 0), (9, 4)), again.scan()[0])
    assert not satisfied(layout(source, (9, 4)), again.scan()[0])


def test_random_layouts_are_applied_or_leave_everything_as_it_was():
    source = SimulatedSource(description.locate("dgx-h100"), seed="s")
    rows = description.load(description.locate("dgx-h100"), seed="s").devices[0].mig.profiles
    draw = random.Random(7)
    applied = refused = 0
    for _ in range(200):
        chosen = [draw.choice(rows) for _ in range(draw.randint(0, 5))]
        wanted = layout(source, *((row.id, draw.choice([*row.starts, 7])) for row in chosen))
        before = cut(source)
        said = ""
        try:
            carry_out(source, wanted)
        except MigError as exc:
            said = exc.message
        if said:
            refused += 1
            assert said.endswith("the former layout is there again")
            assert cut(source) == before
        else:
            applied += 1
            assert cut(source) == sorted((item.profile_id, item.start) for item in wanted.placements)
        taken = [
            slice_
            for item in source.scan()[0].mig.instances
            for slice_ in range(item.start, item.start + item.memory_slices)
        ]
        assert len(taken) == len(set(taken))
    assert applied > 20
    assert refused > 20


class Stubborn:
    """A driver that fails at one call, and again when the former layout is put back."""

    def __init__(self, inner, fail):
        self.inner = inner
        self.fail = fail

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def create(self, uuid, profile_id, start):
        if (profile_id, start) in self.fail:
            raise MigError("DriverError", "no luck")
        return self.inner.create(uuid, profile_id, start)


def test_a_roll_back_that_fails_says_so(source):
    carry_out(source, layout(source, (14, 0)))
    stubborn = Stubborn(source, {(9, 4), (14, 0)})
    with pytest.raises(MigError, match="could not be put back: no luck") as caught:
        carry_out(stubborn, layout(source, (9, 4)))
    assert caught.value.reason == "DriverError"


@pytest.fixture
def keeper(source):
    clock = FakeClock()
    keeper = MigKeeper({DeviceKind.SIMULATED: source}, clock=clock, wake=lambda: None)
    keeper.clock = clock
    return keeper


def devices(source, **facts):
    found = {device.uuid: device for device in source.scan()}
    first = next(iter(found))
    return found | {first: msgspec.structs.replace(found[first], **facts)}


def said(keeper):
    [report] = keeper.reports
    return report.phase, report.reason


async def applied(keeper, wanted, found, users=None):
    keeper.round([wanted], found, users or {})
    await eventually(lambda: not keeper.changing(wanted.device_uuid))
    return said(keeper)


async def test_an_idle_gpu_is_cut_and_the_report_follows_what_is_there(keeper, source):
    wanted = layout(source, (9, 0), (9, 4))
    assert keeper.round([wanted], devices(source), {})
    assert keeper.changing(wanted.device_uuid)
    assert said(keeper) == (MigLayoutPhase.APPLYING, "")
    await eventually(lambda: not keeper.changing(wanted.device_uuid))
    keeper.round([wanted], devices(source), {})
    assert said(keeper) == (MigLayoutPhase.APPLIED, "")
    assert not keeper.round([wanted], devices(source), {})
    uuid = wanted.device_uuid
    source.destroy(uuid, source.instances(uuid)[0].id)  # a reset has undone it
    await applied(keeper, wanted, devices(source))
    assert cut(source) == [(9, 0), (9, 4)]
    assert keeper.round([], devices(source), {})
    assert keeper.reports == []
    assert cut(source) == [(9, 0), (9, 4)]  # nobody's wish: left as it is


@pytest.mark.parametrize(
    ("facts", "users", "reason"),
    [
        ({"processes": [GpuProcess(pid=5)]}, False, "DeviceInUse"),
        ({"unreadable": ["processes: Unknown"]}, False, "DeviceUnreadable"),
        ({}, True, "DeviceInUse"),
        ({"problem": "lost"}, False, "DeviceSick"),
    ],
)
async def test_a_gpu_in_use_waits(keeper, source, facts, users, reason):
    wanted = layout(source, (9, 0))
    keeper.round([wanted], devices(source, **facts), {wanted.device_uuid: "r1"} if users else {})
    assert said(keeper) == (MigLayoutPhase.WAITING, reason)
    assert not keeper.changing(wanted.device_uuid)
    assert await applied(keeper, wanted, devices(source)) == (MigLayoutPhase.APPLYING, "")
    assert cut(source) == [(9, 0)]


async def test_a_refusal_is_tried_again_after_a_pause_or_for_a_new_generation(keeper, source):
    wanted = layout(source, (9, 1))
    assert await applied(keeper, wanted, devices(source)) == (MigLayoutPhase.FAILED, "IllegalPlacement")
    keeper.round([wanted], devices(source), {})
    assert not keeper.changing(wanted.device_uuid)
    keeper.clock.advance(61)
    keeper.round([wanted], devices(source), {})
    assert keeper.changing(wanted.device_uuid)
    await eventually(lambda: not keeper.changing(wanted.device_uuid))
    newer = layout(source, (9, 4), generation=2)
    await applied(keeper, newer, devices(source))
    assert cut(source) == [(9, 4)]


async def test_what_cannot_be_cut_is_refused(keeper, source):
    missing = MigLayout(device_uuid="GPU-gone", generation=1, placements=[place(9, 0)])
    keeper.round([missing], devices(source), {})
    assert said(keeper) == (MigLayoutPhase.FAILED, "DeviceMissing")
    keeper.round([layout(source, (9, 0))], devices(source, mig=None), {})
    assert said(keeper) == (MigLayoutPhase.FAILED, "MigUnsupported")
    await asyncio.sleep(0)
