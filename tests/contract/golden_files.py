"""Golden files of the wire contract: ``golden/v<major>/<module>.<Name>.<full|smallest>.json``.

Run ``python -m tests.contract.golden_files`` to write the files that are missing. A file that is there is never
overwritten: it is what older programs sent. A change that is meant gets ``--replace NAME`` per message, and then shows
in the diff of the files.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from runtime.wire import codec, version
from tests.contract import samples

FOLDER: Final = Path(__file__).parent / "golden" / f"v{version.MAJOR}"
VARIANTS: Final = ("full", "smallest")


def path_of(name: str, variant: str) -> Path:
    """Where the golden file of a message is."""
    return FOLDER / f"{name}.{variant}.json"


def bytes_of(name: str, variant: str) -> bytes:
    """What this program writes for a message."""
    sample = samples.FULL[name] if variant == "full" else samples.smallest(name)
    return codec.encode(sample)


def write(replaced: set[str]) -> list[str]:
    """Write missing files, and those of the messages in ``replaced``; return what was written."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    written: list[str] = []
    for name in sorted(samples.FULL):
        for variant in VARIANTS:
            path = path_of(name, variant)
            if path.exists() and name not in replaced:
                continue
            path.write_bytes(bytes_of(name, variant) + b"\n")
            written.append(path.name)
    return written


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description="Write missing golden files of the wire contract.")
    parser.add_argument("--replace", action="append", default=[], metavar="NAME", help="overwrite this message's files")
    replaced = set(parser.parse_args().replace)
    if unknown := replaced - set(samples.FULL):
        sys.stderr.write(f"no such message: {', '.join(sorted(unknown))}\n")
        return 2
    for name in write(replaced):
        sys.stdout.write(f"{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
