"""The version of everything that is started from this tree; a test keeps it that of ``pyproject.toml``."""

from typing import Final

VERSION: Final = "0.1.0"
