"""From an assignment to a command line: which device, which model path, which environment. Pure."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

import runtime
from runtime.agent.errors import Fault, Retry
from runtime.base import lifeline
from runtime.wire.assignments import DeviceGrant, ReplicaAssignment, Share, World
from runtime.wire.devices import DeviceKind, DeviceReport
from runtime.wire.inference import EngineSpec

# What an engine inherits. Everything else of the agent's environment, its secrets included, stays behind.
_INHERITED: Final = frozenset(
    {"PATH", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "TERM", "SSL_CERT_FILE"}
)
_INHERITED_PREFIXES: Final = ("LC_", "OMP_", "MKL_", "NCCL_", "NVIDIA_", "CUDA_", "TORCH_", "PYTORCH_")
_SOURCE_ROOT: Final = Path(runtime.__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a replica runs: the grant, its device, and the UUID that the engine sees (of the MIG instance, if any)."""

    grant: DeviceGrant
    device: DeviceReport
    visible: str


def choose_device(
    assignment: ReplicaAssignment,
    devices: Mapping[str, DeviceReport],
    *,
    simulated: bool = False,
    rank_address: str = "",
) -> Target:
    """Return the granted device as it is on this node. ``simulated``: stand-ins may run on simulated devices;
    ``rank_address``: where ranks on other nodes reach those here.

    Of several the first is returned, with the UUIDs of all in the order of the ranks and the least that is granted of
    any; one stand-in takes all the ranks of this node.

    Raises:
        Fault: ``DeviceMissing``, ``DeviceSick``, ``DeviceSimulated``, ``DeviceCut``, ``InstanceMissing``,
            ``RankAddressChanged`` or ``UnsupportedPlacement``.
    """
    grants = assignment.devices
    if not grants:
        raise Fault("UnsupportedPlacement", "no device is granted", Retry.NEVER)
    targets = [_target(grant, devices, simulated=simulated) for grant in grants]
    if len(targets) == 1 and assignment.world is None:
        return targets[0]
    if any(target.device.kind is not DeviceKind.SIMULATED for target in targets):
        _check_ranks(assignment, targets, rank_address)
    least = msgspec.structs.replace(grants[0], memory_bytes=min(grant.memory_bytes for grant in grants))
    return Target(grant=least, device=targets[0].device, visible=",".join(target.visible for target in targets))


def _check_ranks(assignment: ReplicaAssignment, targets: Sequence[Target], rank_address: str) -> None:
    """Whether a rank can run on each of ``targets``, and meet those of other nodes."""
    world, count = assignment.world, len(targets)
    if world is None or len(world.ranks) != count or (world.alone and world.ranks != list(range(count))):
        ranks = world.ranks if world is not None else []
        raise Fault("UnsupportedPlacement", f"{count} devices are granted for the ranks {ranks}", Retry.NEVER)
    if not world.alone:
        _check_address(world, rank_address)
        if count == 1 and targets[0].device.kind is DeviceKind.CPU:
            return
    walled = {Share.MIG, Share.MPS}  # neither lets one process see parts of several GPUs
    if any(each.device.kind is not DeviceKind.CUDA or each.grant.share in walled for each in targets):
        raise Fault(
            "UnsupportedPlacement", "several ranks need a GPU each, not a MIG instance or MPS share", Retry.NEVER
        )


def _check_address(world: World, rank_address: str) -> None:
    """Whether the ranks of other nodes can meet those of this one."""
    if not rank_address:
        raise Fault(
            "UnsupportedPlacement",
            f"here are {len(world.ranks)} of {world.size} ranks, and this node takes part in no replica over several "
            "nodes: set MILLPOND_RANK_ADDRESS",
            Retry.NEVER,
        )
    if world.leads and world.leader_host != rank_address:
        raise Fault(
            "RankAddressChanged",
            f"the ranks of other nodes are told to come to {world.leader_host}, and this node's rank address is "
            f"{rank_address}",
        )


def _target(grant: DeviceGrant, devices: Mapping[str, DeviceReport], *, simulated: bool) -> Target:
    device = devices.get(grant.uuid)
    if device is None:
        raise Fault("DeviceMissing", f"device {grant.uuid} is not on this node now")
    if device.problem:
        raise Fault("DeviceSick", f"device {grant.uuid}: {device.problem}")
    if device.kind is DeviceKind.SIMULATED and not simulated:
        raise Fault("DeviceSimulated", f"device {grant.uuid} is simulated and runs no engine", Retry.NEVER)
    return Target(grant=grant, device=device, visible=_visible(grant, device))


