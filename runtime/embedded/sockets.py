"""Private folders for unix sockets: mode 0700, owned by us, and short enough for the kernel."""

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from runtime.embedded.errors import EmbeddedError

# sockaddr_un.sun_path holds 108 bytes with the closing zero; macOS holds 104.
LONGEST_PATH: Final = 103
_LONGEST_NAME: Final = len("/.s.PGSQL.5432.lock")


def private_folder(wanted: Path) -> Path:
    """Make and return a 0700 folder for sockets: ``wanted``, or a short one in the temporary folder that stands for it.

    Raises:
        EmbeddedError: the short folder exists and belongs to somebody else.
    """
    if len(os.fsencode(wanted)) + _LONGEST_NAME <= LONGEST_PATH:
        wanted.mkdir(parents=True, exist_ok=True, mode=0o700)
        wanted.chmod(0o700)
        return wanted
    short = _stand_in(wanted)
    if len(os.fsencode(short)) + _LONGEST_NAME > LONGEST_PATH:
        raise EmbeddedError(
            f"The path {wanted} is too long for a socket, and so is {short}. "
            "Set MILLPOND_HOME (or TMPDIR) to a folder with a shorter path."
        )
    try:
        short.mkdir(mode=0o700)
    except FileExistsError:
        _check_ours(short)
    return short


def forget(wanted: Path) -> None:
    """Remove the stand-in for ``wanted`` where there is one and it is empty."""
    with contextlib.suppress(OSError):
        _stand_in(wanted).rmdir()


def _stand_in(wanted: Path) -> Path:
    digest = hashlib.sha256(os.fsencode(wanted.absolute())).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"millpond-{os.getuid()}-{digest}"


def _check_ours(folder: Path) -> None:
    # Anyone may write in the temporary folder: never trust a name found there.
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise EmbeddedError(f"{folder} exists and is not ours. Remove it, or set MILLPOND_HOME to a shorter path.")
    folder.chmod(0o700)
