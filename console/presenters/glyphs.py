"""What every state looks like and is called: tone, word, shape. Status is never said by colour alone.

Tones are good, moving, attn, bad and rest.
"""

from typing import Final, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import pgettext_lazy

from console.presenters import shapes


class Glyph(NamedTuple):
    """What a state looks like and is called."""

    tone: str
    word: Promise | str
    markup: str


# The context of each word is its kind: "Ready" of a node and of a replica may differ in another language.
GLYPHS: Final[dict[str, dict[str, Glyph]]] = {
    "replica": {
        "pending": Glyph("rest", pgettext_lazy("replica", "Pending"), shapes.RING_DASHED),
        "assigned": Glyph("rest", pgettext_lazy("replica", "Assigned"), shapes.RING),
        "fetching": Glyph("moving", pgettext_lazy("replica", "Fetching"), shapes.QUARTER),
        "loading": Glyph("moving", pgettext_lazy("replica", "Loading"), shapes.HALF),
        "warming": Glyph("moving", pgettext_lazy("replica", "Warming"), shapes.THREE_QUARTERS),
        "ready": Glyph("good", pgettext_lazy("replica", "Ready"), shapes.DISC_TICK),
        "degraded": Glyph("attn", pgettext_lazy("replica", "Degraded"), shapes.DISC_MARK),
        "draining": Glyph("moving", pgettext_lazy("replica", "Draining"), shapes.RING_DOWN),
        "asleep": Glyph("rest", pgettext_lazy("replica", "Asleep"), shapes.MOON),
        "stopped": Glyph("rest", pgettext_lazy("replica", "Stopped"), shapes.RING_BAR),
        "unreachable": Glyph("attn", pgettext_lazy("replica", "Unreachable"), shapes.RING_STRUCK),
        "failed": Glyph("bad", pgettext_lazy("replica", "Failed"), shapes.DISC_CROSS),
    },
    "gpu": {
        "healthy": Glyph("good", pgettext_lazy("gpu", "Healthy"), shapes.GPU_HEALTHY),
        "suspect": Glyph("attn", pgettext_lazy("gpu", "Suspect"), shapes.GPU_SUSPECT),
        "quarantined": Glyph("bad", pgettext_lazy("gpu", "Quarantined"), shapes.GPU_QUARANTINED),
        "recovering": Glyph("moving", pgettext_lazy("gpu", "Recovering"), shapes.GPU_RECOVERING),
        "retired": Glyph("rest", pgettext_lazy("gpu", "Retired"), shapes.GPU_RETIRED),
    },
    "layout": {
        "waiting": Glyph("moving", pgettext_lazy("layout", "Waiting"), shapes.NODE_JOINING),
        "applying": Glyph("moving", pgettext_lazy("layout", "Being cut"), shapes.NODE_DRAINING),
        "applied": Glyph("good", pgettext_lazy("layout", "As wanted"), shapes.NODE_READY),
        "failed": Glyph("bad", pgettext_lazy("layout", "Failed"), shapes.NODE_LOST),
    },
    "node": {
        "joining": Glyph("moving", pgettext_lazy("node", "Joining"), shapes.NODE_JOINING),
        "ready": Glyph("good", pgettext_lazy("node", "Ready"), shapes.NODE_READY),
        "cordoned": Glyph("attn", pgettext_lazy("node", "Cordoned"), shapes.NODE_CORDONED),
        "draining": Glyph("moving", pgettext_lazy("node", "Draining"), shapes.NODE_DRAINING),
        "drained": Glyph("rest", pgettext_lazy("node", "Drained"), shapes.NODE_DRAINED),
        "lost": Glyph("bad", pgettext_lazy("node", "Lost"), shapes.NODE_LOST),
        "removed": Glyph("rest", pgettext_lazy("node", "Removed"), shapes.NODE_REMOVED),
    },
    "rollout": {
        "planned": Glyph("rest", pgettext_lazy("rollout", "Planned"), shapes.ROLLOUT_PLANNED),
        "running": Glyph("moving", pgettext_lazy("rollout", "Running"), shapes.ROLLOUT_RUNNING),
        "paused": Glyph("attn", pgettext_lazy("rollout", "Paused"), shapes.RING_PAUSE),
        "promoted": Glyph("good", pgettext_lazy("rollout", "Promoted"), shapes.ROLLOUT_PROMOTED),
        "rolling_back": Glyph("moving", pgettext_lazy("rollout", "Rolling back"), shapes.ROLLOUT_ROLLING_BACK),
        "rolled_back": Glyph("bad", pgettext_lazy("rollout", "Rolled back"), shapes.ROLLOUT_ROLLED_BACK),
        "aborted": Glyph("rest", pgettext_lazy("rollout", "Aborted"), shapes.ROLLOUT_ABORTED),
    },
    "experiment": {
        "running": Glyph("moving", pgettext_lazy("experiment", "Running"), shapes.ROLLOUT_RUNNING),
        "ended": Glyph("rest", pgettext_lazy("experiment", "Ended"), shapes.RING_TICK),
    },
    "version": {
        "uploading": Glyph("moving", pgettext_lazy("version", "Uploading"), shapes.VERSION_UPLOADING),
        "validating": Glyph("moving", pgettext_lazy("version", "Validating"), shapes.VERSION_VALIDATING),
        "ready": Glyph("good", pgettext_lazy("version", "Ready"), shapes.VERSION_READY),
        "rejected": Glyph("bad", pgettext_lazy("version", "Rejected"), shapes.VERSION_REJECTED),
        "archived": Glyph("rest", pgettext_lazy("version", "Archived"), shapes.VERSION_ARCHIVED),
    },
    "verdict": {
        "pass": Glyph("good", pgettext_lazy("verdict", "Pass"), shapes.RING_TICK),
        "fail": Glyph("bad", pgettext_lazy("verdict", "Fail"), shapes.RING_CROSS),
        "inconclusive": Glyph("attn", pgettext_lazy("verdict", "Inconclusive"), shapes.VERDICT_INCONCLUSIVE),
        "wait": Glyph("rest", pgettext_lazy("verdict", "Too little seen"), shapes.RING_DASHED),
    },
    "deployment": {
        "ready": Glyph("good", pgettext_lazy("deployment", "Ready"), shapes.DISC_TICK),
        "degraded": Glyph("attn", pgettext_lazy("deployment", "Degraded"), shapes.DISC_MARK),
        "progressing": Glyph("moving", pgettext_lazy("deployment", "Progressing"), shapes.HALF),
        "starting": Glyph("moving", pgettext_lazy("deployment", "Starting"), shapes.QUARTER),
        "pending": Glyph("attn", pgettext_lazy("deployment", "Waiting for a place"), shapes.RING_CLOCK),
        "failed": Glyph("bad", pgettext_lazy("deployment", "Failed"), shapes.DISC_CROSS),
        "idle": Glyph("rest", pgettext_lazy("deployment", "No replica wanted"), shapes.RING_BAR),
        "stopping": Glyph("moving", pgettext_lazy("deployment", "Stopping"), shapes.RING_DOWN),
        "stopped": Glyph("rest", pgettext_lazy("deployment", "Stopped"), shapes.RING_BAR),
        "deleting": Glyph("moving", pgettext_lazy("deployment", "Being deleted"), shapes.RING_DOWN),
        "none": Glyph("rest", pgettext_lazy("deployment", "No deployment"), shapes.RING_DASHED),
    },
    "condition": {
        "true": Glyph("good", pgettext_lazy("condition", "Yes"), shapes.DISC_TICK),
        "false": Glyph("attn", pgettext_lazy("condition", "No"), shapes.DISC_MARK),
        "failed": Glyph("bad", pgettext_lazy("condition", "No"), shapes.DISC_CROSS),
        "progressing": Glyph("moving", pgettext_lazy("condition", "In progress"), shapes.HALF),
        "unknown": Glyph("rest", pgettext_lazy("condition", "Unknown"), shapes.RING_DASHED),
    },
    "key": {
        "active": Glyph("good", pgettext_lazy("key", "Active"), shapes.DISC_TICK),
        "expires_soon": Glyph("attn", pgettext_lazy("key", "Expires soon"), shapes.RING_CLOCK),
        "expired": Glyph("rest", pgettext_lazy("key", "Expired"), shapes.RING_CLOCK),
        "revoked": Glyph("rest", pgettext_lazy("key", "Revoked"), shapes.RING_CROSS),
    },
    "member": {
        "active": Glyph("good", pgettext_lazy("member", "Active"), shapes.DISC_TICK),
        "disabled": Glyph("rest", pgettext_lazy("member", "Disabled"), shapes.RING_CROSS),
    },
    "tenant": {
        "active": Glyph("good", pgettext_lazy("tenant", "Active"), shapes.DISC_TICK),
        "suspended": Glyph("attn", pgettext_lazy("tenant", "Suspended"), shapes.RING_BAR),
    },
    "fit": {
        "fits": Glyph("good", pgettext_lazy("fit", "Fits"), shapes.RING_TICK),
        "limited": Glyph("attn", pgettext_lazy("fit", "Fits, limited"), shapes.RING_BAR),
        "does_not_fit": Glyph("bad", pgettext_lazy("fit", "Does not fit"), shapes.RING_CROSS),
    },
    "file": {
        "waiting": Glyph("rest", pgettext_lazy("file", "Waiting"), shapes.RING_DASHED),
        "hashing": Glyph("moving", pgettext_lazy("file", "Reading"), shapes.HALF),
        "uploading": Glyph("moving", pgettext_lazy("file", "Sending"), shapes.HALF),
        "checking": Glyph("moving", pgettext_lazy("file", "Checking SHA-256"), shapes.THREE_QUARTERS),
        "verified": Glyph("good", pgettext_lazy("file", "Verified"), shapes.RING_TICK),
        "paused": Glyph("attn", pgettext_lazy("file", "Paused"), shapes.RING_PAUSE),
        "refused": Glyph("bad", pgettext_lazy("file", "Refused"), shapes.RING_CROSS),
    },
    "service": {
        "up": Glyph("good", pgettext_lazy("service", "Answers"), shapes.DISC_TICK),
        "stale": Glyph("attn", pgettext_lazy("service", "Silent"), shapes.RING_CLOCK),
        "down": Glyph("bad", pgettext_lazy("service", "Does not answer"), shapes.DISC_CROSS),
    },
    "event": {
        "done": Glyph("good", pgettext_lazy("event", "Done"), shapes.RING_TICK),
        "changed": Glyph("moving", pgettext_lazy("event", "Changed"), shapes.HALF),
        "added": Glyph("moving", pgettext_lazy("event", "Added"), shapes.RING_PLUS),
        "removed": Glyph("rest", pgettext_lazy("event", "Removed"), shapes.RING_BAR),
        "failed": Glyph("bad", pgettext_lazy("event", "Failed"), shapes.DISC_CROSS),
        "attention": Glyph("attn", pgettext_lazy("event", "Needs a look"), shapes.DISC_MARK),
    },
}
UNKNOWN: Final = GLYPHS["condition"]["unknown"]


def of(kind: str, state: str) -> Glyph:
    """The glyph of ``state``; an unknown state is shown as unknown, under its own name, never hidden."""
    found = GLYPHS.get(kind, {}).get(state)
    return found or UNKNOWN._replace(word=state or UNKNOWN.word)
