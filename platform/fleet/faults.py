"""The fault policy (pure): what follows from something that happened to a device.

Sources, named per row: ``X`` is NVIDIA's Xid catalogue for Ampere and later (edition of October 2025, with its bucket),
``N`` the header of NVML, ``P`` a decision of this platform. Public tools disagree about some codes; those rows say
what was decided and why. Whoever reads this to change it: a row moves replicas of tenants.
"""

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Any, Final

#: How long a suspect device must be quiet before it is trusted again.
QUIET: Final = datetime.timedelta(minutes=10)
#: How long a repaired device is watched before anything is placed on it.
PROBATION: Final = datetime.timedelta(minutes=2)
#: Within this time the same soft fault counts as repeated.
WINDOW: Final = datetime.timedelta(minutes=10)
#: This often sent away for the same reason within :data:`MEMORY`, a device is not trusted again without a person.
TRIES: Final = 3
MEMORY: Final = datetime.timedelta(days=30)


class Action(enum.IntEnum):
    """What is done, the harmless first."""

    IGNORE = 0  # written down
    WATCH = 1  # written down and counted: often enough, it becomes more
    SUSPECT = 2  # nothing new is placed there; what runs goes on
    MOVE = 3  # replicas go elsewhere; the device comes back when its condition is over
    RESET = 4  # replicas go elsewhere; the device comes back after a reset or a restart of its machine
    RETIRE = 5  # replicas go elsewhere; the device is to be replaced


class Repair(enum.StrEnum):
    """What a quarantined device waits for."""

    CONDITION = "condition"
    RESET = "reset"
    REBOOT = "reboot"
    PERSON = "person"


