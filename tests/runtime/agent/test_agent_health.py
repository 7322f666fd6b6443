"""Health: what changed becomes an event, each has a number, and none is lost or told as new twice."""

import msgspec
import pytest

from runtime.agent.devices import health, sysfs
from runtime.agent.devices.health import HealthLog
from runtime.agent.devices.kernel_log import KernelLog, place
from runtime.agent.devices.port import Observed
from runtime.base.clock import FakeClock
from runtime.wire.devices import (
    OFF_THE_BUS,
    DeviceKind,
    DeviceReport,
    EccFacts,
    HealthCode,
    NvLinkFacts,
    RemapFacts,
)


def gpu(**facts):
    base = {"uuid": "GPU-1", "kind": DeviceKind.CUDA, "product": "H", "memory_bytes": 9, "ecc": EccFacts(enabled=True)}
    return DeviceReport(**(base | facts))


def happened(before, after):
    reports = [{item.uuid: item} if item else {} for item in (before, after)]
    return [(event.code.value, event.active, event.count) for event in health.changes(*reports)]


LINKS = NvLinkFacts(links=18, active=18)


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        (gpu(), gpu(), []),
        (None, gpu(), []),
        (None, gpu(problem="lost"), [("lost", True, 0)]),
        (gpu(), gpu(problem="lost"), [("lost", True, 0)]),
        (gpu(problem="lost"), gpu(problem="still lost"), []),
        (gpu(problem="the driver did not answer within 5 s"), gpu(problem=OFF_THE_BUS), [("lost", True, 0)]),
        (gpu(problem=OFF_THE_BUS), gpu(), [("returned", False, 0)]),
        (gpu(problem="the driver no longer lists this GPU"), gpu(), [("returned", False, 0)]),
        # What could not be read for a while was there: nobody has reset it.
        (gpu(problem="the driver did not answer within 5 s"), gpu(), [("lost", False, 0)]),
        (gpu(problem="memory cannot be read: Unknown Error"), gpu(), [("lost", False, 0)]),
        # Counters of an earlier time are no event; what is added is.
        (None, gpu(ecc=EccFacts(uncorrected_volatile=7)), []),
        (gpu(), gpu(ecc=EccFacts(uncorrected_volatile=2)), [("ecc_uncorrected", True, 2)]),
        (
            gpu(ecc=EccFacts(corrected_volatile=5)),
            gpu(ecc=EccFacts(corrected_volatile=9)),
            [("ecc_corrected", True, 4)],
        ),
        (gpu(ecc=EccFacts(corrected_volatile=5)), gpu(), []),  # the driver was loaded anew
        (gpu(), gpu(ecc=None), []),
        (None, gpu(remap=RemapFacts(pending=True)), [("remap_pending", True, 0)]),
        (gpu(remap=RemapFacts(pending=True)), gpu(remap=RemapFacts(pending=True)), []),
        (gpu(remap=RemapFacts(pending=True)), gpu(remap=RemapFacts()), [("remap_pending", False, 0)]),
        (gpu(), gpu(remap=RemapFacts(failed=True)), [("remap_failed", True, 0)]),
        (gpu(), gpu(throttle=["power_cap"]), []),  # a busy GPU at its power limit is healthy
        (gpu(), gpu(throttle=["hw_thermal"]), [("thermal", True, 0)]),
        (gpu(throttle=["hw_thermal"]), gpu(throttle=["sw_thermal"]), []),
        (gpu(throttle=["hw_thermal"]), gpu(), [("thermal", False, 0)]),
        (gpu(), gpu(throttle=["power_brake"]), [("power", True, 0)]),
        (gpu(), gpu(recovery_action="reset"), [("recovery_action", True, 0)]),
        (gpu(recovery_action="reset"), gpu(), [("recovery_action", False, 0)]),
        (gpu(nvlink=LINKS), gpu(nvlink=NvLinkFacts(links=18, active=16)), [("nvlink", True, 2)]),
        (gpu(nvlink=NvLinkFacts(links=18, active=16)), gpu(nvlink=LINKS), [("nvlink", False, 0)]),
        (None, gpu(nvlink=NvLinkFacts(links=18, active=0)), []),  # never cabled
        (gpu(nvlink=LINKS), gpu(nvlink=NvLinkFacts(links=18, active=18, fabric_healthy=False)), [("nvlink", True, 0)]),
        # What a dead device does not say is no further news.
        (gpu(nvlink=LINKS), gpu(problem="lost", nvlink=NvLinkFacts(links=18)), [("lost", True, 0)]),
    ],
)
def test_what_changed_is_an_event(before, after, want):
    assert happened(before, after) == want


def note(log, *xids):
    log.note([Observed(code=HealthCode.XID, device_uuid="GPU-1", xid=xid) for xid in xids])


