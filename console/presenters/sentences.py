"""Sentences of the rooms in the visitor's language.

Rooms keep what they say in English: in rows, in logs, in answers of REST. Here every such sentence stands as a pattern,
with the same words and a name for each part that changes; what is recognised is said again in the language of the page.
What is not (an engine's own words, a driver's) stays as it is, for the page to mark as English. Order matters: of two
patterns that fit, the first is taken.
"""

import functools
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from django.utils.translation import get_language, gettext, pgettext
from django.utils.translation import gettext_noop as _

from console.presenters import glyphs, reasons
from console.presenters.damages import DETAILS
from console.presenters.faulted import FAULTS
from console.presenters.placements import ADVICE, COUNTED, PLACES, PLANS
from console.presenters.rejections import REJECTIONS


class Said(NamedTuple):
    """``is_translated`` is false where ``text`` is the room's own English."""

    text: str
    is_translated: bool


_SERVING: Final = (
    _("%(ready)s of %(total)s replicas serving."),
    _("The quota suffices."),
    _("No replica reports a problem."),
    _("Being deleted; %(count)s replicas still to stop."),
    _("Stopping; %(count)s replicas still to finish."),
    _("Stopped by a member."),
    _("No replica is wanted."),
    _("%(count)s of %(total)s replicas in trouble: %(why)s"),
    _("%(ready)s of %(total)s replicas ready, %(count)s of them asleep until the next request."),
    _("%(ready)s of %(total)s replicas ready, %(count)s in trouble: %(why)s"),
    _("%(ready)s of %(total)s replicas ready; more are on their way."),
    _("%(ready)s of %(total)s replicas ready."),
    _("No replica is ready yet; the first is %(state)s."),
    _("Waiting for a place."),
    _("The engine ended; its node starts it again."),
    _("The engine is not there any more; its node starts it again."),
    _("The engine has ended; its node starts it again."),
    _("The engine is ready, but its node reports no address for it."),
    _("Ranks on node %(node)s are not ready yet (%(phase)s)."),
    _("Stopped; its node has confirmed it."),
    _("Its node is silent. It gets no traffic; what it holds stays taken until the node reports or is removed."),
    _("One of its nodes is silent; what others run of it ends, and a successor takes its place."),
    _("It had failed before its node fell silent; the node has ended it."),
    _("Its node was removed from the fleet."),
    _("Its node is being drained."),
    _("One replica less is wanted."),
    _("More replicas run than are wanted; this one ends."),
    _("The deployment is being deleted."),
    _("Trying again after a failure."),
    _("The model answers."),
    _("The model is starting; try again in a moment."),
    _("The model waits for a place on a device. Its owner can see why."),
    _("The model is not answering now. Its owner can see why."),
    _("The model is switched off: no replica is wanted."),
    _("The model is being stopped by its owner."),
    _("The model was stopped by its owner."),
    _("The model is being deleted by its owner."),
    _("By %(who)s."),
)

_ROLLOUTS: Final = (
    _("Started by %(who)s."),
    _("Paused by %(who)s."),
    _("Paused. %(why)s"),
    _("Resumed by %(who)s; the step is held anew."),
    _("Promoted by %(who)s."),
    _("%(who)s promotes: on to the last step, without judging."),
    _("On to the last step, without judging."),
    _("Aborted by %(who)s; the shares stay as they are."),
    _("Aborted. %(why)s"),
    _("Ended by %(who)s."),
    _("Asked for by %(who)s."),
    _("Rolling back. %(why)s"),
    _("Rolled back; the baseline has all the traffic. %(why)s"),
    _("All steps passed; the candidate is the new baseline."),
    _("The old baseline was kept long enough; it ends."),
    _("The %(side)s gets %(count)s replicas."),
    _("%(share)s %% of the traffic goes to the candidate."),
    _("Step %(step)s of %(total)s begins."),
    _("The %(side)s was stopped by somebody else."),
    _("The %(side)s was deleted."),
    _("The candidate has %(ready)s of %(total)s replicas ready after %(seconds)s s."),
    _("No replica of the candidate is ready any more."),
    _("Holding; %(count)s requests seen, nothing is worse."),
    _("Waiting: the %(side)s answered %(seen)s of the %(count)s requests that a verdict needs."),
    _("Not clear: the %(side)s answered %(seen)s of the %(count)s requests that a verdict needs."),
    _("Waiting for more requests: %(why)s"),
    _("Needs %(count)s replicas more than now at the peak (%(size)s of device memory)."),
    _("Needs %(count)s replicas more than now at the peak (%(size)s of device memory). That is not free now. %(why)s"),
    _("Needs no more devices than now."),
    _("The baseline has one replica; there is nothing to squeeze."),
)

_JUDGE: Final = (
    _("Passed: %(why)s"),
    _("Failed: %(why)s"),
    _("Not clear: %(why)s This may be chance."),
    _("%(measure)s %(value)s, limit %(limit)s (%(source)s), over %(count)s requests."),
    _("the objective"),
    _("what the baseline allows"),
    _("the objective; baseline %(value)s"),
    _("what the baseline allows; baseline %(value)s"),
    _("error rate"),
    _("share of unusually short answers"),
    _("share of unusually long answers"),
)