@dataclasses.dataclass(frozen=True)
class Rule:
    """One row. ``plain`` completes "Its GPU …" for tenants. ``dead``: what ran on the device does not answer any more.

    After ``limit`` times within :data:`WINDOW` the action is ``then``.
    """

    action: Action
    plain: str
    source: str
    dead: bool = False
    repair: Repair = Repair.RESET
    limit: int = 0
    then: Action = Action.SUSPECT


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What to do about one fact: the state words of the device, and what it waits for."""

    action: Action
    reason: str
    plain: str
    dead: bool
    repair: Repair


def _app(plain: str, source: str = "X: RESTART_APP") -> Rule:
    """A fault of a program. The same device failing one program after another is a fault of the device."""
    return Rule(Action.WATCH, plain, source, limit=5)


def _reset(plain: str, source: str = "X: RESET_GPU", repair: Repair = Repair.RESET) -> Rule:
    return Rule(Action.RESET, plain, source, dead=True, repair=repair)


_BAD_STREAM: Final = "was given commands that it does not understand"
_COPY: Final = "failed while copying"
_GSP: Final = "has a processor that stopped answering its driver"
_NVLINK: Final = "has errors on its NVLinks"
_LINK5: Final = Rule(
    Action.WATCH,
    _NVLINK,
    "X: WORKFLOW_NVLINK5_ERR; P: the sub-fields decide between nothing and a reset, and the driver says which by its "
    "recovery action (Xid 154), so the code alone is counted",
    limit=3,
    then=Action.MOVE,
)
#: Why clocks are held down by heat, as reports say it.
THERMAL: Final = frozenset({"sw_thermal", "hw_thermal", "hw_slowdown"})
_MEMORY: Final = "has memory errors that could not be corrected"

XIDS: Final[Mapping[int, Rule]] = {
    8: _app("stopped working for a program"),
    11: _app(_BAD_STREAM),
    13: _app("met an illegal instruction of a program"),
    25: _app(_BAD_STREAM),
    31: _app("met an access of a program to memory that is not its own"),
    32: _app(_BAD_STREAM),
    39: _app(_COPY),
    40: _app(_COPY),
    41: _app(_COPY),
    43: Rule(
        Action.IGNORE,
        "stopped working for a program",
        "X: IGNORE; P: disputed (a device plugin marks the device): the program sees its own error and is started "
        "again by its agent",
    ),
    45: Rule(Action.IGNORE, "ended a program", "X: WORKFLOW_XID_45; P: follows another fault, which decides"),
    46: _reset("stopped working"),
    48: _reset(_MEMORY, "X: WORKFLOW_XID_48"),
    54: Rule(Action.RESET, "has too little power", "X: CHECK_MECHANICALS", dead=True, repair=Repair.PERSON),
    61: _reset("has a controller that stopped", "X: CONTACT_SUPPORT; P: a reset is tried first"),
    62: _reset("has a controller that stopped"),
    63: Rule(
        Action.WATCH,
        "has replaced a row of its memory",
        "X: IGNORE; P: disputed (a cloud agent replaces the machine): N says that running work is safe, so it serves "
        "on and is reset when it is idle",
        limit=3,
    ),
    64: _reset("could not replace a row of its memory"),
    68: _app("failed while decoding video"),
    69: _app(_BAD_STREAM),
    70: _app(_COPY),
    71: _app(_COPY),
    72: _app(_COPY),
    74: Rule(Action.RESET, _NVLINK, "X: WORKFLOW_NVLINK_ERR"),
    79: _reset("has fallen off the bus", "X: RESTART_BM", Repair.REBOOT),
    92: Rule(
        Action.WATCH,
        "corrects many memory errors",
        "X: IGNORE; P: disputed (a device plugin marks the device): nothing is wrong yet; a trend is",
        limit=3,
    ),
    94: Rule(
        Action.SUSPECT,
        "had a memory error that ended one program",
        "X: RESTART_APP; P: disputed (a device plugin marks the device): the error is contained and its neighbours are "
        "well, but nothing new is placed there until it has been quiet",
    ),
    95: _reset("had a memory error that reached everything on it"),
    109: Rule(
        Action.WATCH,
        "did not switch between programs in time",
        "X: RESET_GPU; P: disputed (a device plugin ignores it, a cloud agent calls it fatal): once can be a program's "
        "fault and is left to the restart of that program, twice within ten minutes is the device",
        limit=2,
        then=Action.RESET,
    ),
    110: _reset("has a security fault"),
    119: _reset(_GSP, "X: RESET_GPU; P: a hung driver seldom survives less than a restart", Repair.REBOOT),
    120: _reset(_GSP, "X: RESET_GPU; P: a hung driver seldom survives less than a restart", Repair.REBOOT),
    121: Rule(
        Action.WATCH,
        "has errors on its link to the processor",
        "X: IGNORE; P: disputed (a device plugin marks the device): corrected by the link; a trend is not",
        limit=3,
    ),
    136: _reset("could not set up its NVLinks"),
    137: Rule(Action.IGNORE, _NVLINK, "X: IGNORE; P: the fault of a peer, whose own code decides"),
    140: _reset(_MEMORY),
    141: Rule(Action.IGNORE, "met an error of a program", "X: IGNORE"),
    142: _reset("failed", "X: CONTACT_SUPPORT; P: a reset is tried first"),
    143: _reset("could not be started"),
    **dict.fromkeys(range(144, 151), _LINK5),
    151: Rule(Action.RESET, "lost its encryption keys", "X: RESTART_VM", dead=True, repair=Repair.REBOOT),
    154: Rule(Action.IGNORE, "asks for care", "X: informational; the recovery action that it announces decides"),
    155: _reset(_NVLINK),
    156: _reset("has given up a part of itself"),
    157: Rule(Action.WATCH, "could not give up a broken part", "X: IGNORE", limit=3),
    158: _reset("stopped working"),
    160: Rule(Action.IGNORE, "has closed a channel of its memory", "X: IGNORE"),
    161: Rule(Action.IGNORE, "could not close a channel of its memory", "X: IGNORE"),
    167: _reset("does not answer on its bus", "X: no bucket yet; P: as 79", Repair.REBOOT),
    171: _reset(_MEMORY, "X: detail of 48"),
    172: _reset(_MEMORY, "X: detail of 48"),
}
#: A code that is in no row: written down, counted, and trusted less when it comes again.
UNKNOWN_XID: Final = Rule(Action.WATCH, "reported an error that is not known", "P: no row", limit=3)

#: What is not an Xid, by the wire's codes.
FACTS: Final[Mapping[str, Rule]] = {
    "ecc_corrected": Rule(Action.WATCH, "corrects memory errors", "P: corrected is harmless, many are not", limit=20),
    "ecc_uncorrected": Rule(
        Action.SUSPECT, _MEMORY, "N; P: the Xid that comes with it (48, 94, 95) says whether more must be done"
    ),
    "remap_pending": Rule(
        Action.WATCH,
        "replaces a row of its memory at its next reset",
        "N: running work is safe; P: disputed (one operator calls it critical): as Xid 63",
        limit=3,
    ),
    "remap_failed": Rule(
        Action.RETIRE, "has no spare memory left for broken rows", "N: for replacement", repair=Repair.PERSON
    ),
    "lost": Rule(
        Action.MOVE, "does not answer any more", "N: GPU_IS_LOST", dead=True, repair=Repair.CONDITION
    ),
    "unreadable": Rule(Action.IGNORE, "cannot be read", "P: its report says so, and it is suspect meanwhile"),
    "thermal": Rule(Action.SUSPECT, "is too hot", "N: clocks held down; P: more work would make it hotter"),
    "power": Rule(Action.WATCH, "is short of power", "N: clocks held down", limit=3),
    "nvlink": Rule(Action.SUSPECT, _NVLINK, "N; P: what runs on this one device goes on"),
    "engine_unkillable": Rule(
        Action.RESET,
        "holds a process that does not end",
        "P: a process that survives being killed hangs in the driver; only a restart of the machine frees its memory",
        repair=Repair.REBOOT,
    ),
    "driver": Rule(Action.WATCH, "has trouble with its driver", "N", limit=3),
}  # fmt: skip
_RETURNED: Final = Rule(Action.IGNORE, "answers again", "P")

#: What the driver asks for (``recovery_action``): X, Xid 154 and N, field 230.
RECOVERY: Final[Mapping[str, Rule]] = {
    "reset": Rule(Action.RESET, "has to be reset", "N: recovery action"),
    "drain_and_reset": Rule(Action.RESET, "has to be reset", "N: recovery action"),
    "bus_reset": Rule(Action.RESET, "has to be reset", "N: recovery action"),
    "reboot": Rule(Action.RESET, "needs a restart of its machine", "N: recovery action", repair=Repair.REBOOT),
    "system_reboot": Rule(Action.RESET, "needs a restart of its machine", "N: recovery action", repair=Repair.REBOOT),
    "drain_p2p": Rule(Action.SUSPECT, "has lost its direct links", "N: recovery action"),
    "recover_imex": Rule(Action.SUSPECT, "has lost its direct links", "N: recovery action"),
}
_SOME_RECOVERY: Final = Rule(Action.SUSPECT, "asks for care", "N: a recovery action that is in no row")


def rule_of(code: str, *, xid: int = 0, recovery_action: str = "") -> Rule:
    """The row that applies."""
    if code == "xid":
        return XIDS.get(xid, UNKNOWN_XID)
    if code == "recovery_action":
        return RECOVERY.get(recovery_action, _SOME_RECOVERY)
    return FACTS.get(code, _RETURNED)


def reason_of(code: str, xid: int = 0) -> str:
    """The code in PascalCase, as it stands on the row of the device: ``Xid79``, ``RemapFailed``."""
    return f"Xid{xid}" if code == "xid" else "".join(part.title() for part in code.split("_"))[:48]


def judge(code: str, *, xid: int = 0, active: bool = True, recovery_action: str = "", recent: int = 0) -> Verdict:
    """What to do about a fact that came ``recent`` times before within :data:`WINDOW`."""
    rule = rule_of(code, xid=xid, recovery_action=recovery_action)
    action = rule.action if active else Action.IGNORE
    if active and rule.limit and recent + 1 >= rule.limit:
        action = max(action, rule.then)
    return Verdict(action, reason_of(code, xid), rule.plain, rule.dead and action >= Action.MOVE, rule.repair)


def standing(facts: Mapping[str, Any]) -> str:
    """Which condition stands now by what the device reports, "" for none: levels, not events.

    ``facts`` are those of the device's row. A device with a standing condition is not trusted again by time alone.
    """
    throttle = facts.get("throttle") or ()
    remap = facts.get("remap") or {}
    if facts.get("problem"):
        return "problem"
    if remap.get("failed"):
        return "remap_failed"
    if facts.get("recovery_action"):
        return "recovery_action"
    if THERMAL.intersection(throttle):
        return "thermal"
    return "nvlink" if _links_down(facts.get("nvlink") or {}) else ""


def _links_down(nvlink: Mapping[str, Any]) -> bool:
    """Some links are down, or all where there are switches; a card that no bridge joins to others never had any."""
    if nvlink.get("fabric_healthy") is False:
        return True
    active = nvlink.get("active", 0)
    return nvlink.get("links", 0) > active and bool(active or nvlink.get("fabric_state"))


#: What a person has to do on the node for a device to come back. The platform resets nothing by itself: NVML has no
#: call for it, the tool needs root and an idle GPU, and on machines with NVSwitches all GPUs of the fabric must be
#: reset together, which would stop what runs on healthy ones.
_BY_HAND: Final[Mapping[str, str]] = {
    Repair.RESET: "nvidia-smi --gpu-reset -i {uuid}",
    Repair.REBOOT: "systemctl reboot",
}


def command_for(repair: str, uuid: str) -> str:
    """The command with which an operator repairs a device on its node, "" where there is none."""
    return _BY_HAND.get(repair, "").format(uuid=uuid)


def for_tenants(reason: str) -> str:
    """One sentence for somebody whose replica had to move: what happened, in plain words, naming no device."""
    plain, name = "", ""
    if reason.startswith("Xid") and reason[3:].isdigit():
        plain, name = rule_of("xid", xid=int(reason[3:])).plain, f" (Xid {reason[3:]})"
    else:
        by_reason = {reason_of(code): rule.plain for code, rule in FACTS.items()}
        plain = by_reason.get(reason, "") or _PLAIN.get(reason, "is not well")
    return f"Its GPU {plain}{name}, so this replica is replaced on another one."


_PLAIN: Final[Mapping[str, str]] = {
    "RecoveryAction": "has to be reset",
    "TakenOut": "was taken out of service by an operator",
    "Retired": "was taken out of service for good",
    "Repaired": "is being watched after a repair",
    "Returned": "is being watched after a repair",
}