def test_facts_are_numbered_over_restarts_and_go_once_they_were_received(tmp_path):
    clock = FakeClock()
    log = HealthLog(tmp_path / "health.json", clock)
    note(log, 13, 31)
    sent = log.waiting
    assert [(fact.sequence, fact.xid, fact.at) for fact in sent] == [(1, 13, clock.now()), (2, 31, clock.now())]
    note(log, 79)  # while the report is on its way
    log.received(sent)
    assert [fact.xid for fact in log.waiting] == [79]
    again = HealthLog(tmp_path / "health.json", clock)
    assert [(fact.sequence, fact.xid) for fact in again.waiting] == [(3, 79)]
    note(again, 48)
    assert again.waiting[-1].sequence == 4


def test_a_storm_of_events_is_bounded_and_says_so(tmp_path):
    log = HealthLog(tmp_path / "health.json", FakeClock())
    note(log, *range(health.MAX_FACTS + 10))
    assert len(log.waiting) == health.MAX_FACTS
    assert (log.waiting[0].xid, log.dropped) == (10, 10)
    assert HealthLog(tmp_path / "health.json", FakeClock()).dropped == 10


# The kernel's view


def port(root, name, number, **files):
    folder = root / "class" / "infiniband" / name
    (folder / "ports" / str(number) / "gid_attrs" / "ndevs").mkdir(parents=True)
    (folder / "device").mkdir(exist_ok=True)
    for key, text in files.items():
        target = folder / "device" / key if key == "numa_node" else folder / "ports" / str(number) / key
        target.write_text(text + "\n")
    return folder / "ports" / str(number)


def test_rails_and_numa_nodes_come_from_sysfs(tmp_path):
    port(tmp_path, "mlx5_0", 1, rate="400 Gb/sec (4X NDR)", state="4: ACTIVE", link_layer="InfiniBand", numa_node="0")
    roce = port(
        tmp_path, "mlx5_1", 1, rate="100 Gb/sec (4X EDR)", state="1: DOWN", link_layer="Ethernet", numa_node="-1"
    )
    (roce / "gid_attrs" / "ndevs" / "0").write_text("ens3np0\n")
    (tmp_path / "class" / "infiniband" / "broken" / "ports").mkdir(parents=True)
    first, second = sysfs.rails(tmp_path)
    assert (first.name, first.rate_gbps, first.active, first.link_layer) == ("mlx5_0", 400.0, True, "InfiniBand")
    assert (first.numa_node, second.numa_node) == (0, None)
    assert (second.active, second.interface) == (False, "ens3np0")
    for number in (0, 1):
        (tmp_path / "devices" / "system" / "node" / f"node{number}").mkdir(parents=True)
    assert sysfs.numa_nodes(tmp_path) == 2
    device = tmp_path / "bus" / "pci" / "devices" / "0000:1a:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    assert sysfs.numa_node("00000000:1A:00.0", tmp_path) == 1
    assert sysfs.numa_node("00000000:1B:00.0", tmp_path) is None
    assert sysfs.rails(tmp_path / "nothing") == []


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "kmsg"
    path.write_text("4,1,1,-;NVRM: Xid (PCI:0000:1a:00): 31, before anybody looked\n")
    places = {"0000:1a:00": "GPU-1", "0000:1b:00": "GPU-2"}
    log = KernelLog(uuid_at=lambda at: places.get(at, ""), heard=lambda uuid: uuid == "GPU-2", path=path)
    yield log, path
    log.close()


def test_the_kernels_log_tells_what_nvml_does_not(kernel):
    log, path = kernel
    assert log.take() == []
    with path.open("a") as file:
        file.write(
            "4,2,2,-;NVRM: Xid (PCI:0000:1A:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
        )
        file.write("4,3,3,-;NVRM: Xid (PCI:0000:1b:00): 48, pid=7\n")  # NVML tells of that one itself
        file.write("4,4,4,-;NVRM: Xid (PCI:0000:ff:00): 48, pid=7\n6,5,5,-;usb 1-1: new device\n")
    [event] = log.take()
    assert (event.code, event.device_uuid, event.xid) == (HealthCode.XID, "GPU-1", 79)
    assert log.take() == []


def test_a_kernel_log_that_may_not_be_read_is_no_fault(tmp_path):
    assert KernelLog(uuid_at=str, heard=bool, path=tmp_path / "none").take() == []


@pytest.mark.parametrize("bus", ["00000000:1A:00.0", "0000:1a:00", "0000:1a:00.0"])
def test_one_place_on_the_bus_has_many_spellings(bus):
    assert place(bus) == "0000:1a:00"


def test_facts_survive_the_wire():
    report = gpu(remap=RemapFacts(pending=True), throttle=["hw_thermal"])
    assert msgspec.json.decode(msgspec.json.encode(report), type=DeviceReport) == report
