"""Simulated nodes beside this machine: agents that show GPUs which do not exist, labelled so wherever they are shown.

Each has a folder of its own under ``simulated/`` in the state folder. A file ``simulated.yaml`` there changes facts of
single devices while everything runs (see :mod:`runtime.agent.devices.description`): that is how one is made sick.
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from runtime.embedded import processes
from runtime.embedded.errors import EmbeddedError, StartError
from runtime.embedded.places import REPOSITORY, Places, write_private
from runtime.embedded.processes import Environments
from runtime.embedded.supervisor import Program, Supervisor

MAX_NODES: Final = 32
_COMMAND_S: Final = 180.0
_PROFILES: Final = REPOSITORY / "runtime" / "agent" / "devices" / "profiles"
_WORD: Final = re.compile(r"(?P<machine>[a-z0-9-]+)(?::(?P<count>[0-9]{1,3}))?")


@dataclasses.dataclass(frozen=True)
class SimulatedNode:
    """One node to start: its name and the machine it shows."""

    name: str
    machine: str

    def folder(self, places: Places) -> Path:
        """Its agent's state folder."""
        return places.home / "simulated" / self.name

    def token_file(self, places: Places) -> Path:
        """Where its one-time token lies until it has joined."""
        return places.run / f"{self.name}-join-token"


def machines() -> list[str]:
    """Names of the machines that can be simulated."""
    return sorted(path.stem for path in _PROFILES.glob("*.yaml") if path.stem != "products")


def read(words: Sequence[str]) -> list[SimulatedNode]:
    """``dgx-h100`` or ``dgx-h100:3`` to nodes, named ``simulated-dgx-h100-1`` and so on.

    Raises:
        EmbeddedError: no such machine, or too many.
    """
    known = machines()
    counts: dict[str, int] = {}
    for word in words:
        match = _WORD.fullmatch(word)
        if match is None or match["machine"] not in known:
            raise EmbeddedError(f"--simulate {word}: the machine must be one of {', '.join(known)}, like {known[0]}:2.")
        counts[match["machine"]] = counts.get(match["machine"], 0) + int(match["count"] or 1)
    if sum(counts.values()) > MAX_NODES:
        raise EmbeddedError(f"--simulate: at most {MAX_NODES} nodes fit beside the rest on one machine.")
    return [
        SimulatedNode(name=f"simulated-{machine}-{number}", machine=machine)
        for machine, count in counts.items()
        for number in range(1, count + 1)
    ]


def program(node: SimulatedNode, places: Places, env: Environments) -> Program:
    """The node's agent. Its devices are simulated, and so are the engines on them."""
    variables = dict(env.data) | {
        "MILLPOND_AGENT_DIR": str(node.folder(places)),
        "MILLPOND_AGENT_JOIN_TOKEN_FILE": str(node.token_file(places)),
        "MILLPOND_NODE_NAME": node.name,
        "MILLPOND_CPU_DEVICE_MEMORY_GIB": "0",
        "MILLPOND_SIMULATE": node.machine,
        "MILLPOND_SIMULATE_ENGINES": "1",
    }
    return dataclasses.replace(processes.agent(places, env), name=node.name, env=variables)


async def start(
    supervisor: Supervisor, places: Places, env: Environments, nodes: Sequence[SimulatedNode], *, anew: bool
) -> None:
    """Let the nodes join that have not, and start their agents. ``anew``: what they joined before is gone.

    Raises:
        StartError: the tokens could not be made.
    """
    if anew:
        for node in nodes:
            (node.folder(places) / "credential.json").unlink(missing_ok=True)
    new = [node for node in nodes if not (node.folder(places) / "credential.json").exists()]
    if new:
        made = places.run / "simulated-tokens.json"
        argv = processes.manage("join_tokens", "--write", str(made), *(node.name for node in new))
        await supervisor.step(name="join-tokens", argv=argv, env=env.control, cwd=places.repository, limit_s=_COMMAND_S)
        try:
            tokens = msgspec.json.decode(made.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.MsgspecError) as error:
            raise StartError(f"the simulated nodes' join tokens could not be read from {made}: {error}") from error
        made.unlink()
        for node in new:
            write_private(node.token_file(places), tokens[node.name])
    for node in nodes:
        await supervisor.start(program(node, places, env))
