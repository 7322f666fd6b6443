"""Walls around one process, put up from inside: ``python -I -S confine.py WALLS COMMAND...`` becomes COMMAND.

WALLS is JSON: ``cgroups`` (folders to enter), ``uid``, ``gid``, ``groups``, ``limits`` (name to number),
``no_new_privileges``. Standard library only: this runs before the engine's environment matters. What cannot be put up
ends the process with code 125, so that an engine never runs with fewer walls than were promised.
"""

import ctypes
import json
import os
import resource
import sys
from typing import Any

_PR_SET_NO_NEW_PRIVS = 38
FAILED = 125


def confine(walls: dict[str, Any]) -> None:
    """Put up every wall that is named.

    Raises:
        OSError: one could not be put up.
    """
    for folder in walls.get("cgroups", []):
        with open(os.path.join(folder, "cgroup.procs"), "w") as file:
            file.write("0")
    for name, value in walls.get("limits", {}).items():
        number = getattr(resource, f"RLIMIT_{name.upper()}")
        _, hard = resource.getrlimit(number)
        top = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (top, top))
    if walls.get("uid"):
        os.setgroups(walls.get("groups", []))
        os.setresgid(walls["gid"], walls["gid"], walls["gid"])
        os.setresuid(walls["uid"], walls["uid"], walls["uid"])
    if walls.get("no_new_privileges"):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no_new_privs")


def main(argv: list[str]) -> None:
    """Put up the walls and become the command."""
    try:
        confine(json.loads(argv[1]))
        os.execvp(argv[2], argv[2:])  # noqa: S606  there is no shell
    except (OSError, ValueError, KeyError, AttributeError) as exc:
        sys.stderr.write(f"the engine's isolation could not be set up: {exc}\n")
        sys.exit(FAILED)


if __name__ == "__main__":
    main(sys.argv)
