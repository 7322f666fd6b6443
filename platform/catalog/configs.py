"""Serving configs: the allow-list of settings, their bounds and defaults, and the digest of a choice (pure)."""

import dataclasses
import difflib
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from kernel import errors
from kernel.isolation import Requirement

GIB: Final = 1024**3
DTYPE_BYTES: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}
ENGINES: Final = ("causal",)
#: What each engine runs; versions of other formats are kept, estimated and compared, and not deployed.
ENGINE_FORMATS: Final[Mapping[str, tuple[str, ...]]] = {"causal": ("huggingface", "gguf")}
# What the engine has; a test compares. 16-bit weights need no entry: that is what ``dtype`` says.
QUANTIZATIONS: Final = ("none", "int8", "int8_weight_only", "int4_weight_only", "fp8")
KV_DTYPES: Final = ("same", "int8", "fp8")
KV_BLOCK_SIZES: Final = (8, 16, 32, 64, 128)
#: A MIG profile as drivers name them: ``3g.40gb``, ``1g.10gb+me``.
_MIG_PROFILE: Final = re.compile(r"[1-7]g\.[1-9][0-9]{0,3}gb(\+[a-z.]{1,8})?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """A serving config with every field filled. 0 means "the engine decides" where the bounds allow it.

    The last four say what part of a device is wanted: the least ``isolation`` that is accepted, a MIG instance of one
    ``mig_profile`` ("": any), ``memory_limit_bytes`` of device memory (0: what is estimated) and, of an MPS share, the
    most of the multiprocessors that it may use (``thread_percentage``, 0: no limit).

    ``tensor_parallel`` and ``pipeline_parallel`` say over how many devices one replica is spread (0: it is chosen, one
    device wherever that is enough), ``expert_parallel`` over how many ranks of a stage the experts of a mixture are
    spread; ``tp_over_pcie`` lets tensor parallelism use devices without NVLink. ``products`` names the devices that are
    accepted, in full or by words of their names (``H100``); none: any.
    """

    engine: str = "causal"
    dtype: str = "float32"
    quantization: str = "none"
    max_model_len: int = 0
    max_num_seqs: int = 32
    max_num_batched_tokens: int = 1024
    max_waiting: int = 256
    kv_block_tokens: int = 16
    kv_cache_bytes: int = 0
    enable_prefix_cache: bool = True
    num_threads: int = 0
    tenant_kv_share: float = 1.0
    queue_timeout_seconds: float = 0.0
    sleep_after_seconds: float = 0.0
    kv_dtype: str = "same"
    offload_layers: int = 0
    watermark_low: float = 0.75
    watermark_high: float = 0.88
    watermark_critical: float = 0.95
    isolation: str = Requirement.ANY.value
    mig_profile: str = ""
    memory_limit_bytes: int = 0
    thread_percentage: int = 0
    tensor_parallel: int = 0
    pipeline_parallel: int = 0
    tp_over_pcie: bool = False
    expert_parallel: int = 0
    products: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 over all fields but lists that are empty, as before there were any: equal settings, equal digest."""
        fields = {name: value for name, value in dataclasses.asdict(self).items() if value != ()}
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


#: Fields that say on which devices a replica runs, and nothing that an engine reads.
DEVICES: Final = ("products",)
MAX_PRODUCTS: Final = 16
MAX_PRODUCT_NAME: Final = 80
#: Fields that say how a replica is spread over devices; an engine is told by its world.
PARALLEL: Final = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "tp_over_pcie")
DEFAULTS: Final = Settings()
#: Fields that are about the part of a device, and nothing that an engine reads.
PARTITION: Final = ("isolation", "mig_profile", "memory_limit_bytes", "thread_percentage")
_CHOICES: Final[Mapping[str, tuple[Any, ...]]] = {
    "engine": ENGINES,
    "dtype": tuple(DTYPE_BYTES),
    "quantization": QUANTIZATIONS,
    "kv_dtype": KV_DTYPES,
    "kv_block_tokens": KV_BLOCK_SIZES,
    "isolation": tuple(Requirement.values),
}
# field: (smallest, largest)
_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "max_model_len": (0, 1_048_576),
    "max_num_seqs": (1, 1024),
    "max_num_batched_tokens": (16, 65_536),
    "max_waiting": (1, 10_000),
    "kv_cache_bytes": (0, 16 * 1024 * GIB),
    "num_threads": (0, 256),
    "offload_layers": (0, 1024),
    "memory_limit_bytes": (0, 16 * 1024 * GIB),
    "thread_percentage": (0, 100),
    "tensor_parallel": (0, 64),
    "pipeline_parallel": (0, 64),
    "expert_parallel": (0, 64),
}
_FORMAT_NAMES: Final[Mapping[str, str]] = {"huggingface": "Hugging Face", "gguf": "GGUF", "onnx": "ONNX"}
#: What may be said instead of a field.
_FOR_PEOPLE: Final = frozenset({"kv_cache_gib", "memory_limit_gib", "watermarks"})
_FRACTIONS: Final = ("watermark_low", "watermark_high", "watermark_critical", "tenant_kv_share")
_LONGEST_SECONDS: Final = 86_400.0
_SECONDS: Final = ("queue_timeout_seconds", "sleep_after_seconds")


