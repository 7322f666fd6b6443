"""One call into NVML at a time: what a device does not support is no fault, what it should answer and does not is."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from runtime.base import logs

log = logs.get(__name__)
# Answers that mean "this device or driver has no such thing".
_ABSENT: Final = (
    "NVMLError_NotSupported",
    "NVMLError_FunctionNotFound",
    "NVMLError_ArgumentVersionMismatch",
    "NVMLError_InvalidArgument",
    "NVMLError_NotFound",
)
_VALUE_FIELDS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


class Reader:
    """Reads one device during one scan; ``unreadable`` collects what it should have answered ("power: GpuIsLost").

    ``reset_required`` once a call was refused until the device is reset.
    """

    def __init__(self, binding: Any, handle: Any, *, unreadable: list[str] | None = None) -> None:
        self.nvml = binding
        self.handle = handle
        self.unreadable: list[str] = [] if unreadable is None else unreadable
        self.reset_required = False
        self._absent = tuple(getattr(binding, name) for name in _ABSENT)
        self._absent_codes = frozenset(error().value for error in self._absent)

    def of(self, handle: Any) -> "Reader":
        """A reader of a part of the device (a MIG instance), whose failures are the device's."""
        return Reader(self.nvml, handle, unreadable=self.unreadable)

    def get(self, label: str, function: str, *args: Any) -> Any:
        """Result of ``function(handle, *args)``, or ``None``."""
        call = getattr(self.nvml, function, None)
        if call is None:  # a binding older than the call
            return None
        try:
            return call(*args) if self.handle is None else call(self.handle, *args)
        except self._absent:
            return None
        except self.nvml.NVMLError as exc:
            self.note(label, exc)
        except self.nvml.NVMLLibraryMismatchError:
            pass  # a library older than the binding: the call is not there
        except UnicodeDecodeError:  # the binding decodes what a sick board says of itself
            self._failed(label, "NoText")
        return None

    def fields(self, label: str, ids: Sequence[Any]) -> Mapping[int, float]:
        """Values of the field ids (or (id, scope) pairs) that the device knows, by id."""
        values = self.get(label, "nvmlDeviceGetFieldValues", list(ids))
        found: dict[int, float] = {}
        for value in values or ():
            code = value.nvmlReturn
            if code == self.nvml.NVML_SUCCESS and value.valueType < len(_VALUE_FIELDS):
                found[value.fieldId] = getattr(value.value, _VALUE_FIELDS[value.valueType])
            elif code != self.nvml.NVML_SUCCESS and code not in self._absent_codes:
                self.note(label, self.nvml.NVMLError(code))
        return found

    def failed(self, label: str) -> bool:
        """True when something called ``label`` was there and could not be read."""
        return any(text.startswith(f"{label}: ") for text in self.unreadable)

    def note(self, label: str, exc: Any) -> None:
        """A call that should have been answered was not."""
        self.reset_required = self.reset_required or isinstance(exc, self.nvml.NVMLError_ResetRequired)
        self._failed(label, type(exc).__name__.removeprefix("NVMLError_"))

    def _failed(self, label: str, error: str) -> None:
        text = f"{label}: {error}"
        if text not in self.unreadable:
            self.unreadable.append(text)
