"""Requests that end before their engine does: stop it there, and find out what it has computed all the same."""

from collections.abc import Callable

import msgspec

from runtime.gateway.booking import CUT, Ending, Job, record_of
from runtime.gateway.core import Core
from runtime.gateway.finals import Unsettled, counted
from runtime.gateway.identity import new_record_id
from runtime.gateway.lane import Lane
from runtime.gateway.sse import Meter
from runtime.gateway.upstream import usage_told
from runtime.wire.inference import Usage
from runtime.wire.routes import ReplicaRoute


async def settle(
    core: Core, job: Job, lane: Lane, meter: Meter, usage_of: Callable[[bytes], Usage], ending: Ending
) -> Ending:
    """Return ``ending`` with what the engine says the request came to; ``usage_of`` reads a whole answer's.

    Raises:
        Unsettled: the process ends before the engine has told; what is in the journal is for the next one.
    """
    # First ask, then hang up: the sooner an engine is told, the less it computes for nobody.
    told, rest = await lane.stop()
    usage = told or _told_by(lane, meter, usage_of, rest)
    if usage is None and lane.choice is not None and lane.sent_any:
        # It has not told yet: let go of everything but what the caller may have to pay, and go on asking.
        core.journal.note_open(record_of(core, job, lane.choice, ending))
        core.limiter.free(job.lease)
        lane.close()
        usage = await core.finals.ask(lane.replica_id, job.upstream_id, lane.choice.replica)
    return msgspec.structs.replace(ending, usage=usage or ending.usage)


async def book_lost(core: Core, job: Job, lane: Lane, replica: ReplicaRoute) -> None:
    """A replica broke off before another one served: what it computed is booked by itself, and not billed."""
    try:
        usage = await core.finals.ask(replica.replica_id, job.upstream_id, replica)
    except Unsettled:
        return
    if usage is not None and usage != Usage():
        record = record_of(core, job, lane.choice, CUT)
        record = msgspec.structs.replace(record, id=new_record_id(), replica_id=replica.replica_id)
        core.journal.append(counted(record, usage))


def _told_by(lane: Lane, meter: Meter, usage_of: Callable[[bytes], Usage], rest: bytes | None) -> Usage | None:
    """What the end of the answer says, when the engine had finished before it was told to stop."""
    response = lane.response
    if rest is None or response is None:
        return None
    if response.status != 200:
        return usage_told(response.headers)
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        meter.feed(rest)
        return meter.usage if meter.done or meter.failed else None
    return usage_of(rest)
