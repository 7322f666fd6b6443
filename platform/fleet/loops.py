"""One run of a loop at a time, over all workers: an advisory lock that the database frees when a worker dies."""

import contextlib
import datetime
import zlib
from collections.abc import Iterator

from django.db import connection

from fleet.models import LoopRun
from kernel import clock

_SPACE = 0x6D707031  # keeps our lock numbers apart from other users of the database


@contextlib.contextmanager
def one_at_a_time(name: str) -> Iterator[bool]:
    """Yield True when this run may go on, False when another run of ``name`` is under way (the next beat will do)."""
    key = zlib.crc32(name.encode()) - 2**31
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [_SPACE, key])
        mine = bool(cursor.fetchone()[0])
    try:
        yield mine
    finally:
        if mine:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [_SPACE, key])


def note_run(name: str) -> datetime.datetime | None:
    """Note that the loop ``name`` runs now; return when it ran before, ``None`` for the first time."""
    before = LoopRun.objects.filter(name=name).values_list("at", flat=True).first()
    LoopRun.objects.update_or_create(name=name, defaults={"at": clock.now()})
    return before


def due(name: str, *, every: datetime.timedelta) -> bool:
    """True, and noted, when the job ``name`` last ran at least ``every`` ago."""
    now = clock.now()
    if LoopRun.objects.filter(name=name, at__gt=now - every).exists():
        return False
    LoopRun.objects.update_or_create(name=name, defaults={"at": now})
    return True