_FLEET: Final = (
    _("Taken out of service by %(who)s."),
    _("Retired by %(who)s."),
    _("Taken back by %(who)s."),
    _("Removed by %(who)s."),
    _("The node's last report does not list this device."),
    _("The node reports the device as well again."),
    _("The node reports it as well."),
    _("The device reports %(size)s bytes, but %(held)s are promised to replicas."),
    _("No fault for a while."),
    _("It answers again after a repair; nothing is placed on it for %(span)s more."),
    _("An engine on it does not end even when killed: it %(why)s."),
    _("Its GPU %(why)s, so this replica is replaced on another one."),
    _("The node has been silent since %(at)s; its replicas get no traffic until it reports."),
    _(
        "%(silent)s of %(total)s nodes fell silent at about the same time. That points at the control plane "
        "or the network, so nothing is declared lost and nothing is moved."
    ),
    _("Nodes fall silent one by one, or not at all."),
    _("No node has joined yet."),
    _("%(ready)s nodes ready, %(lost)s lost."),
    _("The node reports for work."),
    _("The node reports again."),
    _("The machine joined with a new token."),
    _("The machine was started again."),
    _("The agent was started again."),
    _("Nothing new is placed here."),
    _("In service again."),
    _("Replicas stop now."),
    _("Replicas are moving; each stops when its successor elsewhere is ready."),
    _("Nothing runs here; the node can be taken out."),
)

_QUOTAS: Final = (
    _("%(needed)s %(counted)s cannot be guaranteed: the limit is %(limit)s."),
    _("%(needed)s %(counted)s would be guaranteed in the group %(name)s; it may hold %(limit)s."),
    _("Guaranteed to tenants of the group %(name)s: %(needed)s %(counted)s. A limit of %(limit)s could not keep that."),
    _(
        "The group %(name)s may hold %(needed)s %(counted)s, so no tenant in it can be guaranteed all that its own "
        "limit allows. Name a number as the guarantee; 0 guarantees nothing."
    ),
    _(
        "Tenants of the group %(name)s are guaranteed all that their own limit allows: %(names)s. Name a number as the "
        "guarantee of each before the group gets a limit of GPUs."
    ),
    _(
        "Tenants of the group %(name)s are guaranteed all that their own limit allows: %(names)s. Name a number as the "
        "guarantee of each before the group gets a limit of device memory."
    ),
    _("Use 1 to 40 lower-case letters, digits and hyphens; begin with a letter or digit."),
    _("Tenants are in the group %(name)s: %(names)s. Take them out of it first."),
)

_UPLOADS: Final = (
    _("Nothing was sent for too long."),
    _("It was not finished in time. Make a new version, upload its files and finalize it."),
    _("Its version was deleted."),
    _("The version takes no more files."),
    _("No engine here runs %(name)s models. The version is kept, and what it needs of a device is known."),
    _(
        "The file states the shapes of few of the values between its nodes, so the workspace is a guess. Run ONNX "
        "shape inference (onnx.shape_inference.infer_shapes_path) on it and upload the result as a new version."
    ),
)
#: What checks say of a config.json, after an upload and before one.
_MODELS: Final = (
    _("%(first)s Its size cannot be told from config.json either: %(why)s"),
    _("it has several parts. Give the text_config of it alone."),
    _("it is no decoder that goes on with a text."),
    _("some of its layers are no attention."),
    _("its MLPs have no gate."),
    _("its dense layers and those with experts are of sizes of their own."),
    _("it has experts, but their number stands under none of %(names)s."),
    _(
        "The architecture is not stated and is not served here: it keeps keys and values compressed (multi-head latent "
        "attention), which no engine here computes. Served are: %(names)s."
    ),
    _("The architecture is not stated and is not served here. Served are: %(names)s."),
    _(
        "The architecture %(name)s is not served here: it keeps keys and values compressed (multi-head latent "
        "attention), which no engine here computes. Served are: %(names)s."
    ),
    _("The architecture %(name)s is not served here. Served are: %(names)s."),
    _("The weights are quantized in a way that is not served. Upload the original weights, or a GGUF file."),
    _("The activation %(what)s is not served, only %(names)s. Choose another model."),
    _("config.json sets %(what)s, which is not served. Choose another model."),
    _("The rotary embedding %(what)s is not served, only %(names)s. Choose another model."),
    _(
        "%(name)s asks for code that comes with the model (auto_map). Uploaded code is never run: use a version of the "
        "model that transformers supports by itself, and remove auto_map."
    ),
    _("%(name)s: %(what)s is missing; it has to be a whole number from %(low)s to %(high)s. Export the model again."),
    _("%(name)s: %(what)s is %(told)s; it has to be a whole number from %(low)s to %(high)s. Export the model again."),
    _("%(name)s: %(heads)s attention heads cannot share %(kv_heads)s key/value heads. Export it again."),
    _("%(name)s: a token cannot visit %(visited)s of %(experts)s experts. Export it again."),
    _("%(name)s: %(what)s is not an object. Export the model again."),
    _("%(name)s: mlp_only_layers is no list of numbers. Export it again."),
    _("config.json makes a model of %(told)s parameters; at most %(most)s can be. Export it again."),
    _("A config.json has at most %(most)s bytes here."),
    _("This is no JSON (%(told)s). Take the whole config.json of the model."),
    _("This is no JSON object. Take the whole config.json of the model."),
)
#: What a part looks like where anything at all would take too much or too little.
_PART: Final = {
    "value": r"[\d.,]+(?: \S+)?", "xid": r"\d+", "why": r".*?", "plan": r"(?:one device|[TPE]P\d+[^:]*)",
    "health": "|".join(glyphs.GLYPHS["gpu"]), "counted": "|".join(f"{text}s?" for text in COUNTED), "above": r".*?",
}  # fmt: skip
_SAID_AGAIN: Final = ("why", "span", "source", "measure", "first", "rest", "plan", "above", "remedy")
_PERCENT: Final = re.compile(r"([\d.,]+) %")
_MORE: Final = re.compile(r"(.+) and (\d+) more")
MAX_LENGTH: Final = 2000


