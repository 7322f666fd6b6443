"""Xid and other critical events, heard in a thread of its own through NVML's event set.

A wait that times out is the normal case. Only events after registration are seen; the set of devices is registered
anew when it changes. A driver that fails in the wait is told once, and the thread tries again.
"""

import threading
import time
from collections import deque
from typing import Any, Final

from runtime.agent.devices.port import Observed
from runtime.base import logs
from runtime.wire.devices import HealthCode

log = logs.get(__name__)
WAIT_MS: Final = 1000
PAUSE_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 60.0
MAX_WAITING: Final = 256
_NO_INSTANCE: Final = 0xFFFFFFFF
_WORTH: Final = (
    "nvmlEventTypeXidCriticalError",
    "nvmlEventTypeDoubleBitEccError",
    "nvmlEventTypeGpuUnavailableError",
    "nvmlEventTypeGpuRecoveryAction",
)


class NvmlEvents:
    """Start with :meth:`start`; :meth:`take` gives what was heard. The thread is a daemon: a driver may hang in it."""

    name = "nvml-events"

    def __init__(
        self,
        binding: Any,
        *,
        wait_ms: int = WAIT_MS,
        pause_seconds: float = PAUSE_SECONDS,
        again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        self._nvml = binding
        self._wait_ms = wait_ms
        self._pause = pause_seconds
        self._again = again_seconds
        self._heard: deque[Observed] = deque(maxlen=MAX_WAITING)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._said = ""
        self._refused = False
        self.registered: frozenset[str] = frozenset()

    def start(self) -> None:
        """Listen until :meth:`stop`."""
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def stop(self, seconds: float = 2.0) -> None:
        """Ask the thread to end and wait a little for it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def take(self) -> list[Observed]:
        taken: list[Observed] = []
        while self._heard:
            taken.append(self._heard.popleft())
        return taken

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except self._nvml.NVMLError as exc:
                self._tell(f"events of the driver cannot be heard: {exc}")
                self._stop.wait(self._pause)

    def _listen(self) -> None:
        """Register what is there and wait for events until the set of devices changes."""
        events = self._nvml.nvmlEventSetCreate()
        try:
            known = self._register(events)
            count = self._nvml.nvmlDeviceGetCount()
            self.registered = frozenset(known.values())
            until = time.monotonic() + self._again if self._refused else float("inf")
            while not self._stop.is_set() and self._nvml.nvmlDeviceGetCount() == count:
                try:
                    data = self._nvml.nvmlEventSetWait(events, self._wait_ms)
                except self._nvml.NVMLError_Timeout:
                    if not known or time.monotonic() >= until:
                        return  # nothing could be registered, or a sick GPU may be well: look again
                    continue
                self._said = ""
                self._note(data)
        finally:
            self._nvml.nvmlEventSetFree(events)
            if not self.registered:
                self._stop.wait(self._pause)
            self.registered = frozenset()

    def _register(self, events: Any) -> dict[int, str]:
        """Ask for the events of every device that can be opened; one that cannot does not keep the others out."""
        self._refused = False
        wanted = 0
        for name in _WORTH:
            wanted |= getattr(self._nvml, name, 0)
        known: dict[int, str] = {}
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = self._nvml.nvmlDeviceGetUUID(handle)
                offered = self._nvml.nvmlDeviceGetSupportedEventTypes(handle)
                self._nvml.nvmlDeviceRegisterEvents(handle, wanted & offered, events)
            except self._nvml.NVMLError as exc:
                log.info("gpu_events_unavailable", index=index, error=str(exc))
                self._refused = self._refused or not isinstance(exc, self._nvml.NVMLError_NotSupported)
                continue
            known[index] = uuid
        return known

    def _note(self, data: Any) -> None:
        try:
            uuid = self._nvml.nvmlDeviceGetUUID(data.device)
        except self._nvml.NVMLError as exc:
            log.warning("event_without_device", error=str(exc))
            uuid = ""
        instance = None if data.gpuInstanceId == _NO_INSTANCE else int(data.gpuInstanceId)
        kind = int(data.eventType)
        if kind & self._nvml.nvmlEventTypeXidCriticalError:
            xid = int(data.eventData)
            event = Observed(
                code=HealthCode.XID,
                device_uuid=uuid,
                xid=xid,
                message=f"the driver reported Xid {xid}",
                gpu_instance_id=instance,
            )
        elif kind & self._nvml.nvmlEventTypeDoubleBitEccError:
            message = "the driver reported an uncorrectable memory error"
            event = Observed(
                code=HealthCode.ECC_UNCORRECTED, device_uuid=uuid, message=message, count=1, gpu_instance_id=instance
            )
        else:
            message = f"the driver reported event 0x{kind:x} ({int(data.eventData)})"
            event = Observed(code=HealthCode.RECOVERY_ACTION, device_uuid=uuid, message=message)
        log.warning("gpu_event", uuid=uuid, code=event.code.value, xid=event.xid)
        self._heard.append(event)

    def _tell(self, message: str) -> None:
        """Once until it works again."""
        if message != self._said:
            self._said = message
            log.warning("nvml_events_failed", message=message)
            self._heard.append(Observed(code=HealthCode.DRIVER, message=message))
