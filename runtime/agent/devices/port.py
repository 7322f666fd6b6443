"""The port: where devices come from. Every source answers with wire reports keyed by UUID."""

from typing import Protocol

from runtime.wire.devices import DeviceReport


class DeviceSource(Protocol):
    """One kind of device. ``scan`` may block for as long as a driver does; it is called in a worker thread."""

    name: str

    def scan(self) -> list[DeviceReport]:
        """Return every device of this kind, sick ones with ``problem`` set."""
