"""What walls this host offers around an engine process. Reported once, never assumed."""

import os
from pathlib import Path

from runtime.base import logs

log = logs.get(__name__)


def describe() -> dict[str, str]:
    """Return each kind of isolation with ``used`` or why it is not."""
    return {
        "process_group": "used: a session of its own",
        "private_folder": "used: mode 0700",
        "devices": "used: CUDA_VISIBLE_DEVICES by UUID",
        "port_token": "used: a token per replica",
        "user": "not used: engines run as the agent's user" + (" (root)" if os.geteuid() == 0 else ""),
        "cgroup": _cgroup(),
        "network": "not used: engines share the host's network",
    }


def report_once() -> None:
    """Write the description to the log at start."""
    log.info("isolation", **describe())


def _cgroup() -> str:
    root = Path("/sys/fs/cgroup")
    if not (root / "cgroup.controllers").exists():
        return "not used: no unified control groups on this host"
    if not os.access(root, os.W_OK):
        return "not used: control groups are not writable for the agent"
    return "not used: available, limits come from the device budget alone"
