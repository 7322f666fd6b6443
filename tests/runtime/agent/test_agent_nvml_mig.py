"""Cutting GPUs by MIG, through the real binding and the compiled stand-in for the driver."""

import shutil

import pytest

from tests.build.nvml_stub import SCAN

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
MIB = 1024**2
NO_PERMISSION, UNKNOWN = 4, 999
LAYOUT = """
import pynvml
from runtime.agent.devices.nvml import NvmlSource
from runtime.agent.devices.nvml_mig import NvmlMig
from runtime.agent.devices.port import MigError
from runtime.agent.mig import carry_out
from runtime.wire.devices import MigLayout, MigPlacement
source, cutter = NvmlSource(), NvmlMig(pynvml)
source.open()
uuid = source.scan()[0].uuid
def cut(*places):
    placements = [MigPlacement(profile_id=profile, start=start) for profile, start in places]
    layout = MigLayout(device_uuid=uuid, generation=1, placements=placements)
    try:
        carry_out(cutter, layout)
    except MigError as exc:
        return [exc.reason, exc.message]
    return []
def seen():
    mig = source.scan()[0].mig
    return [mig.enabled, sorted((i.profile, i.start, i.memory_slices, i.uuid[:4]) for i in mig.instances)]
"""


def test_a_gpu_is_cut_and_cut_again_and_found_so_by_the_next_agent(driver):
    fake = driver("dgx-a100-80gb")
    result = fake.run(LAYOUT + "result = [cut((9, 4), (14, 0), (19, 2), (19, 3)), seen(), cut((9, 4), (5, 0)), seen()]")
    assert result[0] == result[2] == []
    assert result[1] == [True, [
        ["1g.10gb", 2, 1, "MIG-"], ["1g.10gb", 3, 1, "MIG-"], ["2g.20gb", 0, 2, "MIG-"], ["3g.40gb", 4, 4, "MIG-"],
    ]]  # fmt: skip
    assert result[3] == [True, [["3g.40gb", 4, 4, "MIG-"], ["4g.40gb", 0, 4, "MIG-"]]]
    [device, *_] = fake.run(SCAN)  # another process: the driver keeps what was made
    assert [item["profile"] for item in device["mig"]["instances"]] == ["3g.40gb", "4g.40gb"]
    assert device["mig"]["instances"][0]["memory_bytes"] == 40192 * MIB
    assert device["utilization"] is None  # a GPU that is cut tells none
    assert device["remap"] is None
    off = fake.run(LAYOUT + "result = [cut(), seen()]")
    assert off == [[], [False, []]]


def test_what_cannot_be_made_leaves_the_former_layout(driver):
    fake = driver("dgx-h100")
    assert fake.run(LAYOUT + "result = cut((14, 0), (14, 2))") == []
    fake.say(0, refuse__9__4=23)
    reason, message, now = fake.run(LAYOUT + "result = cut((14, 0), (19, 2), (9, 4)) + [seen()]")
    assert reason == "NoRoom"
    assert message.endswith("the former layout is there again")
    assert now == [True, [["2g.20gb", 0, 2, "MIG-"], ["2g.20gb", 2, 2, "MIG-"]]]
    # An instance without a compute instance is of no use: it does not stay.
    fake.say(0, refuse__9__4=0, error__nvmlGpuInstanceCreateComputeInstance=UNKNOWN)
    reason, message, now = fake.run(LAYOUT + "result = cut((14, 0), (14, 2), (9, 4)) + [seen()]")
    assert reason == "DriverError"
    assert now == [True, [["2g.20gb", 0, 2, "MIG-"], ["2g.20gb", 2, 2, "MIG-"]]]


@pytest.mark.parametrize(
    ("raw", "place", "reason"),
    [
        ({"mig_activation": 19}, (14, 0), "DeviceInUse"),
        ({"mig_activation": 16}, (14, 0), "ResetRequired"),
        ({}, (14, 1), "IllegalPlacement"),
        ({"error__nvmlDeviceSetMigMode": NO_PERMISSION}, (14, 0), "NotPermitted"),
    ],
)
def test_a_change_that_the_driver_refuses_is_told_in_its_kind(driver, raw, place, reason):
    fake = driver("dgx-h100")
    fake.say(0, **raw)
    got, message, now = fake.run(LAYOUT + f"result = cut({place}) + [seen()]")
    assert (got, now) == (reason, [False, []])
    assert "former layout is there again" in message


def test_a_card_without_mig_is_not_cut(driver):
    reason, _ = driver("mixed-pcie").run(LAYOUT + "result = cut((14, 0))")
    assert reason == "MigUnsupported"


def test_profile_numbers_are_the_devices_own(driver):
    """14 is two slices of seven on an H100, and one of four on an A30."""
    big, small = driver("dgx-h100").run(SCAN)[0], None
    small = driver("a30").run(SCAN)[0]
    names = [next(row for row in item["mig"]["profiles"] if row["id"] == 14) for item in (big, small)]
    assert [(row["name"], row["starts"]) for row in names] == [("2g.20gb", [0, 2, 4]), ("1g.6gb", [0, 1, 2, 3])]


def test_nothing_is_cut_away_because_it_could_not_be_seen(driver):
    """A roll-back removes what was not there before: what the driver does not show might have been."""
    fake = driver("dgx-h100")
    assert fake.run(LAYOUT + "result = cut((14, 0), (14, 2))") == []
    fake.say(0, error__nvmlDeviceGetGpuInstances=UNKNOWN)
    reason, _message = fake.run(LAYOUT + "result = cut((9, 0))")
    assert reason == "DriverError"
    fake.say(0, error__nvmlDeviceGetGpuInstances=0)
    assert fake.run(LAYOUT + "result = seen()") == [True, [["2g.20gb", 0, 2, "MIG-"], ["2g.20gb", 2, 2, "MIG-"]]]


def test_each_instance_of_a_cut_gpu_tells_of_its_own_bandwidth(driver):
    fake = driver("dgx-h100")
    fake.change(0, hbm_bandwidth=62)
    code = (
        LAYOUT
        + """
import time
made = cut((9, 4), (14, 0))
source.scan()
time.sleep(0.11)
device = source.scan()[0]
result = [made, device.hbm_bandwidth_used, [each.hbm_bandwidth_used for each in device.mig.instances]]
"""
    )
    assert fake.run(code) == [[], None, [0.62, 0.62]]


def test_a_switch_that_waits_for_a_reset_is_taken_back(driver):
    """Else the next reset would cut a GPU that nobody wants cut any more."""
    fake = driver("dgx-a100-80gb")
    fake.say(0, mig_activation=16)
    code = (
        LAYOUT
        + """
from runtime.agent.mig import satisfied
whole = MigLayout(device_uuid=uuid, generation=2)
result = [cut((14, 0))[0]]
result += [source.scan()[0].mig.pending, satisfied(whole, source.scan()[0])]
result += [cut(), source.scan()[0].mig.pending, satisfied(whole, source.scan()[0])]
"""
    )
    assert fake.run(code) == ["ResetRequired", True, False, [], False, True]
