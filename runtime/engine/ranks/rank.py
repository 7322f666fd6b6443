"""A rank that does not lead: ``python -m runtime.engine.ranks.rank``, started by the leader, or on another node by
``host``, and by nobody else.

It loads its part of the model, does what it is told in the order it is told, and ends with its leader and with whoever
started it.
"""

import argparse
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from runtime.base import lifeline, logs
from runtime.engine import errors
from runtime.engine.ranks import orders, streams
from runtime.engine.ranks.split import Split
from runtime.wire import codec
from runtime.wire.inference import EngineSpec
from runtime.wire.reports import Phase

_log = logs.get(__name__)

EXIT_BROKEN: Final = 4

#: What is told to all who have to know how this rank is.
Tell = Callable[[orders.Answer], None]


def main(argv: list[str]) -> int:
    """Serve the leader until it is gone; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m runtime.engine.ranks.rank", description="One rank of a replica.")
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the socket to the leader")
    parser.add_argument("--starter", type=int, help="descriptor of the socket to whoever started it, if not the leader")
    options = parser.parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGINT):  # signals to the group are the leader's to answer
        signal.signal(number, signal.SIG_IGN)
    logs.configure(process=f"engine-rank-{options.rank}")
    lifeline.watch()
    channel = socket.socket(fileno=options.channel)
    starter = socket.socket(fileno=options.starter) if options.starter is not None else None
    for stream in (channel, starter):
        if stream is not None:  # also in the middle of a step, which would never end
            streams.on_end(stream, _leave, "end")
    spec = codec.decode(options.spec.read_bytes(), EngineSpec)
    assert spec.world is not None
    split = Split(rank=options.rank, tensor=spec.world.tensor, stages=spec.world.pipeline)

    def aside(answer: orders.Answer) -> None:
        if starter is not None:
            orders.send(starter, answer)

    def tell(answer: orders.Answer) -> None:
        aside(answer)
        orders.send(channel, answer)

    try:
        return _serve(channel, spec, split, tell, aside)
    except orders.Closed:
        return 0


def _serve(channel: socket.socket, spec: EngineSpec, split: Split, tell: Tell, aside: Tell) -> int:
    from runtime.engine.ranks.follower import Follower  # torch comes with it

    try:
        follower = Follower(spec, split, lambda share: tell(orders.Loading(share)))
    except errors.StartError as exc:
        tell(orders.Done(reason=exc.reason, message=exc.message))
        return errors.EXIT_START_FAILED
    tell(follower.held)
    while True:
        match orders.receive_order(channel):
            case orders.Meet() as meet:
                follower.meet(meet)
                held = follower.held.weights_bytes
                _log.info("rank_ready", rank=split.rank, stage=split.stage, weights_bytes=held)
            case orders.Serving():
                aside(orders.Now(Phase.READY))
            case orders.Step() as step:
                try:
                    follower.step(step)
                except Exception:  # the boundary of this process: the leader learns it from its end
                    _log.exception("step_failed", rank=split.rank)
                    return EXIT_BROKEN
            case order:
                orders.send(channel, follower.do(order))
                if isinstance(order, orders.Sleep | orders.Wake):
                    aside(orders.Now(Phase.ASLEEP if isinstance(order, orders.Sleep) else Phase.READY))


def _leave() -> None:
    logs.drain()
    os._exit(0)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logs.drain()
    sys.stderr.flush()
    os._exit(code)  # as the leader does: nothing is left to put in order
