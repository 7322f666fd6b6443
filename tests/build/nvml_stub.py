"""A compiled stand-in for ``libnvidia-ml.so.1``, driven by the same YAML as simulated nodes, under the real binding.

``build`` compiles it with the structs of the installed binding, so that both sides agree on every field.
"""

import ctypes
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

import msgspec
import pynvml
import yaml

from runtime.agent.devices import description
from runtime.agent.devices.description import Gpu, Machine

ROOT: Final = Path(__file__).resolve().parents[2]
MIB: Final = 1024 * 1024
_STRUCTS: Final = (
    "c_nvmlMemory_t", "c_nvmlMemory_v2_t", "nvmlPciInfo_t", "c_nvmlUtilization_t", "c_nvmlTemperature_v1_t",
    "c_nvmlProcessInfo_v2_t", "c_nvmlFieldValue_t", "c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpmSupport_t",
    "c_nvmlGpmMetricsGet_t", "c_nvmlGpuInstanceProfileInfo_v2_t", "c_nvmlGpuInstancePlacement_t",
    "c_nvmlGpuInstanceInfo_t", "c_nvmlComputeInstanceProfileInfo_v2_t", "c_nvmlDeviceAttributes", "c_nvmlEventData_t",
)  # fmt: skip
_C: Final = {
    ctypes.c_int: "int", ctypes.c_uint: "unsigned", ctypes.c_ulonglong: "unsigned long long",
    ctypes.c_longlong: "long long", ctypes.c_ulong: "unsigned long", ctypes.c_long: "long", ctypes.c_double: "double",
    ctypes.c_ushort: "unsigned short", ctypes.c_ubyte: "unsigned char", ctypes.c_char: "char",
    ctypes.c_char_p: "char *",
}  # fmt: skip
# The result is the last line: the programs log to the same place.
_ANSWER: Final = """
import msgspec, sys
sys.stdout.flush()
sys.stdout.buffer.write(b"\\n" + msgspec.json.encode(result))
"""
_ARCHITECTURES: Final = {"ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10}
_VERSIONS: Final = {"3.0": 4, "4.0": 6, "5.0": 7}
_THROTTLE: Final = {"power_cap": 0x4, "hw_slowdown": 0x8, "sw_thermal": 0x20, "hw_thermal": 0x40, "power_brake": 0x80}
#: A program for :meth:`FakeDriver.run`: what an agent finds.
SCAN = """
from runtime.agent.devices.nvml import NvmlSource
source = NvmlSource()
opened = source.open()
result = source.scan()
"""


def header() -> str:
    """The binding's structs as C."""
    done: dict[Any, str] = {}
    out = []

    def name_of(kind: Any) -> str:
        if issubclass(kind, ctypes._Pointer):
            return "void *"
        if issubclass(kind, (ctypes.Structure, ctypes.Union)):
            if kind not in done:
                done[kind] = kind.__name__
                body = "".join(f"    {member(field[1], field[0])};\n" for field in kind._fields_)
                word = "union" if issubclass(kind, ctypes.Union) else "struct"
                out.append(f"typedef {word} {{\n{body}}} {kind.__name__};\n")
            return done[kind]
        return _C[kind]

    def member(kind: Any, name: str) -> str:
        if issubclass(kind, ctypes.Array):
            return f"{name_of(kind._type_)} {name}[{kind._length_}]"
        return f"{name_of(kind)} {name}"

    for item in _STRUCTS:
        name_of(getattr(pynvml, item))
    return "".join(out)


def build(folder: Path) -> Path:
    """Compile the library into ``folder`` (about a second); returns the folder for LD_LIBRARY_PATH."""
    (folder / "nvml_types.h").write_text(header())
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O0", "-w", "-I", str(folder), "-o", str(folder / "libnvidia-ml.so.1"),
         str(Path(__file__).with_name("nvml_stub.c"))],
        check=True,
        timeout=60,
    )  # fmt: skip
    return folder


