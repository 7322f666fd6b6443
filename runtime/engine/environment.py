"""What has to be in the environment before torch is loaded."""

import os
import sys
from typing import Final

# Threads that wait for work must sleep: spinning beside a busy neighbour makes steps tens of times slower.
# Nothing may be fetched: a model is what lies in its folder.
_REQUIRED: Final = {
    "OMP_WAIT_POLICY": "passive",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def ensure(module: str, arguments: list[str]) -> None:
    """Start ``python -m module arguments`` in place of this process when the environment is not as required."""
    if all(os.environ.get(name) == value for name, value in _REQUIRED.items()):
        return
    environment = {**os.environ, **_REQUIRED}
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], environment)  # noqa: S606 - ourselves
