"""Devices: each kind alone, and all of them when one driver is sick."""

import json
import os
import threading
from types import SimpleNamespace

import pynvml
import pytest

from runtime.agent.devices import description
from runtime.agent.devices.cpu import CpuSource
from runtime.agent.devices.inventory import Inventory
from runtime.agent.devices.nvml import NvmlSource
from runtime.agent.devices.simulated import SimulatedSource
from runtime.agent.errors import SettingsError
from runtime.agent.settings import GIB
from runtime.wire.devices import DeviceKind, HostReport

UUIDS = ["GPU-11111111-0000", "GPU-22222222-0000", "GPU-33333333-0000"]


class Driver:
    """A second implementation of the part of NVML that is used: raises the binding's own errors per (call, index)."""

    def __init__(self, uuids=UUIDS):
        self.uuids = list(uuids)
        self.faults = {}

    def __getattr__(self, name):
        return getattr(pynvml, name)  # constants and error classes

    def _check(self, call, index=None):
        code = self.faults.get((call, index)) or self.faults.get((call, None))
        if code is not None:
            raise pynvml.NVMLError(code)

    def nvmlInit(self):
        self._check("init")

    def nvmlSystemGetDriverVersion(self):
        return "580.95.05"

    def nvmlDeviceGetCount(self):
        self._check("count")
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index):
        self._check("handle", index)
        return SimpleNamespace(index=index)

    def nvmlDeviceGetUUID(self, handle):
        return self.uuids[handle.index]

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        self._check("memory", handle.index)
        if version is None:
            return SimpleNamespace(total=80 * GIB, used=3 * GIB)
        self._check("memory_v2", handle.index)
        return SimpleNamespace(total=80 * GIB, reserved=GIB, used=2 * GIB, free=77 * GIB)

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return (9, 0)

    def nvmlDeviceGetPciInfo(self, handle):
        return SimpleNamespace(busId=f"00000000:{handle.index:02X}:00.0")

    def nvmlDeviceGetUtilizationRates(self, handle):
        self._check("utilization", handle.index)
        return SimpleNamespace(gpu=37, memory=5)

    def nvmlDeviceGetPowerUsage(self, handle):
        return 123_400

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 700_000

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 41

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"


def test_gpus_are_described_by_uuid():
    device = NvmlSource(Driver()).scan()[1]
    assert device.uuid == UUIDS[1]
    assert (device.kind, device.product, device.compute_capability) == (DeviceKind.CUDA, "NVIDIA H200", "9.0")
    assert (device.memory_bytes, device.memory_used_bytes) == (79 * GIB, 2 * GIB)  # the driver's reserve is nobody's
    assert (device.utilization, device.temperature_c) == (0.37, 41.0)
    assert (device.power_w, device.power_limit_w) == (123.4, 700.0)
    assert (device.pci_bus_id, device.driver_version, device.problem) == ("00000000:01:00.0", "580.95.05", "")


def test_one_lost_gpu_does_not_hide_the_others():
    driver = Driver()
    driver.faults[("handle", 1)] = pynvml.NVML_ERROR_GPU_IS_LOST
    assert [device.uuid for device in NvmlSource(driver).scan()] == [UUIDS[0], UUIDS[2]]


def test_a_gpu_that_was_there_stays_listed_with_its_problem_and_recovers():
    driver = Driver()
    source = NvmlSource(driver)
    source.scan()
    driver.faults[("handle", 1)] = pynvml.NVML_ERROR_GPU_IS_LOST
    lost = {device.uuid: device.problem for device in source.scan()}
    assert set(lost) == set(UUIDS)
    assert "lost" in lost[UUIDS[1]].lower()
    assert lost[UUIDS[0]] == ""
    driver.faults.clear()
    assert not any(device.problem for device in source.scan())


def test_gpus_keep_their_identity_when_indices_move():
    driver = Driver()
    source = NvmlSource(driver)
    source.scan()
    driver.uuids = [UUIDS[2], UUIDS[0]]
    devices = {device.uuid: device for device in source.scan()}
    assert devices[UUIDS[2]].pci_bus_id == "00000000:00:00.0"
    assert devices[UUIDS[1]].problem == "the driver no longer lists this GPU"


def test_a_driver_that_stops_answering_keeps_every_gpu_listed_as_sick():
    driver = Driver()
    source = NvmlSource(driver)
    source.scan()
    driver.faults[("count", None)] = pynvml.NVML_ERROR_UNKNOWN
    assert all("driver does not answer" in device.problem for device in source.scan())


@pytest.mark.parametrize(
    ("call", "code", "want"),
    [
        ("utilization", pynvml.NVML_ERROR_NOT_SUPPORTED, {"utilization": None, "memory_used_bytes": 2 * GIB}),
        ("memory_v2", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, {"memory_bytes": 80 * GIB, "memory_used_bytes": 3 * GIB}),
        ("memory", pynvml.NVML_ERROR_UNKNOWN, {"memory_bytes": 0}),
    ],
)
def test_what_a_device_does_not_tell_is_left_out(call, code, want):
    driver = Driver()
    driver.faults[(call, 0)] = code
    device = NvmlSource(driver).scan()[0]
    assert {name: getattr(device, name) for name in want} == want
    assert bool(device.problem) == (call == "memory")


def test_without_a_driver_there_are_no_gpus():
    driver = Driver()
    driver.faults[("init", None)] = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    assert NvmlSource(driver).open() is False


