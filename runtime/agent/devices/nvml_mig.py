"""MIG through NVML: what a GPU can be cut into, how it is cut now, and cutting it.

The driver's enumeration of profiles is not the profile id that its other calls take, MIG device indices have holes,
and handles go stale (and are reused) after every change: nothing is kept here but the profiles of a device.
"""

from collections.abc import Iterator
from ctypes import byref, c_uint
from typing import Any, Final

from runtime.agent.devices.nvml_calls import Reader
from runtime.agent.devices.port import GpuInstance, MigError
from runtime.wire.devices import MigFacts, MigInstance, MigProfile

MIB: Final = 1024 * 1024
UNKNOWN_START: Final = -1  # the driver shows placements to privileged users alone
_CI_SHARED: Final = 0  # NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
_MEDIA_ENUMS: Final = frozenset({0x7, 0x8, 0xF, 0x10})


class MigReader:
    """Reads MIG facts; profiles are read once per device and driver."""

    def __init__(self, binding: Any) -> None:
        self._nvml = binding
        self._profiles: dict[tuple[str, str], list[MigProfile]] = {}

    def read(self, reader: Reader, uuid: str, driver: str) -> MigFacts | None:
        """Facts of one GPU; ``None`` when it cannot do MIG."""
        mode = reader.get("mig", "nvmlDeviceGetMigMode")
        if mode is None:
            return None
        known = self._profiles.get((uuid, driver))
        if known is None:
            known = list(profiles(reader))
            if not reader.failed("mig"):
                self._profiles[uuid, driver] = known
        enabled = bool(mode[0])
        return MigFacts(
            enabled=enabled,
            pending=bool(mode[1]),
            instances=self._instances(reader, known) if enabled else [],
            profiles=known,
        )

    def handles(self, reader: Reader) -> list[Any]:
        """MIG device handles of a GPU, holes skipped."""
        count = reader.get("mig", "nvmlDeviceGetMaxMigDeviceCount") or 0
        found = (reader.get("mig", "nvmlDeviceGetMigDeviceHandleByIndex", index) for index in range(count))
        return [item for item in found if item is not None]

    def _instances(self, reader: Reader, known: list[MigProfile]) -> list[MigInstance]:
        by_id = {profile.id: profile for profile in known}
        placed = {item.id: item for item in gpu_instances(reader, known)}
        found: list[MigInstance] = []
        for device in self.handles(reader):
            one = self._instance(reader.of(device), placed, by_id)
            if one is not None:
                found.append(one)
        bare = set(placed) - {item.gpu_instance_id for item in found}
        for number in sorted(bare):  # it holds slices, and nothing can run on it
            found.append(_bare(placed[number], by_id))
        return found

    def _instance(
        self, reader: Reader, placed: dict[int, GpuInstance], by_id: dict[int, MigProfile]
    ) -> MigInstance | None:
        uuid = reader.get("mig", "nvmlDeviceGetUUID")
        number = reader.get("mig", "nvmlDeviceGetGpuInstanceId")
        if not uuid or number is None:
            return None
        where = placed.get(number)
        profile = by_id.get(where.profile_id) if where else None
        attributes = reader.get("mig", "nvmlDeviceGetAttributes")
        memory = reader.get("mig", "nvmlDeviceGetMemoryInfo")
        size = memory.total if memory else (attributes.memorySizeMB * MIB if attributes else 0)
        return MigInstance(
            uuid=uuid,
            gpu_instance_id=number,
            compute_instance_id=reader.get("mig", "nvmlDeviceGetComputeInstanceId") or 0,
            profile_id=where.profile_id if where else UNKNOWN_START,
            profile=profile.name if profile else "",
            start=where.start if where else UNKNOWN_START,
            memory_slices=profile.memory_slices if profile else 0,
            compute_slices=attributes.gpuInstanceSliceCount if attributes else 0,
            memory_bytes=size,
            memory_used_bytes=memory.used if memory else 0,
        )


