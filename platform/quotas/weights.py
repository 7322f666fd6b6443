"""What a part of a device costs in GPUs (pure): a whole GPU is 1000, a MIG instance its slices, a CPU nothing."""

from typing import Final

WHOLE_GPU_MILLIS: Final = 1000
#: Compute slices of a GPU that can be cut, where its node does not say.
SLICES: Final = 7
_NO_GPU: Final = "cpu"


def device_millis(kind: str, slices: int = 0, of: int = SLICES) -> int:
    """Thousandths of a GPU that a device is: ``slices`` of ``of`` for a MIG instance, 0 slices for a whole GPU."""
    if kind == _NO_GPU:
        return 0
    return -(-WHOLE_GPU_MILLIS * min(slices, of) // of) if slices else WHOLE_GPU_MILLIS


def part_millis(of_device: int, memory_bytes: int, device_bytes: int, *, whole: bool = False, compute: int = 0) -> int:
    """Thousandths of a GPU for a part of a device that is ``of_device`` itself.

    The larger of its share of the memory and its share of the compute (``compute``, thousandths of the device): both
    are what nobody else can use then. Rounded up, so that many small parts never cost less than the whole.
    """
    if not of_device:
        return 0
    if whole or device_bytes <= 0:
        return of_device
    by_memory = -(-of_device * memory_bytes // device_bytes)
    by_compute = -(-of_device * compute // WHOLE_GPU_MILLIS)
    return min(max(by_memory, by_compute, 1), of_device)