def test_the_cpu_offers_its_budget():
    [device] = CpuSource("CPU-1", 3 * GIB, used=lambda: 5, load=lambda: 0.25).scan()
    assert (device.uuid, device.kind, device.memory_bytes) == ("CPU-1", DeviceKind.CPU, 3 * GIB)
    assert (device.memory_used_bytes, device.utilization) == (5, 0.25)
    assert device.product


def machine(*devices):
    return {"driver": {"version": "1"}, "devices": list(devices)}


def card(uuid, **facts):
    return {"uuid": uuid, "name": "NVIDIA H100", "memory_mib": 1024} | facts


def simulated(tmp_path, content, *, seed="s"):
    path = tmp_path / "machine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return SimulatedSource(path, seed=seed, changes=tmp_path / "changes.json", state=tmp_path / "mig.json")


def change(tmp_path, **facts):
    """Write the file of changes; its time moves on even where the clock is coarse."""
    path = tmp_path / "changes.json"
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(json.dumps({"devices": {key.replace("_", "-"): value for key, value in facts.items()}}))
    os.utime(path, ns=(before + 1_000_000_000, before + 1_000_000_000))


def test_simulated_devices_are_labelled_and_made_sick_by_a_file(tmp_path):
    source = simulated(tmp_path, machine(card("GPU-1", reserved_mib=24), card("GPU-2")))
    [one, two] = source.scan()
    assert (one.kind, one.product, one.memory_bytes) == (DeviceKind.SIMULATED, "NVIDIA H100", 1000 * 1024**2)
    assert source.take() == []
    change(tmp_path, GPU_1={"lost": True, "xids": [79]})
    [one, two] = source.scan()
    assert (one.problem, two.problem) == ("the GPU has fallen off the bus", "")
    assert [(event.code, event.device_uuid, event.xid) for event in source.take()] == [("xid", "GPU-1", 79)]
    assert source.take() == []
    change(tmp_path, GPU_1={"xids": [79, 48]})
    assert [event.xid for event in source.take()] == [48]
    (tmp_path / "changes.json").write_text("half a")
    assert [device.uuid for device in source.scan()] == ["GPU-1", "GPU-2"]  # somebody is still writing it


def test_simulated_uuids_are_a_nodes_own_and_stay(tmp_path):
    def uuids(seed):
        return [device.uuid for device in SimulatedSource(description.locate("dgx-h100"), seed=seed).scan()]

    assert uuids("a") == uuids("a")
    assert len(set(uuids("a") + uuids("b"))) == 16


def test_bridges_join_the_devices_that_they_name(tmp_path):
    nvlink = {"links": 4, "version": "3.0"}
    cards = [card(name, nvlink=nvlink) for name in "abcde"]
    found = simulated(tmp_path, machine(*cards) | {"bridges": [[0, 2], [1, 3]]}).scan()
    joined = {one.uuid: [path.uuid for path in one.paths if path.nvlinks] for one in found}
    assert joined == {"a": ["c"], "b": ["d"], "c": ["a"], "d": ["b"], "e": []}
    assert [one.nvlink.active for one in found] == [4, 4, 4, 4, 0]


@pytest.mark.parametrize(
    "content",
    [
        "devices: nonsense",
        machine(),
        machine({"uuid": "a", "name": "b"}),
        machine(card("a", colour="red")),
        machine(card("a"), card("a")),
        machine({"product": "h9000"}),
        {"devices": [card("a")]},
        machine(7),
        machine(card("a"), card("b")) | {"bridges": [[0, 2]]},
        machine(card("a"), card("b")) | {"bridges": [[0]]},
        machine(card("a"), card("b"), card("c")) | {"bridges": [[0, 1], [1, 2]]},
    ],
)
def test_a_mistake_in_the_description_is_found_at_start(tmp_path, content):
    with pytest.raises(SettingsError, match="MILLPOND_SIMULATE"):
        simulated(tmp_path, content)


def test_a_simulated_machine_shows_its_own_host(tmp_path):
    source = SimulatedSource(description.locate("dgx-h100"), seed="s")
    host = source.host(HostReport(hostname="h", os="o", cpus=2, memory_bytes=3, memory_available_bytes=1))
    assert (host.cpus, host.memory_bytes, host.numa_nodes, host.hostname) == (224, 2048 * GIB, 2, "h")
    assert [rail.numa_node for rail in host.rails] == [0, 0, 0, 0, 1, 1, 1, 1]


class Broken:
    name = "broken"

    def __init__(self):
        self.error = None

    def scan(self):
        if self.error:
            raise self.error
        return CpuSource("BROKEN-1", 1).scan()


class Hanging:
    name = "hanging"

    def __init__(self):
        self.go_on = threading.Event()
        self.hang = False
        self.scans = 0

    def scan(self):
        self.scans += 1
        if self.hang:
            self.go_on.wait(30)
        return CpuSource("HANGING-1", 1).scan()


async def test_a_source_that_breaks_or_hangs_keeps_its_devices_and_the_others():
    broken, hanging = Broken(), Hanging()
    inventory = Inventory([broken, hanging, CpuSource("CPU-1", 1)], scan_seconds=0.2)
    assert [device.problem for device in await inventory.scan()] == ["", "", ""]
    broken.error = RuntimeError("the file is gone")
    hanging.hang = True
    for _ in range(2):
        problems = {device.uuid: device.problem for device in await inventory.scan()}
        assert problems["CPU-1"] == ""
        assert "the file is gone" in problems["BROKEN-1"]
        assert "did not answer" in problems["HANGING-1"]
    assert hanging.scans == 2  # no second call into a driver that still hangs
    broken.error, hanging.hang = None, False
    hanging.go_on.set()
    assert await inventory.close()
    assert [device.problem for device in await inventory.scan()] == ["", "", ""]