def _visible(grant: DeviceGrant, device: DeviceReport) -> str:
    cut = device.mig is not None and device.mig.enabled
    if grant.share is not Share.MIG:
        if cut:
            raise Fault("DeviceCut", f"device {grant.uuid} is cut by MIG: only its instances can be used")
        return grant.uuid
    instances = device.mig.instances if device.mig else []
    if not grant.mig_uuid or grant.mig_uuid not in {item.uuid for item in instances}:
        raise Fault("InstanceMissing", f"MIG instance {grant.mig_uuid or '(none named)'} is not on {grant.uuid} now")
    return grant.mig_uuid


def model_path(assignment: ReplicaAssignment, folder: Path) -> Path:
    """Return what the engine opens: the folder, or its GGUF file (the first part where it is split).

    Raises:
        Fault: ``UnsupportedFormat`` or ``MalformedAssignment``.
    """
    if assignment.format == "huggingface":
        return folder
    if assignment.format != "gguf":
        raise Fault("UnsupportedFormat", f"this agent does not know the format {assignment.format!r}", Retry.NEVER)
    candidates = sorted(item.path for item in assignment.artifacts if item.path.lower().endswith(".gguf"))
    if not candidates:
        raise Fault("MalformedAssignment", "the format is gguf and no file ends in .gguf", Retry.NEVER)
    return folder / candidates[0]


def build_spec(
    assignment: ReplicaAssignment,
    target: Target,
    *,
    folder: Path,
    address: Path,
    bind: str,
    advertise: str,
    rank_address: str = "",
) -> EngineSpec:
    """Return the spec of an engine whose private folder is ``folder``."""
    world = assignment.world
    return EngineSpec(
        replica_id=assignment.replica_id,
        generation=assignment.generation,
        served_name=assignment.served_name,
        model_path=str(model_path(assignment, folder / "model")),
        format=assignment.format,
        device_kind=target.device.kind.value,
        device_uuid=target.visible,
        memory_bytes=target.grant.memory_bytes,
        token=assignment.token,
        address_file=str(address),
        config=assignment.config,
        host=bind,
        advertise_host=advertise,
        world=world,
        rank_address=rank_address if world is not None and not world.alone else "",
    )


def environment(
    spec: EngineSpec, *, work: Path, more: Mapping[str, str] | None = None, inherited: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the whole environment of the engine: a short list of what it may inherit, what it must have, ``more``."""
    visible = spec.device_uuid if spec.device_kind == DeviceKind.CUDA else ""
    env = {
        name: value
        for name, value in inherited.items()
        if (name in _INHERITED or name.startswith(_INHERITED_PREFIXES)) and not name.startswith("CUDA_MPS_")
    }
    env |= {
        "HOME": str(work),
        "TMPDIR": str(work / "tmp"),
        "HF_HOME": str(work / "hf"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_WAIT_POLICY": "passive",  # spinning threads make steps many times slower beside a busy neighbour
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # Whoever shares a GPU by MPS is told in ``more``; all others bypass a daemon that the machine runs for itself:
        # CUDA does without one that it does not find, and through one a fault of any client would reach them.
        "CUDA_MPS_PIPE_DIRECTORY": str(work / "no-mps"),
        "CUDA_VISIBLE_DEVICES": visible,
        "NVIDIA_VISIBLE_DEVICES": visible or "void",
        "PYTHONPATH": str(_SOURCE_ROOT),
        "PYTHONSAFEPATH": "1",  # never import from the folder that holds uploaded files
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    env |= more or {}
    if lifeline.ENV in inherited:
        env[lifeline.ENV] = inherited[lifeline.ENV]
    return env


def command(python: str, spec_file: Path, *, simulated: bool = False) -> list[str]:
    """Return the argument list of an engine, or of the stand-in on a simulated device."""
    if simulated:
        return [sys.executable, "-m", "runtime.agent.simulated_engine", "--spec", str(spec_file)]
    return [python, "-m", "runtime.engine", "--spec", str(spec_file)]
