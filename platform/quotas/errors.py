"""Errors of this room: :class:`kernel.errors.QuotaExceeded`, with sentences made here."""

from collections.abc import Sequence

from kernel import errors
from quotas.amount import Amount, Kind, Line

#: Tenants that a refusal names.
_NAMED = 10
_UNITS = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))
_COUNTED = {
    Kind.GPU_MILLIS: "GPUs", Kind.HBM_BYTES: "of device memory", Kind.REPLICAS: "replicas",
    Kind.STORAGE_BYTES: "of storage",
}  # fmt: skip


def exceeded(line: Line, asked: Amount) -> errors.QuotaExceeded:
    """The refusal of ``asked``: which quota, its limit, what is used, and what would help."""
    own = line.limit.left_after(line.used)
    above = "" if line.left_above.covers(own) else " (its group has no more)"
    sentence = (
        f"This needs {counted(line.kind, asked)}; the tenant's quota is {describe(line.kind, line.limit)}, "
        f"of which {describe(line.kind, line.used)} is in use and {describe(line.kind, line.left)} is left{above}. "
        f"{_REMEDIES[line.kind]} or ask a platform admin for a larger quota."
    )
    data = {
        "quota": line.kind.value,
        "limit": line.limit.as_number(),
        "used": line.used.as_number(),
        "asked": asked.as_number(),
    }
    return errors.QuotaExceeded(sentence, data=data)


_REMEDIES = {
    Kind.GPU_MILLIS: "Stop a deployment, let a replica share a GPU,",
    Kind.HBM_BYTES: "Stop a deployment, choose a smaller model or context,",
    Kind.REPLICAS: "Scale another deployment down",
    Kind.STORAGE_BYTES: "Archive and delete versions that are no longer needed",
}


def counted(kind: Kind, amount: Amount) -> str:
    """``amount`` with what it counts: ``1 GPU``, ``3 replicas``, ``1.5 GiB of storage``."""
    number, what = describe(kind, amount), _COUNTED[kind]
    return f"{number} {what.removesuffix('s') if number == '1' else what}"


def named(slugs: Sequence[str]) -> str:
    """The first of them, and how many more."""
    more = f" and {len(slugs) - _NAMED} more" if len(slugs) > _NAMED else ""
    return f"{', '.join(slugs[:_NAMED])}{more}"


def what(kind: Kind) -> str:
    """What is counted, without a number: ``GPUs``, ``device memory``."""
    return _COUNTED[kind].removeprefix("of ")


def describe(kind: Kind, amount: Amount) -> str:
    """``amount`` for people: ``1.5 GiB``, ``3``, ``unlimited``."""
    if amount.number is None:
        return "unlimited"
    if kind is Kind.GPU_MILLIS:
        return f"{amount.number / 1000:g}"
    if kind is Kind.REPLICAS:
        return str(amount.number)
    for size, unit in _UNITS:
        if amount.number >= size:
            return f"{amount.number / size:.4g} {unit}"
    return f"{amount.number} bytes"
