"""How GPUs reach each other: NVLink from the state of each link, PCIe from the common ancestor."""

import ctypes
from collections.abc import Mapping
from typing import Any, Final

from runtime.agent.devices.nvml_calls import Reader
from runtime.wire.devices import DevicePath, NvLinkFacts

MAX_LINKS: Final = 36  # NVML_NVLINK_MAX_LINKS
_LINK_COUNT: Final = 91  # NVML_FI_DEV_NVLINK_LINK_COUNT
_REMOTE_GPU, _REMOTE_SWITCH = 0, 2
_VERSIONS: Final = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
_ANCESTORS: Final = {0: "SAME", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_FABRIC_STATES: Final = {1: "not_started", 2: "in_progress", 3: "completed"}
_UNHEALTHY: Final = 2


class Links:
    """Reads the links of each scan; the PCIe ancestors of a set of devices are read once."""

    def __init__(self, binding: Any) -> None:
        self._nvml = binding
        self._ancestors: dict[tuple[str, str], str] = {}
        self._complete: frozenset[str] = frozenset()
        self._direct: dict[str, tuple[int, dict[str, int]]] = {}

    def facts(self, reader: Reader) -> NvLinkFacts | None:
        """NVLink of one device; ``None`` when it has none."""
        states = self._states(reader)
        if not states:
            return None
        version = reader.get("nvlink", "nvmlDeviceGetNvLinkVersion", 0)
        kinds = {reader.get("nvlink", "nvmlDeviceGetNvLinkRemoteDeviceType", link) for link in _active(states)}
        fabric = self._fabric(reader)
        state = _FABRIC_STATES.get(fabric.state, "") if fabric else ""
        return NvLinkFacts(
            links=len(states),
            active=len(_active(states)),
            version=_VERSIONS.get(version, "") if version else "",
            switched=_REMOTE_SWITCH in kinds,
            fabric_state=state,
            fabric_healthy=not (fabric and fabric.healthSummary == _UNHEALTHY),
            cluster_uuid=bytes(fabric.clusterUuid).hex() if fabric and state and any(fabric.clusterUuid) else "",
            clique_id=int(fabric.cliqueId) if fabric and state else 0,
        )

    def paths(self, handles: Mapping[str, Any], bus_ids: Mapping[str, str]) -> dict[str, list[DevicePath]]:
        """From every device to every other one of the node."""
        ancestors = self._pcie(handles)
        self._direct = direct = {uuid: self._ends(handle, self._direct.get(uuid)) for uuid, handle in handles.items()}
        uuid_at = {_bus(bus): uuid for uuid, bus in bus_ids.items()}
        found: dict[str, list[DevicePath]] = {}
        for one in handles:
            to_switch, to_bus = direct[one]
            peers = {uuid_at[bus]: count for bus, count in to_bus.items() if bus in uuid_at}
            found[one] = [
                DevicePath(
                    uuid=other,
                    pcie=ancestors.get((one, other), ""),
                    nvlinks=peers.get(other, 0) or min(to_switch, direct[other][0]),
                )
                for other in handles
                if other != one
            ]
        return found

    def _states(self, reader: Reader) -> list[bool]:
        """Active or not, per link. The end of the list is the first link that the device does not have."""
        count = reader.fields("nvlink", [_LINK_COUNT]).get(_LINK_COUNT)
        states: list[bool] = []
        for link in range(min(MAX_LINKS if count is None else int(count), MAX_LINKS)):
            state = reader.get("nvlink", "nvmlDeviceGetNvLinkState", link)
            if state is None and not (count and reader.failed("nvlink")):
                break
            states.append(bool(state))  # one that is there and cannot be read is not counted on
        return states

    def _ends(self, handle: Any, last: tuple[int, dict[str, int]] | None) -> tuple[int, dict[str, int]]:
        """Active links into switches, and per bus id of a GPU at the other end; the ``last`` while it does not tell."""
        reader = Reader(self._nvml, handle)
        to_switch, to_bus = 0, dict[str, int]()
        for link in _active(self._states(reader)):
            kind = reader.get("nvlink", "nvmlDeviceGetNvLinkRemoteDeviceType", link)
            if kind == _REMOTE_SWITCH:
                to_switch += 1
            elif kind == _REMOTE_GPU:
                remote = reader.get("nvlink", "nvmlDeviceGetNvLinkRemotePciInfo", link)
                if remote:
                    to_bus[_bus(remote.busId)] = to_bus.get(_bus(remote.busId), 0) + 1
        return last if last is not None and reader.unreadable else (to_switch, to_bus)

    def _pcie(self, handles: Mapping[str, Any]) -> dict[tuple[str, str], str]:
        """Read once for a set of devices, which hardly ever changes; again until every pair has told."""
        if self._complete == frozenset(handles):
            return self._ancestors
        read: dict[tuple[str, str], str] = {}
        unreadable: list[str] = []
        for one, handle in handles.items():
            reader = Reader(self._nvml, handle, unreadable=unreadable)
            for other, peer in handles.items():
                if other != one:
                    level = reader.get("topology", "nvmlDeviceGetTopologyCommonAncestor", peer)
                    read[one, other] = _ANCESTORS.get(level, "") or self._ancestors.get((one, other), "")
        self._ancestors = read
        self._complete = frozenset() if unreadable else frozenset(handles)
        return read

    def _fabric(self, reader: Reader) -> Any:
        kind = getattr(self._nvml, "c_nvmlGpuFabricInfo_v3_t", None)
        if kind is None:
            return None
        info = kind()
        info.version = self._nvml.nvmlGpuFabricInfo_v3
        answered = reader.get("fabric", "nvmlDeviceGetGpuFabricInfoV", ctypes.byref(info))
        return None if answered is None else info


def not_started(facts: NvLinkFacts | None) -> str:
    """Why nothing can run on a device whose links end in switches; "" when something can."""
    if facts is None or not facts.switched or facts.fabric_state not in ("not_started", "in_progress"):
        return ""
    state = facts.fabric_state.replace("_", " ")
    return f"the NVLink fabric is {state}: CUDA does not begin before it is completed (is the fabric manager running?)"


def _active(states: list[bool]) -> list[int]:
    return [link for link, state in enumerate(states) if state]


def _bus(bus_id: str) -> str:
    """Comparable form: ``00000000:1A:00.0`` and ``0000:1a:00.0`` are the same place."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"
