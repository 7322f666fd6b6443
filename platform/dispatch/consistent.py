"""One moment of the database: counter and rows of a table are read in the same snapshot."""

import contextlib
from collections.abc import Iterator

from django.db import connection, transaction


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """A read-only REPEATABLE READ transaction; inside another transaction it joins that one."""
    outermost = not connection.in_atomic_block
    with transaction.atomic():
        if outermost:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield
