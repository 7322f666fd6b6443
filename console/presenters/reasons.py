"""Why devices cannot take a replica: codes in the visitor's language, and devices that say the same told together."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

WORDS: Final[dict[str, str | Promise]] = {
    "NotEnoughDevices": _("Not enough devices together"),
    "InsufficientDeviceMemory": _("Not enough device memory"),
    "InsufficientCompute": _("Not enough compute"),
    "InsufficientHostMemory": _("Not enough host memory"),
    "InsufficientCpu": _("Not enough CPU"),
    "DeviceTaken": _("Device taken"),
    "ParallelPlanImpossible": _("Cannot be spread"),
    "NoRankAddress": _("Not for several nodes"),
    "IsolationMixed": _("Other isolation on the device"),
    "IsolationUnavailable": _("Isolation not available"),
    "WrongProfile": _("No such MIG instance"),
    "NodeCordoned": _("Node cordoned"),
    "NodeDraining": _("Node being drained"),
    "DeviceUnhealthy": _("Device not well"),
    "DeviceMissing": _("Device missing"),
    "NodeLost": _("Node does not answer"),
    "NodeNotReady": _("Node not ready"),
    "WrongProduct": _("Other product needed"),
    "WrongDeviceKind": _("Other kind of device needed"),
    "SimulatedDevice": _("Simulated device"),
    "NoDevices": _("No devices"),
    "NeedUnknown": _("Need unknown"),
    "QuotaExceeded": _("Quota exceeded"),
    "NoEngine": _("No engine runs it"),
    "MakingRoom": _("Others make room"),
    "WaitingForPlacement": _("Waiting for a place"),
    "TpOverPcie": _("Only over PCIe"),
    "NotDivisible": _("Does not divide"),
    "TooLarge": _("Too large"),
    "TooManyRanks": _("Too many ranks"),
    "NotJoined": _("Nothing joins the devices"),
    "NotSupported": _("Not supported"),
    "NotNeeded": _("Not needed"),
    "OtherAskedFor": _("Another way is asked for"),
}


def word(code: str) -> str:
    """The code in words; itself where it has none."""
    return str(WORDS.get(code, code))


@dataclasses.dataclass(frozen=True)
class Group:
    """Devices of one product on one node that answer in the same words. ``uuids`` are the ends of their UUIDs;
    ``device`` is the whole answer of the first.
    """

    node: str
    product: str
    code: str
    message: str
    would_fit_if: str
    uuids: list[str]
    device: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Why:
    """Why a replica waits: every device that was judged, what would help, and how many more refuse."""

    groups: list[Group]
    would_fit_if: str
    more: int


def together(devices: Iterable[Mapping[str, Any]], *alike: str) -> list[Group]:
    """The planner's answers for ``devices``, in its order; those that say the same and agree in ``alike`` are one."""
    found: dict[tuple[Any, ...], Group] = {}
    for each in devices:
        uuid = each["device_uuid"]
        texts = [" ".join(each.get(name, "").replace(uuid, "").split()) for name in ("message", "would_fit_if")]
        key = (each["node"], each["product"], each["reason"], *texts, *(each.get(name) for name in alike))
        if key in found:
            group = found[key]
            found[key] = dataclasses.replace(
                group, message=texts[0], would_fit_if=texts[1], uuids=[*group.uuids, uuid[-8:]]
            )
        else:
            words = each.get("message", ""), each.get("would_fit_if", "")
            found[key] = Group(each["node"], each["product"], each["reason"], *words, [uuid[-8:]], each)
    return list(found.values())


def why(explanation: Mapping[str, Any] | None) -> Why | None:
    """What the planner wrote about a replica without a place; ``None`` where it wrote nothing."""
    told = explanation or {}
    devices = [each for each in told.get("devices") or () if not each.get("fits")]
    if not devices:
        return None
    more = sum((told.get("refused") or {}).values()) - len(devices)
    return Why(together(devices), told.get("would_fit_if", ""), max(more, 0))
