"""Discovery through the real binding, against a compiled library that stands in for the driver's."""

import shutil

import pytest

from runtime.agent.devices import description
from runtime.wire.devices import OFF_THE_BUS
from tests.build.nvml_stub import SCAN

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
GIB = 1024**3
MIB = 1024**2
NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, LOST, MISMATCH, UNKNOWN = 3, 4, 9, 15, 18, 999


@pytest.mark.parametrize("name", description.shipped())
def test_every_shipped_machine_is_found_whole_and_as_its_simulation_says(driver, name, tmp_path):
    from runtime.agent.devices.simulated import SimulatedSource

    fake = driver(name)
    seen = {device["uuid"]: device for device in fake.run(SCAN)}
    told = {device.uuid: device for device in SimulatedSource(description.locate(name), seed="stub").scan()}
    assert set(seen) == set(fake.uuids) == set(told)
    import msgspec

    for uuid, device in told.items():
        want = msgspec.to_builtins(device)
        # What only one look cannot tell, what is of the machine that the test runs on, and the label.
        for name_ in ("kind", "numa_node", "hbm_bandwidth_used"):
            want.pop(name_), seen[uuid].pop(name_)
        for item in (want, seen[uuid]):
            item["mig"] and item["mig"]["profiles"].sort(key=lambda row: row["id"])
            if item["nvlink"]:
                item["nvlink"] |= {"cluster_uuid": "", "clique_id": 0}
        assert seen[uuid] == want


def test_facts_of_a_hopper_machine(driver):
    fake = driver("dgx-h100")
    fake.change(0, used_mib=1024, utilization=37, hbm_bandwidth=62, throttle=["hw_thermal", "power_cap"])
    fake.change(0, processes=[description.Process(pid=1, mib=700), description.Process(pid=999_999, mib=None)])
    first = fake.run("""
        import time
        from runtime.agent.devices.nvml import NvmlSource
        source = NvmlSource()
        source.open()
        source.scan()
        time.sleep(0.11)
        result = source.scan()
    """)[0]
    assert (first["product"], first["architecture"]) == ("NVIDIA H100 80GB HBM3", "hopper")
    assert first["memory_bytes"] == (81559 - 551) * MIB
    assert first["memory_used_bytes"] == GIB  # the driver's reserve is nobody's
    assert (first["utilization"], first["hbm_bandwidth_used"]) == (0.37, 0.62)
    assert first["throttle"] == ["power_cap", "hw_thermal"]
    assert [(one["pid"], one["memory_bytes"]) for one in first["processes"]] == [(1, 700 * MIB), (999_999, None)]
    assert first["nvlink"]["fabric_state"] == "completed"
    assert {path["nvlinks"] for path in first["paths"]} == {18}
    assert sorted(path["pcie"] for path in first["paths"]) == ["NODE"] * 3 + ["SYS"] * 4
    assert first["unreadable"] == []


def test_cards_joined_by_a_bridge_reach_each_other_and_nobody_else(driver):
    card = {"product": "a30-24gb", "numa_node": 0, "nvlink": {"links": 4, "version": "3.0", "down": 1}}
    fake = driver({
        "driver": {"version": "535", "nvml": "12"},
        "devices": [card | {"pci_bus_id": f"00000000:{bus}:00.0"} for bus in ("21", "41", "61")],
        "bridges": [[0, 1]],
    })  # fmt: skip
    fake.say(2, links=0)
    one, two, three = fake.run(SCAN)
    assert {path["uuid"]: path["nvlinks"] for path in one["paths"]} == {two["uuid"]: 3, three["uuid"]: 0}
    assert (one["nvlink"]["links"], one["nvlink"]["active"], one["nvlink"]["switched"]) == (4, 3, False)
    assert three["nvlink"] is None


