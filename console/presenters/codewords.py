"""Codes of rooms and nodes in the visitor's language. A code is what REST and scripts read, so it stays in reach."""

import re
from typing import Final, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_lazy as _

from console.presenters import reasons


class Coded(NamedTuple):
    """``is_code``: there are no words, or the page is English, where the code reads as words."""

    text: str
    is_code: bool


_REPLICAS: Final[dict[str, str | Promise]] = {
    "Adopted": _("Taken over"),
    "AgentError": _("Error of the agent"),
    "ArtifactCut": _("File cut off"),
    "ArtifactMissing": _("File missing"),
    "ArtifactRange": _("File not delivered"),
    "ArtifactUnavailable": _("File not delivered"),
    "Deleted": _("Deleted"),
    "DeviceChanging": _("GPU being cut"),
    "DeviceCut": _("GPU cut by MIG"),
    "DeviceFault": _("Fault of its device"),
    "DeviceSick": _("Device not well"),
    "DeviceSimulated": _("Simulated device"),
    "DigestMismatch": _("File damaged"),
    "DiskError": _("Error of the disk"),
    "DiskFull": _("Disk full"),
    "DrainTimeout": _("Drain time over"),
    "Drained": _("Drained"),
    "Draining": _("Draining"),
    "EngineDegraded": _("Engine degraded"),
    "EngineExited": _("Engine ended"),
    "EngineFailed": _("Engine failed"),
    "EngineGone": _("Engine ended"),
    "EngineSilent": _("Engine does not answer"),
    "EngineUnkillable": _("Engine does not end"),
    "GivenUp": _("Given up"),
    "InferenceFailed": _("Trial inference failed"),
    "InstanceMissing": _("MIG instance missing"),
    "InvalidConfig": _("Setting not valid"),
    "IsolationFailed": _("Isolation failed"),
    "LaunchFailed": _("Engine not started"),
    "LoadingTimeout": _("Loading took too long"),
    "MalformedAssignment": _("Malformed assignment"),
    "MpsUnavailable": _("No MPS on the node"),
    "NoAddress": _("No address"),
    "NoReplicaReady": _("No replica is ready"),
    "NoUserLeft": _("No user number left"),
    "NodeRemoved": _("Node removed"),
    "NotWanted": _("Not wanted"),
    "OutOfMemory": _("Out of memory"),
    "Placed": _("Placed"),
    "Preempted": _("Gave way to a higher priority"),
    "RankFailed": _("A rank failed"),
    "Reclaimed": _("Given back"),
    "ReplicaUnwell": _("A replica is in trouble"),
    "Retrying": _("Trying again"),
    "Simulated": _("Simulated"),
    "Stopped": _("Stopped"),
    "Stopping": _("Stopping"),
    "StoreFull": _("Artifact store full"),
    "Surplus": _("More than wanted"),
    "UnsupportedModel": _("Model not supported"),
    "UnsupportedOnDevice": _("Not supported on the device"),
    "UnsupportedPlacement": _("Placement not supported"),
    "Verifying": _("Trying an inference"),
    "WaitingForRanks": _("Waiting for ranks"),
    "WarmUpFailed": _("Warm-up failed"),
}

_VERSIONS: Final[dict[str, str | Promise]] = {
    "AmbiguousFormat": _("Format not clear"),
    "ArchiveRefused": _("Archive refused"),
    "CheckFailed": _("Check failed"),
    "CodeRefused": _("Code refused"),
    "DamagedFile": _("Damaged file"),
    "DuplicatePath": _("Path twice"),
    "FileTooLarge": _("File too large"),
    "MissingConfig": _("Config missing"),
    "MissingShard": _("Shard missing"),
    "MissingTensor": _("Tensor missing"),
    "MissingTokenizer": _("Tokenizer missing"),
    "MissingWeights": _("Weights missing"),
    "PickleRefused": _("Pickle refused"),
    "RemoteCodeRefused": _("Code refused"),
    "ShapeMismatch": _("Other shape"),
    "SizeMismatch": _("Other size"),
    "SplitGguf": _("Split GGUF file"),
    "UnexpectedFile": _("Unexpected file"),
    "UnknownFormat": _("Unknown format"),
    "UnsafePath": _("Unsafe path"),
    "UnsupportedActivation": _("Activation not supported"),
    "UnsupportedArchitecture": _("Architecture not supported"),
    "UnsupportedFormat": _("Format not supported"),
    "UnsupportedQuantization": _("Quantization not supported"),
    "UnsupportedRope": _("Rotary embedding not supported"),
    "UnsupportedTokenizer": _("Tokenizer not supported"),
    "UnsupportedType": _("Data type not supported"),
    "UnsupportedVariant": _("Variant not supported"),
    "UploadExpired": _("Upload expired"),
}

_FLEET: Final[dict[str, str | Promise]] = {
    "AgentRestarted": _("Agent restarted"),
    "Cordoned": _("Cordoned"),
    "DrainAsked": _("Drain asked for"),
    "Driver": _("Driver"),
    "EccCorrected": _("Memory errors, corrected"),
    "EccUncorrected": _("Memory errors, not corrected"),
    "FirstReport": _("First report"),
    "InstanceMissing": _("MIG instance missing"),
    "JoinedAgain": _("Joined again"),
    "LeaseExpired": _("Lease expired"),
    "Lost": _("GPU lost"),
    "MachineRestarted": _("Machine restarted"),
    "ManyNodesSilent": _("Many nodes silent"),
    "MassSilence": _("Many nodes silent"),
    "MemoryShrunk": _("Less memory than promised"),
    "NoNodes": _("No nodes"),
    "NodesAnswering": _("Nodes answer"),
    "NodesLost": _("Nodes lost"),
    "Nvlink": _("NVLink"),
    "Power": _("Power"),
    "ProblemReported": _("Problem reported"),
    "Quiet": _("Quiet again"),
    "RecoveryAction": _("Driver asks for a repair"),
    "RemapFailed": _("Row not remapped"),
    "RemapPending": _("Row waits to be remapped"),
    "Removed": _("Removed"),
    "Repaired": _("Repaired"),
    "Reported": _("Reported again"),
    "Retired": _("Retired"),
    "Returned": _("Returned"),
    "TakenOut": _("Taken out of service"),
    "Thermal": _("Heat"),
    "Uncordoned": _("Back in service"),
}

WORDS: Final[dict[str, str | Promise]] = {**reasons.WORDS, **_REPLICAS, **_VERSIONS, **_FLEET}
_XID: Final = re.compile(r"Xid(\d{1,4})")
_OVER: Final = "Over"


def coded(code: str) -> Coded:
    """``code`` as a page shows it."""
    if (get_language() or "en").startswith("en"):
        return Coded(code, True)
    if (found := _XID.fullmatch(code)) is not None:
        return Coded(f"Xid {found[1]}", False)
    if code in WORDS:
        return Coded(str(WORDS[code]), False)
    begun = code.removesuffix(_OVER)
    if begun != code and (found_word := coded(begun)).is_code is False:
        return Coded(gettext("%(what)s: over") % {"what": found_word.text}, False)
    return Coded(code, True)
