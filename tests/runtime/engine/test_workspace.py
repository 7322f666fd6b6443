"""What the largest step takes is measured once per shape, limits and machine, and remembered."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from runtime.base.clock import SystemClock
from runtime.engine.causal import measure, startup, workspace
from runtime.engine.kernels import build
from runtime.wire.assignments import EngineConfig
from runtime.wire.inference import EngineSpec
from tests.build.models import tiny_llama

pytestmark = pytest.mark.engine

CONFIG = EngineConfig(kv_cache_bytes=1 << 20, num_threads=1, max_num_batched_tokens=32, max_num_seqs=4)


def bring_up(folder: Path, config: EngineConfig = CONFIG) -> int:
    """Start on ``folder`` and stop; the workspace in bytes that was planned with."""
    spec = EngineSpec(
        replica_id="r",
        generation=1,
        served_name="m",
        model_path=str(folder),
        format="huggingface",
        device_kind="cpu",
        device_uuid="CPU",
        memory_bytes=4 << 30,
        token="",
        address_file=str(folder / "address"),
        config=config,
    )
    started = startup.bring_up(
        spec, clock=SystemClock(), report=lambda *_: None, on_fatal=lambda message: pytest.fail(message)
    )
    started.engine.stop()
    return started.engine.ledger().workspace_bytes


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Every measuring from now on, in a cache folder of its own."""
    monkeypatch.setenv(build.CACHE_ENV, str(tmp_path / "cache"))
    found: list[int] = []
    original = measure._peak

    def peak(*args: object, **kwargs: object) -> int:
        found.append(original(*args, **kwargs))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(measure, "_peak", peak)
    return found


def test_a_second_start_remembers_and_other_limits_are_measured(measured: list[int], tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model")
    first = bring_up(folder)
    assert bring_up(folder) == first
    assert len(measured) == 1
    bring_up(folder, msgspec.structs.replace(CONFIG, max_num_batched_tokens=64))
    assert len(measured) == 2


@pytest.mark.parametrize("content", [b"", b"[]", b'{"peak_bytes": -1}', b'{"peak_bytes": "much"}'])
def test_what_cannot_be_read_is_measured_again(measured: list[int], tmp_path: Path, content: bytes) -> None:
    folder = tiny_llama(tmp_path / "model")
    bring_up(folder)
    (entry,) = (tmp_path / "cache" / "workspaces").iterdir()
    entry.write_bytes(content)
    bring_up(folder)
    assert len(measured) == 2
    assert workspace.recall(entry.name) == measured[-1]


def test_counting_the_bytes_of_a_model_does_not_import_a_compiler(tmp_path: Path) -> None:
    """Sums of tensors without storage would: seconds at every start."""
    folder = tiny_llama(tmp_path / "model")
    code = (
        "import sys, torch; from pathlib import Path; from runtime.engine.causal import precision, startup\n"
        "from runtime.engine.formats.opening import open_model\n"
        "from runtime.wire.assignments import EngineConfig\n"
        f"source = open_model(Path({str(folder)!r}), 'huggingface')\n"
        "for name in [n for n in sys.modules if n.split('.')[0] == 'sympy' or n.startswith('torch._dynamo')]:\n"
        "    del sys.modules[name]\n"
        "held = precision.chosen(EngineConfig(), torch.device('cpu'))\n"
        "assert startup._expected_weight_bytes(source, held) > 0\n"
        "assert 'sympy' not in sys.modules and 'torch._dynamo' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