def _bare(item: GpuInstance, by_id: dict[int, MigProfile]) -> MigInstance:
    profile = by_id.get(item.profile_id)
    return MigInstance(
        uuid="",
        gpu_instance_id=item.id,
        profile_id=item.profile_id,
        profile=profile.name if profile else "",
        start=item.start,
        memory_slices=profile.memory_slices if profile else 0,
        compute_slices=profile.compute_slices if profile else 0,
        memory_bytes=profile.memory_bytes if profile else 0,
    )


def profiles(reader: Reader) -> Iterator[MigProfile]:
    """Every profile that the device has, with its legal placements where the user may ask for them."""
    for enum in range(reader.nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = reader.get("mig", "nvmlDeviceGetGpuInstanceProfileInfo", enum)
        if info is None:
            continue
        placements = _placements(reader, info.id)
        yield MigProfile(
            id=info.id,
            name=str(info.name).removeprefix("MIG ").strip(),
            compute_slices=info.sliceCount,
            memory_slices=placements[0][1] if placements else 0,
            memory_bytes=info.memorySizeMB * MIB,
            starts=[start for start, _ in placements],
            max_instances=info.instanceCount,
            multiprocessors=info.multiprocessorCount,
            media=enum in _MEDIA_ENUMS,
        )


def _placements(reader: Reader, profile_id: int) -> list[tuple[int, int]]:
    """(first slice, slices) of every legal placement; empty where only privileged users may ask."""
    nvml, handle, count = reader.nvml, reader.handle, c_uint(0)
    try:
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, byref(count))
        places = (nvml.c_nvmlGpuInstancePlacement_t * max(1, count.value))()
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, places, byref(count))
    except nvml.NVMLError as exc:
        _note(reader, exc)
        return []
    return sorted((place.start, place.size) for place in places[: count.value])


def gpu_instances(reader: Reader, known: list[MigProfile]) -> list[GpuInstance]:
    """Every GPU instance of a device, whatever has been made of it; empty where only privileged users may ask."""
    nvml = reader.nvml
    found: list[GpuInstance] = []
    for profile in known:
        count = c_uint(max(1, profile.max_instances))
        array = (nvml.c_nvmlGpuInstance_t * count.value)()
        try:
            nvml.nvmlDeviceGetGpuInstances(reader.handle, profile.id, array, byref(count))
            for item in array[: count.value]:
                info = nvml.nvmlGpuInstanceGetInfo(item)
                found.append(GpuInstance(id=info.id, profile_id=info.profileId, start=info.placement.start))
        except nvml.NVMLError as exc:
            _note(reader, exc)
    return found


def _note(reader: Reader, exc: Exception) -> None:
    """That a user without privileges may not ask is no fault, and will not change."""
    if not isinstance(exc, (reader.nvml.NVMLError_NoPermission, reader.nvml.NVMLError_NotSupported)):
        reader.note("mig", exc)


