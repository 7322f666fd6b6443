"""From the C sources to a shared library: compiled once per machine, compiler and source, kept in a private folder.

A library is code that runs here, so it is only taken from a folder that belongs to this user and that nobody else can
write to. The folder is ``MILLPOND_ENGINE_CACHE``, else ``millpond`` in the user's cache folder, else a new temporary
one that lives as long as the process.
"""

import atexit
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from runtime.base import logs

_log = logs.get(__name__)

CACHE_ENV: Final = "MILLPOND_ENGINE_CACHE"
_FOLDERS: Final = ("kernels", "models", "workspaces")
SWITCH_ENV: Final = "MILLPOND_KERNELS"  # "off": do without, as where there is no compiler
_SOURCES: Final = Path(__file__).parent / "source"
_COMPILERS: Final = ("cc", "gcc", "clang")
_FLAGS: Final = ("-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-pthread")
_COMPILE_SECONDS: Final = 120.0
_CPU_FIELDS: Final = ("model name", "flags", "Features")


def library_path() -> Path | None:
    """The compiled library, made when it is not there yet; ``None`` where it cannot be had, which is logged."""
    if os.environ.get(SWITCH_ENV, "") == "off":
        return None
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    sources = sorted(_SOURCES.glob("*.c"))
    try:
        folder = private_folder("kernels")
        target = folder / f"kernels-{_digest(compiler)}.so"
        if _trusted(target):
            return target
        if compiler is None:
            _log.warning("kernels_unavailable", reason="there is no C compiler", tried=_COMPILERS)
            return None
        return _compile(compiler, sources, target)
    except (OSError, subprocess.SubprocessError) as exc:
        _log.warning("kernels_unavailable", reason=str(exc)[:500])
        return None


def _compile(compiler: str, sources: list[Path], target: Path) -> Path | None:
    """Compile into a name of our own and move it in place: whoever comes second finds a whole file or none."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    command = [compiler, *_FLAGS, *map(str, sources), "-lm", "-o", str(partial)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False)
        if done.returncode != 0:
            _log.warning("kernels_unavailable", reason="the compiler failed", output=done.stderr[-2000:])
            return None
        partial.chmod(0o500)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _digest(compiler: str | None) -> str:
    """Names everything that the library depends on: sources, flags, compiler and the processor it is tuned for."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update("\0".join([*_FLAGS, platform.machine(), processor(), _identity(compiler)]).encode())
    return digest.hexdigest()[:32]


def _identity(compiler: str | None) -> str:
    """Path, size and time of the compiler's own file: another compiler is another file. No process is started."""
    if compiler is None:
        return ""
    path = Path(compiler).resolve()
    found = path.stat()
    return f"{path}:{found.st_size}:{found.st_mtime_ns}"


def processor() -> str:
    """The processor's model and abilities, as the system names them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    found = {name: line for line in lines if (name := line.split("\t")[0].strip(" :")) in _CPU_FIELDS}
    return "\n".join(found.values())


def private_folder(name: str) -> Path:
    """The cache folder called ``name``, which only this user can write to.

    Raises:
        OSError: there is none and none can be made.
    """
    stated = os.environ.get(CACHE_ENV)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = (Path(stated) if stated else Path(base) / "millpond") / name
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _only_ours(folder, directory=True):
            return folder
        _log.warning("engine_cache_refused", folder=str(folder), reason="others may write to it, or it is not ours")
    except OSError as exc:
        _log.info("engine_cache_unusable", folder=str(folder), reason=str(exc))
    return _temporary() / name


def keep(folder: Path, name: str, content: bytes, *, most: int) -> None:
    """Write ``content`` as ``folder / name``, whole or not at all, and leave at most the newest ``most`` files there.

    Raises:
        OSError: it cannot be written.
    """
    partial = folder / f".{name}.{os.getpid()}"
    partial.write_bytes(content)
    partial.replace(folder / name)
    entries = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
    for path in entries[:-most]:
        path.unlink(missing_ok=True)


@functools.cache
def _temporary() -> Path:
    made = Path(tempfile.mkdtemp(prefix="millpond-engine-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    for name in _FOLDERS:
        (made / name).mkdir(mode=0o700)
    return made


def _only_ours(path: Path, *, directory: bool) -> bool:
    found = path.lstat()
    kind = stat.S_ISDIR(found.st_mode) if directory else stat.S_ISREG(found.st_mode)
    return kind and found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _trusted(path: Path) -> bool:
    try:
        return _only_ours(path, directory=False)
    except FileNotFoundError:
        return False