def said(sentence: str) -> Said:
    """``sentence`` of a room, in the language of the visitor where it is one that is known."""
    language = get_language() or "en"
    if language.startswith("en") or len(sentence) > MAX_LENGTH:
        return Said(sentence, False)
    return _said(sentence, language)


@functools.lru_cache(maxsize=2048)
def _said(sentence: str, _language: str) -> Said:
    if known := _among(_patterns(), sentence):
        return Said(known, True)
    if sentence.endswith(".") and sentence[:1].isupper():  # what a node said, made a sentence of
        fact = _said(f"{sentence[0].lower()}{sentence[1:-1]}", _language)
        return Said(gettext("%(fact)s.") % {"fact": fact.text}, True) if fact.is_translated else Said(sentence, False)
    return Said(sentence, False)


def _among(patterns: tuple[tuple[re.Pattern[str], str], ...], sentence: str) -> str:
    """What the first of ``patterns`` that fits says; "" where none does."""
    for pattern, text in patterns:
        if match := pattern.fullmatch(sentence):
            return gettext(text) % {name: _part(name, part) for name, part in match.groupdict().items()}
    return ""


def _part(name: str, text: str) -> str:
    if name in _SAID_AGAIN:
        return said(text).text
    if name == "detail":
        return _among(_details(), text) or text
    if name in ("device", "names", "node"):
        return _listed(text)
    if name == "side":
        return gettext(text)
    if name == "acts":
        return gettext(", or ").join(said(each).text for each in text.split(", or "))
    if name == "reasons":
        return gettext(", ").join(_counted(each) for each in text.split(", "))
    if name == "state":
        return str(glyphs.of("replica", text).word)
    if name == "counted":
        return str(COUNTED[text.removesuffix("s")])
    if name == "health":
        return str(glyphs.of("gpu", text).word)
    if match := _PERCENT.fullmatch(text):
        return pgettext("percent, with the space the language wants", "%(number)s %%") % {"number": match[1]}
    return text


def _listed(text: str) -> str:
    """Names of which only the first are said, or the last of which is joined by a word."""
    if match := _MORE.fullmatch(text):
        return gettext("%(names)s and %(count)s more") % {"names": _listed(match[1]), "count": match[2]}
    first, joined, rest = text.partition(" and ")
    return gettext("%(first)s and %(rest)s") % {"first": first, "rest": rest} if joined else text


def _counted(text: str) -> str:
    """``14 NodeLost``: how many devices refuse, and the code."""
    count, _space, code = text.partition(" ")
    return gettext("%(count)s × %(what)s") % {"count": count, "what": reasons.word(code)}


@functools.cache
def _details() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple(_compiled(DETAILS))


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    rooms = (
        *_SERVING,
        *_ROLLOUTS,
        *_JUDGE,
        *_FLEET,
        *PLACES,
        *PLANS,
        *_UPLOADS,
        *_MODELS,
        *_QUOTAS,
        *REJECTIONS,
        *FAULTS,
    )
    # A pattern that begins with any words at all would take the beginning of a longer sentence for its part.
    return tuple(_compiled((*ADVICE, *sorted(rooms, key=lambda text: text.startswith("%(")))))


def _compiled(texts: tuple[str, ...]) -> Iterator[tuple[re.Pattern[str], str]]:
    for text in texts:
        parts = re.split(r"%\((\w+)\)s", text.replace("%%", "%"))
        found = "".join(
            f"(?P<{part}>{_PART.get(part, '.+?')})" if index % 2 else _either_number(re.escape(part))
            for index, part in enumerate(parts)
        )
        yield re.compile(found, re.DOTALL), text


def _either_number(words: str) -> str:
    """One replica, two replicas: the room counts them."""
    return re.sub(r"(replica|request|node)s", r"\1s?", words)