def runs_on(config: "Settings | Any", device_kind: str) -> bool:
    """False where a device of that kind lacks what ``config`` asks for: an engine there would refuse to start."""
    special = "fp8" in (config.quantization, config.kv_dtype) or config.offload_layers > 0
    return device_kind != "cpu" or not special


def normalise(config: Mapping[str, Any]) -> Settings:
    """Check ``config`` and fill what it leaves out.

    Besides the fields of :class:`Settings` it may say ``kv_cache_gib`` and ``memory_limit_gib`` (numbers, instead of
    bytes) and ``watermarks`` (``{"low", "high", "critical"}``).

    Raises:
        errors.InvalidInput: an unknown field, a wrong type, or a value out of bounds; ``data["field"]`` names it.
    """
    values = _unfold(config)
    known = {field.name for field in dataclasses.fields(Settings)}
    for name in values:
        if name not in known:
            raise _wrong(name, _unknown(name, known | _FOR_PEOPLE))
    checked = {name: _check(name, value) for name, value in values.items()}
    settings = Settings(**checked)
    if not 0 < settings.watermark_low < settings.watermark_high < settings.watermark_critical <= 1:
        raise _wrong("watermarks", "Watermarks rise: 0 < low < high < critical <= 1.")
    _check_part(settings)
    if settings.expert_parallel > 1 and settings.expert_parallel % max(settings.tensor_parallel, 1):
        raise _wrong("expert_parallel", "expert_parallel is a multiple of tensor_parallel: its ranks share attention.")
    return settings


def _unknown(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    told = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(sorted(known))}."
    return f"There is no setting {name[:60]!r}. {told}"


def no_engine(settings: Settings, version_format: str) -> str:
    """Why the engine of ``settings`` cannot run a version of that format; "" when it can."""
    if version_format in ENGINE_FORMATS[settings.engine]:
        return ""
    name = _FORMAT_NAMES.get(version_format, version_format)
    return f"No engine here runs {name} models. The version is kept, and what it needs of a device is known."


def check_version(settings: Settings, *, max_model_len: int, num_experts: int) -> None:
    """Refuse what a version cannot do: more context than it has, or experts spread that are none or do not divide.

    Raises:
        errors.InvalidInput: it has ``max_model_len`` positions (0: no bound) and ``num_experts`` experts (0: a dense
            model).
    """
    if settings.max_model_len > max_model_len > 0:
        raise _wrong(
            "max_model_len", f"max_model_len is at most {max_model_len} for this model; 0 takes the whole of it."
        )
    ranks = settings.expert_parallel
    if ranks > 1 and not num_experts:
        text = "expert_parallel is for mixture-of-experts models, and this one is dense. Leave it out."
        raise _wrong("expert_parallel", text)
    if ranks > 1 and num_experts % ranks:
        text = f"The {num_experts} experts of this model do not divide by expert_parallel {ranks}: name a divisor."
        raise _wrong("expert_parallel", text)