class NvmlMig:
    """Cuts GPUs through NVML. Creating and destroying need root."""

    def __init__(self, binding: Any) -> None:
        self._nvml = binding

    def enabled(self, uuid: str) -> bool:
        return self._mode(uuid)[0]

    def pending(self, uuid: str) -> bool:
        return self._mode(uuid)[1]

    def _mode(self, uuid: str) -> tuple[bool, bool]:
        """(now, after the next reset)."""
        try:
            now, then = self._nvml.nvmlDeviceGetMigMode(self._handle(uuid))
            return bool(now), bool(then)
        except self._nvml.NVMLError_NotSupported:
            raise MigError("MigUnsupported", "this GPU cannot be cut: it has no MIG") from None
        except self._nvml.NVMLError as exc:
            raise self._refused("MIG cannot be read", exc) from exc

    def enable(self, uuid: str, on: bool) -> None:
        word = "on" if on else "off"
        try:
            status = self._nvml.nvmlDeviceSetMigMode(self._handle(uuid), int(on))
            current, _ = self._nvml.nvmlDeviceGetMigMode(self._handle(uuid))
        except self._nvml.NVMLError as exc:
            raise self._refused(f"MIG cannot be switched {word}", exc) from exc
        if bool(current) == on:
            return
        if status == self._nvml.NVML_ERROR_IN_USE:
            raise MigError("DeviceInUse", f"MIG cannot be switched {word} while a process or daemon holds the GPU")
        raise MigError(
            "ResetRequired", f"MIG is switched {word} at the next reset of the GPU (nvidia-smi --gpu-reset) or reboot"
        )

    def instances(self, uuid: str) -> list[GpuInstance]:
        reader = Reader(self._nvml, self._handle(uuid))
        found = gpu_instances(reader, list(profiles(reader)))
        if reader.unreadable:  # what cannot be seen would be taken for what is not there, and cut away
            raise MigError("DriverError", f"the instances cannot be read ({', '.join(reader.unreadable)})")
        return found

    def create(self, uuid: str, profile_id: int, start: int) -> GpuInstance:
        handle = self._handle(uuid)
        try:
            instance = self._place(handle, profile_id, start)
            info = self._nvml.nvmlGpuInstanceGetInfo(instance)
        except self._nvml.NVMLError as exc:
            raise self._refused(f"profile {profile_id} cannot be made at slice {start}", exc) from exc
        made = GpuInstance(id=info.id, profile_id=profile_id, start=start)
        try:
            self._nvml.nvmlGpuInstanceCreateComputeInstance(instance, self._full_size(instance))
        except self._nvml.NVMLError as exc:
            self.destroy(uuid, made.id)  # an instance that nothing can run on is worse than none
            raise self._refused(f"profile {profile_id} at slice {start} got no compute instance", exc) from exc
        return made

    def destroy(self, uuid: str, instance_id: int) -> None:
        try:
            instance = self._nvml.nvmlDeviceGetGpuInstanceById(self._handle(uuid), instance_id)
            for compute in self._compute_instances(instance):
                self._nvml.nvmlComputeInstanceDestroy(compute)
            self._nvml.nvmlGpuInstanceDestroy(instance)
        except self._nvml.NVMLError_NotFound:
            return
        except self._nvml.NVMLError as exc:
            raise self._refused(f"instance {instance_id} cannot be removed", exc) from exc

    def _handle(self, uuid: str) -> Any:
        try:
            return self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as exc:
            raise self._refused("the GPU cannot be opened", exc) from exc

    def _place(self, handle: Any, profile_id: int, start: int) -> Any:
        """Make the instance exactly there; the driver wants the size too."""
        for begin, size in _placements(Reader(self._nvml, handle), profile_id):
            if begin == start:
                place = self._nvml.c_nvmlGpuInstancePlacement_t(start, size)
                return self._nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile_id, byref(place))
        raise MigError("IllegalPlacement", f"profile {profile_id} of this GPU cannot begin at slice {start}")

    def _full_size(self, instance: Any) -> int:
        """Id of the compute profile that takes the whole GPU instance."""
        found: list[tuple[int, int]] = []
        for enum in range(self._nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = self._nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, enum, _CI_SHARED)
            except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_InvalidArgument):
                continue
            found.append((info.sliceCount, info.id))
        if not found:
            raise MigError("NoComputeProfile", "the driver offers no compute profile for this instance")
        return max(found)[1]

    def _compute_instances(self, instance: Any) -> list[Any]:
        found: list[Any] = []
        for enum in range(self._nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = self._nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, enum, _CI_SHARED)
            except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_InvalidArgument):
                continue
            count = c_uint(max(1, info.instanceCount))
            array = (self._nvml.c_nvmlComputeInstance_t * count.value)()
            self._nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, array, byref(count))
            found += array[: count.value]
        return found

    def _refused(self, what: str, exc: Exception) -> MigError:
        reasons = {
            self._nvml.NVMLError_InUse: "DeviceInUse",
            self._nvml.NVMLError_NoPermission: "NotPermitted",
            self._nvml.NVMLError_InsufficientResources: "NoRoom",
            self._nvml.NVMLError_NotSupported: "MigUnsupported",
            self._nvml.NVMLError_GpuIsLost: "DeviceLost",
        }
        return MigError(reasons.get(type(exc), "DriverError"), f"{what}: {exc}")
