"""Numbers in sentences (pure)."""

_UNITS = ((1024**4, "TiB"), (1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))


def size(amount: int) -> str:
    """``1.50 GiB``; never rounded up past what there is."""
    for unit, name in _UNITS:
        if amount >= unit:
            return f"{amount * 100 // unit / 100:.2f} {name}"
    return f"{max(amount, 0)} bytes"


def cpus(millicpus: int) -> str:
    """``0.5 CPU``."""
    return f"{millicpus / 1000:g} CPU"