def _check_part(settings: Settings) -> None:
    """Refuse wishes about the part of a device that exclude each other."""
    if settings.thread_percentage and settings.isolation != Requirement.MPS:
        raise _wrong("thread_percentage", "thread_percentage is a limit of MPS: say isolation mps with it.")
    if settings.mig_profile and settings.isolation == Requirement.EXCLUSIVE:
        raise _wrong("mig_profile", "A MIG instance is no whole device: say isolation hardware, or no mig_profile.")
    if settings.mig_profile and settings.thread_percentage:
        raise _wrong("mig_profile", "A MIG instance has its own multiprocessors: leave thread_percentage out.")


def _unfold(config: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the forms meant for people by the fields they stand for; ``None`` means "left out"."""
    values = {str(name): value for name, value in config.items() if value is not None}
    for name in ("kv_cache", "memory_limit"):
        if f"{name}_gib" in values:
            gib = values.pop(f"{name}_gib")
            if f"{name}_bytes" in values:
                raise _wrong(f"{name}_gib", f"Give {name}_gib or {name}_bytes, not both.")
            if isinstance(gib, bool) or not isinstance(gib, int | float) or not 0 <= gib <= 16 * 1024:
                raise _wrong(f"{name}_gib", f"{name}_gib is a number from 0 to 16384.")
            values[f"{name}_bytes"] = int(gib * GIB)
    if "watermarks" in values:
        marks = values.pop("watermarks")
        if not isinstance(marks, Mapping) or not set(marks) <= {"low", "high", "critical"}:
            raise _wrong("watermarks", 'watermarks is {"low": …, "high": …, "critical": …}, fractions of the memory.')
        values |= {f"watermark_{name}": value for name, value in marks.items()}
    return values


def _check(name: str, value: Any) -> Any:
    if name in _CHOICES:
        if isinstance(value, bool) or value not in _CHOICES[name]:
            raise _wrong(name, f"{name} is one of {', '.join(map(str, _CHOICES[name]))}.")
        return value
    if name in _BOUNDS:
        low, high = _BOUNDS[name]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _wrong(name, f"{name} is a whole number from {low} to {high}.")
        return value
    if name in _FRACTIONS:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise _wrong(name, f"{name} is a fraction above 0 and at most 1.")
        return float(value)
    if name in _SECONDS:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_SECONDS:
            raise _wrong(name, f"{name} is a number of seconds from 0 (no limit) to {_LONGEST_SECONDS:.0f}.")
        return float(value)
    if name == "mig_profile":
        return _mig_profile(value)
    if name == "products":
        return _products(value)
    if not isinstance(value, bool):
        raise _wrong(name, f"{name} is true or false.")
    return value


def _mig_profile(value: Any) -> str:
    if not isinstance(value, str) or (value and not _MIG_PROFILE.fullmatch(value)):
        raise _wrong("mig_profile", "mig_profile is the name of a MIG profile, like 3g.40gb, or nothing.")
    return value


def _products(value: Any) -> tuple[str, ...]:
    """A list of names, or one text with commas between them; each once, in the order of the alphabet."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        value = str(value)  # 4090, as command lines read it
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise _wrong("products", "products is a list of names of devices, like H100 or L40S.")
    found = sorted({" ".join(name.split()) for name in names} - {""})
    if len(found) > MAX_PRODUCTS or any(len(name) > MAX_PRODUCT_NAME for name in found):
        raise _wrong("products", f"products are at most {MAX_PRODUCTS} names of {MAX_PRODUCT_NAME} characters each.")
    if not all(name.isprintable() for name in found):
        raise _wrong("products", "A name in products has a character that cannot be seen; names are like H100 or L40S.")
    return tuple(found)


def _wrong(field: str, text: str) -> errors.InvalidInput:
    return errors.InvalidInput(text, code="invalid_config", data={"field": field})