class FakeDriver:
    """One machine under the stub: its description can be changed while programs use it."""

    def __init__(self, library: Path, folder: Path, machine: str | dict[str, Any]) -> None:
        self.library = library
        self.file = folder / "nvml"
        path = folder / "machine.yaml"
        if isinstance(machine, str):
            path = description.locate(machine)
        else:
            path.write_text(yaml.safe_dump(machine))
        self.machine = description.load(path, seed="stub")
        self.more: dict[int, dict[str, object]] = {}
        self.write()

    @property
    def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.machine.devices]

    @property
    def env(self) -> dict[str, str]:
        """What a program needs to find this driver instead of a real one."""
        return {"LD_LIBRARY_PATH": str(self.library), "FAKE_NVML": str(self.file)}

    def change(self, position: int, **facts: Any) -> None:
        """Change facts of one device."""
        devices = list(self.machine.devices)
        devices[position] = msgspec.structs.replace(devices[position], **facts)
        self.machine = msgspec.structs.replace(self.machine, devices=devices)
        self.write()

    def say(self, position: int, **lines: object) -> None:
        """Set raw keys of the stub; position -1 is the machine. Dots are written as two underscores."""
        self.more.setdefault(position, {}).update({key.replace("__", "."): value for key, value in lines.items()})
        self.write()

    def event(self, position: int, kind: int, data: int, instance: int = -1) -> None:
        """An event of a device, as the driver would deliver it."""
        with self.file.with_name("nvml.events").open("a") as file:
            file.write(f"{position} {kind} {data} {instance}\n")

    def write(self) -> None:
        """Write the stub's file anew."""
        lines = machine_lines(self.machine)
        for position, more in self.more.items():
            lines = [line for line in lines if not any(line.startswith(f"{position} {key} ") for key in more)]
            lines += [f"{position} {key} {value}" for key, value in more.items()]
        target = self.file.with_name("nvml.new")
        target.write_text("\n".join(lines) + "\n")
        target.replace(self.file)

    def run(self, code: str, *, timeout: float = 60) -> Any:
        """Run ``code`` in a process of its own on this driver; its ``result`` (JSON) is returned."""
        program = textwrap.dedent(code) + _ANSWER
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}", **self.env},
            capture_output=True,
            timeout=timeout,
        )
        assert done.returncode == 0, done.stderr.decode()[-3000:]
        return msgspec.json.decode(done.stdout.splitlines()[-1])


def machine_lines(machine: Machine) -> list[str]:
    """The description as the stub reads it."""
    driver = machine.driver
    lines = [
        f"-1 driver {driver.version}", f"-1 nvml {driver.nvml}", f"-1 cuda {driver.cuda}",
        f"-1 count {len(machine.devices)}", f"-1 switched {int(machine.switched)}",
    ]  # fmt: skip
    for position, gpu in enumerate(machine.devices):
        lines += [f"{position} {key} {value}" for key, value in facts(machine, gpu).items() if value is not None]
    return lines


def facts(machine: Machine, gpu: Gpu) -> dict[str, object]:
    """One device as keys of the stub."""
    found: dict[str, object] = {
        "uuid": gpu.uuid, "name": gpu.name, "serial": gpu.serial, "bus": gpu.pci_bus_id, "pci_id": gpu.pci_device_id,
        "architecture": _ARCHITECTURES.get(gpu.architecture), "capability": gpu.compute_capability,
        "memory": gpu.memory_mib * MIB, "reserved": gpu.reserved_mib * MIB, "used": gpu.used_mib * MIB,
        "utilization": gpu.utilization, "temperature": _whole(gpu.temperature_c), "lost": int(gpu.lost),
        "power_mw": int((gpu.idle_power_w if gpu.power_w is None else gpu.power_w) * 1000),
        "power_limit_mw": int(gpu.power_limit_w * 1000), "numa": gpu.numa_node or 0, "gpm": int(gpu.gpm),
        "bandwidth": gpu.hbm_bandwidth, "throttle": sum(_THROTTLE[name] for name in gpu.throttle) or 1,
        "field.82": _whole(gpu.memory_temperature_c), "field.230": gpu.recovery_action,
    }  # fmt: skip
    if gpu.clocks:
        found |= msgspec.structs.asdict(gpu.clocks)
    if gpu.pcie:
        found |= {
            "pcie_generation": gpu.pcie.generation, "pcie_width": gpu.pcie.width, "pcie_replays": gpu.pcie.replays,
            "pcie_tx_kib": gpu.pcie.tx_kib_per_second, "pcie_rx_kib": gpu.pcie.rx_kib_per_second,
        }  # fmt: skip
    if gpu.nvlink:
        found |= {
            "links": gpu.nvlink.links, "links_active": gpu.nvlink.links - gpu.nvlink.down,
            "link_version": _VERSIONS[gpu.nvlink.version], "field.91": gpu.nvlink.links,
            "fabric": 3 if gpu.architecture == "hopper" and machine.switched else None,
        }  # fmt: skip
    if not machine.switched and (joined := machine.joined(gpu)):
        found["link_peer"] = machine.devices.index(joined[0])  # pairs: all links of a device end in one other
    if gpu.ecc:
        ecc = gpu.ecc
        found |= {"ecc": 1, "ecc.0.0": ecc.corrected, "ecc.1.0": ecc.uncorrected}
        found |= {"ecc.0.1": ecc.corrected_aggregate, "ecc.1.1": ecc.uncorrected_aggregate}
    if gpu.remap:
        rows = gpu.remap
        found["remap"] = f"{rows.corrected} {rows.uncorrected} {int(rows.pending)} {int(rows.failed)}"
    if gpu.mig:
        found["mig"] = 1
        for number, row in enumerate(gpu.mig.profiles):
            starts = ",".join(map(str, row.starts))
            found[f"profile.{number}"] = (
                f"{row.id} {row.enum} {row.name} {row.compute} {row.memory} {row.mib} {row.sm} {row.max} {starts}"
            )
            found[f"profile.{row.id}.bytes"] = row.mib * MIB
    for number, process in enumerate(gpu.processes):
        found[f"process.{number}"] = f"{process.pid} {-1 if process.mib is None else process.mib * MIB}"
    return found | {f"error.{function}": code for function, code in gpu.errors.items()}


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
