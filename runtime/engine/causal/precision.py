"""In which types a model is held and computed: what a serving config asks for, and what a device has."""

import dataclasses
from typing import Final

import torch

from runtime.engine import errors
from runtime.engine.settings import KV_DTYPES, QUANTIZATIONS
from runtime.wire.assignments import EngineConfig

_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# The first generation of CUDA devices that multiplies short floats.
_FP8_CAPABILITY: Final = (8, 9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """``dtype`` is computed in; ``quantization`` and ``kv`` are how weights and keys and values are held.

    The last ``offload_layers`` layers wait in host memory.
    """

    dtype: torch.dtype
    quantization: str = "none"
    kv: str = "same"
    offload_layers: int = 0


def chosen(config: EngineConfig, device: torch.device) -> Precision:
    """What ``config`` asks for.

    Raises:
        errors.StartError: a name that is not known, or something that ``device`` does not have.
    """
    dtype = _DTYPES.get(config.dtype)
    if dtype is None:
        raise errors.StartError("UnsupportedDtype", f"dtype {config.dtype!r} is not served, only {', '.join(_DTYPES)}.")
    quantization, kv = config.quantization or "none", config.kv_dtype or "same"
    if quantization not in QUANTIZATIONS:
        raise errors.StartError(
            "UnsupportedQuantization",
            f"Quantization {quantization!r} is not served, only {', '.join(QUANTIZATIONS)}.",
        )
    if kv not in KV_DTYPES:
        raise errors.StartError("UnsupportedKvDtype", f"kv_dtype {kv!r} is not served, only {', '.join(KV_DTYPES)}.")
    if "fp8" in (quantization, kv) and not _has_fp8(device):
        field = "quantization" if quantization == "fp8" else "kv_dtype"
        raise errors.StartError(
            "UnsupportedOnDevice",
            f"{field} fp8 needs a CUDA device of compute capability 8.9 or newer, and this is not one. Choose int8.",
        )
    if config.offload_layers and device.type != "cuda":
        raise errors.StartError(
            "UnsupportedOnDevice",
            "offload_layers moves weights from a CUDA device to host memory; on this device they are in host memory "
            "anyway. Set it to 0.",
        )
    return Precision(dtype=dtype, quantization=quantization, kv=kv, offload_layers=config.offload_layers)


def _has_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY
