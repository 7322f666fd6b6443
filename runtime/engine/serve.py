"""One model on this machine with OpenAI's API and nothing else of the platform: ``-m runtime.engine.serve PATH``."""

import argparse
import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import psutil

from runtime.base import logs
from runtime.engine import environment, errors
from runtime.engine.formats.kinds import guess_format
from runtime.engine.process import EngineProcess
from runtime.engine.settings import KV_DTYPES, QUANTIZATIONS
from runtime.wire.assignments import EngineConfig, World
from runtime.wire.inference import EngineSpec
from runtime.wire.reports import Phase

API_KEY_ENV: Final = "MILLPOND_SERVE_API_KEY"
_GIB: Final = 1 << 30
_CUDA_NODE: Final = Path("/dev/nvidia0")
_CPU_SHARE: Final = 0.5
_CUDA_SHARE: Final = 0.9
_POLL_SECONDS: Final = 0.2
_EXIT_FAILED: Final = 1
_EXIT_USAGE: Final = 2
#: Reasons of a start that a person brings about by how the command was written.
_USAGE: Final = frozenset({"InvalidOption", "NoSuchPath"})


def main(argv: list[str]) -> int:
    """Serve until interrupted; return the exit code: 1 the model cannot be served here, 2 wrong use, as everywhere in
    the command line (3 is "not signed in" there)."""
    options = _parser().parse_args(argv)
    environment.ensure("runtime.engine.serve", argv)
    logs.configure(process="engine", json=False, level="WARNING")
    folder = Path(tempfile.mkdtemp(prefix="millpond-serve-"))
    try:
        spec = _spec(options, folder)
        return asyncio.run(_serve(spec))
    except errors.StartError as exc:
        print(f"Error: {exc.message}", file=sys.stderr, flush=True)
        return _EXIT_USAGE if exc.reason in _USAGE else _EXIT_FAILED
    except KeyboardInterrupt:
        return 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="millpond serve", description="Serve one model with OpenAI's API.")
    parser.add_argument("path", type=Path, help="a Hugging Face folder or a .gguf file")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8123, help="port, 0 picks a free one (default: %(default)s)")
    parser.add_argument("--name", default="", help="name that clients call the model by (default: the file's name)")
    parser.add_argument("--memory", type=float, default=0.0, metavar="GIB", help="memory it may use")
    parser.add_argument(
        "--max-model-len", type=int, default=0, metavar="TOKENS", help="longest sequence (default: what fits)"
    )
    parser.add_argument(
        "--dtype",
        default="",
        choices=["float32", "bfloat16", "float16"],
        help="type of weights (default: float32 on a CPU, bfloat16 on a GPU)",
    )
    parser.add_argument("--quantization", default="none", choices=QUANTIZATIONS, help="how weights are held")
    parser.add_argument("--kv-dtype", default="same", choices=KV_DTYPES, help="how keys and values are held")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="where it runs")
    parser.add_argument(
        "--tensor-parallel", type=int, default=1, metavar="N", help="divide every layer over N devices (default: 1)"
    )
    parser.add_argument(
        "--pipeline-parallel", type=int, default=1, metavar="N", help="give the layers to N stages (default: 1)"
    )
    parser.add_argument(
        "--api-key", default="", help=f"key that clients have to send; {API_KEY_ENV} keeps it out of process lists"
    )
    return parser


def _spec(options: argparse.Namespace, folder: Path) -> EngineSpec:
    """The same spec an agent would write, from the command line."""
    path: Path = options.path.expanduser().resolve()
    if not path.exists():
        raise errors.StartError("NoSuchPath", f"There is nothing at {path}; name a model folder or a .gguf file.")
    device = ("cuda" if _CUDA_NODE.exists() else "cpu") if options.device == "auto" else options.device
    if options.memory < 0 or options.max_model_len < 0:
        raise errors.StartError("InvalidOption", "--memory and --max-model-len cannot be negative.")
    tensor, stages = options.tensor_parallel, options.pipeline_parallel
    if tensor < 1 or stages < 1:
        raise errors.StartError("InvalidOption", "--tensor-parallel and --pipeline-parallel are 1 or more.")
    ranks = tensor * stages
    world = World(size=ranks, ranks=list(range(ranks)), leader="", tensor=tensor, pipeline=stages)
    dtype = options.dtype or ("bfloat16" if device == "cuda" else "float32")
    return EngineSpec(
        replica_id="serve",
        generation=1,
        served_name=options.name or path.stem,
        model_path=str(path),
        format=guess_format(path),
        device_kind=device,
        device_uuid="",
        memory_bytes=int(options.memory * _GIB) or _default_memory(device),
        token=options.api_key or os.environ.get(API_KEY_ENV, ""),
        address_file=str(folder / "address.json"),
        config=EngineConfig(
            dtype=dtype,
            quantization=options.quantization,
            kv_dtype=options.kv_dtype,
            max_model_len=options.max_model_len,
        ),
        host=options.host,
        port=options.port,
        world=world if ranks > 1 else None,
        advertise_host="127.0.0.1" if options.host in ("", "0.0.0.0", "::") else options.host,  # noqa: S104 - compared
    )


def _default_memory(device: str) -> int:
    """A share of what is free now: others live on this machine, too."""
    if device == "cpu":
        return int(psutil.virtual_memory().available * _CPU_SHARE)
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).free * _CUDA_SHARE)
    except pynvml.NVMLError as exc:
        raise errors.StartError("NoDevice", f"The GPU cannot be read ({exc}); use --device cpu.") from exc


async def _serve(spec: EngineSpec) -> int:
    process = EngineProcess(spec, linger_seconds=0.0)
    watcher = asyncio.create_task(_show(process, spec))
    code = await process.run()
    watcher.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watcher
    if code:
        print(f"Error: {process.lifecycle.message}", file=sys.stderr, flush=True)
        return _EXIT_FAILED
    return code


async def _show(process: EngineProcess, spec: EngineSpec) -> None:
    """Print progress until the engine is ready, then how to call it."""
    shown = ""
    while process.lifecycle.phase is not Phase.READY:
        state = process.lifecycle.state()
        share = f" {state.progress:.0%}" if state.progress is not None else ""
        line = f"{state.phase.value}{share}"
        if line != shown:
            shown = line
            print(line, file=sys.stderr, flush=True)
        await asyncio.sleep(_POLL_SECONDS)
    for line in _greeting(process.address, spec, process.lifecycle.state().max_model_len):
        print(line, flush=True)


def _greeting(url: str, spec: EngineSpec, max_model_len: int) -> list[str]:
    key = ' -H "Authorization: Bearer $API_KEY"' if spec.token else ""
    body = f'{{"model": "{spec.served_name}", "messages": [{{"role": "user", "content": "Hello!"}}], "stream": true}}'
    return [
        f"Serving {spec.served_name} (context {max_model_len} tokens) at {url}/v1",
        f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'",
        "Press Ctrl-C to stop.",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
