"""QR codes as SVG shapes with attributes alone, and secrets in groups (pure)."""

import dataclasses
from typing import Final

import qrcode  # type: ignore[import-untyped]  # it has no stubs here

_BORDER: Final = 3


@dataclasses.dataclass(frozen=True)
class Qr:
    """``path`` draws the dark squares in a box of ``size`` by ``size``."""

    size: int
    path: str


def qr(text: str) -> Qr:
    """The code of ``text``; runs of dark squares are one stroke each."""
    code = qrcode.QRCode(border=_BORDER)
    code.add_data(text)
    code.make(fit=True)
    rows = code.get_matrix()
    strokes = []
    for y, row in enumerate(rows):
        x = 0
        while x < len(row):
            width = 0
            while x + width < len(row) and row[x + width]:
                width += 1
            if width:
                strokes.append(f"M{x} {y}h{width}v1h-{width}z")
            x += max(width, 1)
    return Qr(len(rows), "".join(strokes))


def grouped(secret: str) -> str:
    """Four letters at a time, for typing."""
    return " ".join(secret[at : at + 4] for at in range(0, len(secret), 4))
