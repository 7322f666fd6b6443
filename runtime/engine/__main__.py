"""``python -m runtime.engine --spec FILE``: one engine process, as the agent starts it."""

import argparse
import os
import sys
from pathlib import Path

from runtime.engine import environment, errors


def main(argv: list[str]) -> int:
    """Run the engine of ``--spec``; return the exit code (3: it cannot serve this here, and says why)."""
    parser = argparse.ArgumentParser(prog="python -m runtime.engine", description="Serve one model over HTTP.")
    parser.add_argument("--spec", type=Path, required=True, help="JSON file with the engine spec")
    spec_path: Path = parser.parse_args(argv).spec
    environment.ensure("runtime.engine", argv)
    return _run(spec_path)


def _run(spec_path: Path) -> int:
    # only now: what takes time to import would be imported twice
    import asyncio

    from runtime.base import lifeline, logs
    from runtime.wire import codec
    from runtime.wire import errors as wire_errors
    from runtime.wire.inference import EngineSpec

    logs.configure(process="engine")
    log = logs.get(__name__)
    lifeline.watch()
    try:
        spec = codec.decode(spec_path.read_bytes(), EngineSpec)
    except (OSError, wire_errors.MalformedMessage) as exc:
        log.critical("spec_unreadable", path=str(spec_path), error=str(exc))
        return errors.EXIT_START_FAILED
    if spec.config.engine != "causal":
        log.error("engine_unknown", engine=spec.config.engine, known="causal")
        return errors.EXIT_START_FAILED
    from runtime.engine.process import EngineProcess

    try:
        return asyncio.run(EngineProcess(spec).run())
    except errors.StartError as exc:
        log.critical("engine_failed", reason=exc.reason, message=exc.message)
        return errors.EXIT_START_FAILED


if __name__ == "__main__":
    from runtime.base import logs

    code = main(sys.argv[1:])
    logs.drain()
    sys.stderr.flush()
    os._exit(code)  # all is closed; taking torch and gigabytes of cache apart page by page would take seconds
