"""A rank that does not lead: ``python -m runtime.engine.ranks.rank``, started by the leader and by nobody else.

It loads its part of the model, does what it is told in the order it is told, and ends with its leader.
"""

import argparse
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Final

from runtime.base import lifeline, logs
from runtime.engine import errors
from runtime.engine.ranks import orders
from runtime.engine.ranks.split import Split
from runtime.wire import codec
from runtime.wire.inference import EngineSpec

_log = logs.get(__name__)

EXIT_BROKEN: Final = 4


def main(argv: list[str]) -> int:
    """Serve the leader until it is gone; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m runtime.engine.ranks.rank", description="One rank of a replica.")
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the socket to the leader")
    parser.add_argument("--meeting", type=Path, required=True, help="file by which the ranks find each other")
    options = parser.parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGINT):  # signals to the group are the leader's to answer
        signal.signal(number, signal.SIG_IGN)
    logs.configure(process=f"engine-rank-{options.rank}")
    lifeline.watch()
    channel = socket.socket(fileno=options.channel)
    spec = codec.decode(options.spec.read_bytes(), EngineSpec)
    assert spec.world is not None
    split = Split(rank=options.rank, tensor=spec.world.tensor, stages=spec.world.pipeline)
    try:
        return _serve(channel, spec, split, options.meeting)
    except orders.Closed:
        return 0


def _serve(channel: socket.socket, spec: EngineSpec, split: Split, meeting: Path) -> int:
    from runtime.engine.ranks.follower import Follower  # torch comes with it

    try:
        follower = Follower(spec, split, lambda share: orders.send(channel, orders.Loading(share)))
    except errors.StartError as exc:
        orders.send(channel, orders.Done(reason=exc.reason, message=exc.message))
        return errors.EXIT_START_FAILED
    orders.send(channel, follower.held)
    follower.meet(meeting)
    _log.info("rank_ready", rank=split.rank, stage=split.stage, weights_bytes=follower.held.weights_bytes)
    while True:
        order = orders.receive_order(channel)
        if isinstance(order, orders.Step):
            try:
                follower.step(order)
            except Exception:  # the boundary of this process: the leader learns it from its end
                _log.exception("step_failed", rank=split.rank)
                return EXIT_BROKEN
        else:
            orders.send(channel, follower.do(order))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logs.drain()
    sys.stderr.flush()
    os._exit(code)  # as the leader does: nothing is left to put in order