@pytest.mark.parametrize(
    ("function", "code", "field", "want", "unreadable"),
    [
        ("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED, "utilization", None, []),
        ("nvmlDeviceGetPowerUsage", UNKNOWN, "power_w", None, ["power: Unknown"]),
        ("nvmlDeviceGetTotalEccErrors", NO_PERMISSION, "product", "NVIDIA L40S", ["ecc: NoPermission"]),
        ("nvmlDeviceGetEccMode", NOT_SUPPORTED, "ecc", None, []),
        ("nvmlDeviceGetMemoryInfo_v2", 25, "memory_bytes", 46068 * MIB, []),  # an older driver: the reserve is unknown
        ("nvmlDeviceGetComputeRunningProcesses_v3", LOST, "processes", [], ["processes: GpuIsLost"]),
        ("nvmlDeviceGetFieldValues", NOT_SUPPORTED, "memory_temperature_c", None, []),
        ("nvmlDeviceGetMigMode", UNKNOWN, "mig", None, ["mig: Unknown"]),
    ],
)
def test_one_call_that_fails_costs_its_field_alone(driver, function, code, field, want, unreadable):
    fake = driver("mixed-pcie")
    fake.change(0, errors={function: code})
    first, *others = fake.run(SCAN)
    assert first[field] == want
    assert first["unreadable"] == unreadable
    assert first["temperature_c"] == 33.0
    assert first["problem"] == ""
    assert len(others) == 5
    assert all(not device["problem"] and not device["unreadable"] for device in others)


CHANGING = """
import os
from runtime.agent.devices.health import changes
from runtime.agent.devices.nvml import NvmlSource
from runtime.agent.devices.nvml_mig import NvmlMig
import pynvml
path = os.environ["FAKE_NVML"]
plain = open(path, "rb").read()
def change(more=""):
    with open(path + ".new", "wb") as file:
        file.write(plain + (more if isinstance(more, bytes) else more.encode()))
    os.replace(path + ".new", path)
source = NvmlSource()
source.open()
def scan():
    return {device.uuid: device for device in source.scan()}
"""
STANDING = [
    "nvmlDeviceGetName", "nvmlDeviceGetSerial", "nvmlDeviceGetArchitecture", "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances", "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetEccMode",
    "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetFieldValues", "nvmlDeviceGetTopologyCommonAncestor",
]  # fmt: skip


def test_what_cannot_be_read_for_a_while_still_stands(driver):
    """A pending reset, a hot GPU, its links, its errors and its instances are not over because a call fails."""
    fake = driver("dgx-h100")
    fake.say(-1, count=2)
    fake.change(
        0, recovery_action=1, throttle=["hw_thermal"], ecc=description.Ecc(uncorrected=5),
        remap=description.Remap(pending=True), gpm=False,
    )  # fmt: skip
    told = fake.run(
        CHANGING
        + f"""
import msgspec
first = scan()
uuid = next(iter(first))
cutter = NvmlMig(pynvml)
cutter.enable(uuid, True)
cutter.create(uuid, 9, 4)
before = scan()
drift = {{"unreadable": [], "memory_temperature_c": None, "pcie": None}}
result = [[(event.code, event.active) for event in changes(first, before)]]
for function in {STANDING}:
    change(f"0 error.{{function}} 999\\n")
    failing = scan()
    change()
    same = msgspec.structs.replace(failing[uuid], **drift) == msgspec.structs.replace(before[uuid], **drift)
    events = [(event.code, event.active) for event in (*changes(before, failing), *changes(failing, scan()))]
    result.append([function, same, events, bool(failing[uuid].unreadable)])
"""
    )
    # The path to a peer is no fact of the device alone: it is kept, and nothing is said to be unreadable.
    assert told == [[], *([name, True, [], "CommonAncestor" not in name] for name in STANDING)]


def test_what_failed_at_first_is_asked_again(driver):
    """Placements, topology and GPM are read once: not when they could not be."""
    fake = driver("dgx-h100")
    first, again = fake.run(
        CHANGING
        + """
import time
change("".join(f"0 error.{name} 999\\n" for name in (
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlGpmQueryDeviceSupport")) + "0 bandwidth 40\\n")
first = source.scan()[0]
change("0 bandwidth 40\\n")
source.scan()
time.sleep(0.11)
again = source.scan()[0]
result = [
    [bool(d.mig.profiles[0].starts), d.paths[0].pcie, d.hbm_bandwidth_used, d.unreadable] for d in (first, again)
]
"""
    )
    assert first == [False, "", None, ["mig: Unknown", "gpm: Unknown"]]
    assert again == [True, "NODE", 0.0, []]


def test_a_name_that_is_no_text_hides_no_gpu(driver):
    fake = driver("a30")
    name, unreadable, found = fake.run(
        CHANGING
        + """
plain = plain.replace(b"1 name NVIDIA A30", b"1 name NVIDIA \\xff\\xfe")
change()
devices = source.scan()
result = [devices[1].product, devices[1].unreadable, len(devices)]
"""
    )
    assert (name, unreadable, found) == ("NVIDIA GPU", ["product: NoText"], 4)


def test_a_device_that_wants_a_reset_first_says_so(driver):
    fake = driver("a30")
    fake.change(1, errors={"nvmlDeviceGetPowerUsage": 16})
    found = fake.run(SCAN)
    assert [device["recovery_action"] for device in found] == ["", "reset", "", ""]


def test_a_sick_gpu_hides_no_other_and_comes_back(driver):
    fake = driver("a30")
    code = """
        import os, subprocess, sys
        from runtime.agent.devices.nvml import NvmlSource
        path = os.environ["FAKE_NVML"]
        def change(text):
            plain = open(path).read()
            open(path + ".new", "w").write(text(plain))
            os.replace(path + ".new", path)
        source = NvmlSource()
        source.open()
        result = [source.scan()]
        change(lambda plain: plain.replace("1 lost 0", "1 lost 1"))
        result.append(source.scan())
        change(lambda plain: plain.replace("1 lost 1", "1 lost 0") + "-1 index.0 3\\n-1 index.3 0\\n")
        result.append(source.scan())
        result = [[(d.uuid, d.pci_bus_id, d.problem) for d in scan] for scan in result]
    """
    healthy, sick, again = fake.run(code)
    assert not any(problem for _, _, problem in healthy)
    problems = {uuid: problem for uuid, _, problem in sick}
    assert set(problems) == set(fake.uuids)
    assert (
        problems[fake.uuids[1]] == OFF_THE_BUS
    )  # asked by its place: the look-up by number tells of no GPU in particular
    assert [problems[fake.uuids[index]] for index in (0, 2, 3)] == ["", "", ""]
    assert sorted(again) == sorted(healthy)  # indices have moved: identity is the UUID's


def test_a_gpu_that_cannot_be_opened_from_the_start_is_told(driver):
    fake = driver("a30")
    fake.change(2, lost=True)
    found, events = fake.run("""
        from runtime.agent.devices.nvml import NvmlSource
        source = NvmlSource()
        source.open()
        found, events = source.scan(), source.take()
        source.scan()
        result = [[d.uuid for d in found], [(e.code, e.message) for e in events + source.take()]]
    """)
    assert found == [fake.uuids[index] for index in (0, 1, 3)]
    [(code, message)] = events
    assert code == "lost"
    assert "index 2" in message


@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, MISMATCH])
def test_a_driver_that_does_not_start_is_tried_again_and_told_once(driver, code):
    fake = driver("a30")
    fake.say(-1, error__nvmlInitWithFlags=code)
    opened, first, events, later = fake.run("""
        import os
        from runtime.agent.devices.nvml import NvmlSource
        now = [0.0]
        source = NvmlSource(monotonic=lambda: now[0])
        opened, first = source.open(), source.scan()
        events = [event.code for event in source.take()]
        path = os.environ["FAKE_NVML"]
        plain = open(path).read()
        open(path, "w").write("\\n".join(line for line in plain.splitlines() if "nvmlInit" not in line) + "\\n")
        now[0] = 60.0
        result = [opened, len(first), events, len(source.scan())]
    """)
    assert (opened, first, later) == (True, 0, 4)
    assert events == ["driver"]


def test_without_a_driver_library_there_is_nothing_to_watch(library, tmp_path):
    import subprocess
    import sys

    from tests.build.nvml_stub import ROOT

    program = "from runtime.agent.devices.nvml import NvmlSource; raise SystemExit(NvmlSource().open())"
    assert subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT)}, timeout=60).returncode == 0


def test_nothing_is_placed_where_the_fabric_has_not_come_up(driver):
    fake = driver("dgx-h100")
    fake.say(-1, count=2)
    fake.say(0, fabric=2)
    waiting, well = fake.run(SCAN)
    assert waiting["problem"].startswith("the NVLink fabric is in progress: CUDA does not begin before")
    assert well["problem"] == ""
