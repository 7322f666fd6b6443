"""Host memory while a model is loaded: the peak against what stays. ``MODEL`` is a folder or a GGUF file.

Anonymous memory is counted: pages of the file can be dropped and read again. Each way of holding weights loads in a
process of its own. The last line is one JSON object.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from runtime.engine.causal import loader, probes
from runtime.engine.formats.kinds import guess_format
from runtime.engine.formats.opening import open_model
from tests.benchmarks.engine import ROOT, find_model

MODES = ("none", "int8", "int8_weight_only", "int4_weight_only")
_MIB = 1 << 20


def main() -> None:
    """Measure every mode, one after the other."""
    if len(sys.argv) == 3:
        print(json.dumps(measure(Path(sys.argv[1]), sys.argv[2])))
        return
    path = find_model(os.environ.get("MODEL", ""))
    print(f"{path.name}, MiB\n{'mode':20} {'before':>8} {'peak':>8} {'after':>8} {'weights':>8} {'peak/after':>11}")
    found = {}
    for mode in MODES:
        child = [sys.executable, "-m", "tests.benchmarks.loading", str(path), mode]
        done = subprocess.run(child, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        found[f"load_peak_ratio_{mode}"] = ratio = round(row["peak"] / row["after"], 3)
        sizes = " ".join(f"{row[name] / _MIB:8.0f}" for name in ("before", "peak", "after", "weights"))
        print(f"{mode:20} {sizes} {ratio:11.3f}", flush=True)
    print(json.dumps(found))


def measure(path: Path, quantization: str) -> dict[str, Any]:
    """Bytes held before, at the peak and after loading ``path``, and what its weights count."""
    open_model(path, guess_format(path))  # what was read is remembered: the second time imports nothing
    source = open_model(path, guess_format(path))
    probe = probes.HostProbe()
    probe.give_back()
    before = probe.held_bytes()
    probe.start_peak()
    model = loader.load(
        source,
        dtype=torch.float32,
        device=torch.device("cpu"),
        quantization=quantization,
        progress=lambda _share: None,
    )
    peak = probe.peak_bytes()
    probe.give_back()
    return {"before": before, "peak": peak, "after": probe.held_bytes(), "weights": model.weights_bytes}


if __name__ == "__main__":
    main()
