"""Codes and faults as Chinese pages show them: nothing that the platform itself says stays in English."""

import ast
import re
from pathlib import Path

import pytest
from django.template import Context, Template
from django.utils import translation

from catalog.formats.facts import Reason as Rejection
from console.presenters import codewords, sentences
from fleet import faults
from runtime.wire.devices import HealthCode
from scheduling.feasible import Reason as Refusal

ROOMS = Path(__file__).resolve().parents[2] / "platform"
#: Names that stay what they are.
_NAMES = re.compile(r"\b(Xid|GPU|NVLink|MIG|HBM|CPU|GGUF|pickle|agent)\b")
_WORD = re.compile(r"[A-Za-z]{3,}")
#: Of replicas: reasons of agents and of the serving loop that stand in rows.
REPLICAS = (
    "Preempted", "Reclaimed", "NodeLost", "NodeRemoved", "NodeDraining", "DeviceFault", "Surplus", "Drained",
    "EngineExited", "EngineSilent", "OutOfMemory", "LoadingTimeout", "DeviceMissing", "DigestMismatch", "MakingRoom",
)  # fmt: skip


def left_in_english(text: str) -> list[str]:
    return _WORD.findall(_NAMES.sub("", text))


@pytest.mark.parametrize(
    "code",
    [*map(str, Rejection), *map(str, Refusal), *REPLICAS,
     *(faults.reason_of(code) for code in HealthCode if code != "xid")],
)  # fmt: skip
def test_a_code_has_words(code: str) -> None:
    with translation.override("zh-hans"):
        assert not codewords.coded(code).is_code
        assert left_in_english(codewords.coded(code).text) == []
    with translation.override("en"):
        assert codewords.coded(code) == (code, True)


def test_xids_and_ends_of_faults_are_read_from_the_code_and_what_nobody_knows_stays() -> None:
    with translation.override("zh-hans"):
        assert [codewords.coded(code).text for code in ("Xid79", "ThermalOver", "Xid", "torch.OutOfMemoryError")] == [
            "Xid 79", "过热：已解除", "Xid", "torch.OutOfMemoryError",
        ]  # fmt: skip


def test_a_page_keeps_the_code_in_reach() -> None:
    page = Template('{% load console %}{% code "Reclaimed" "ink-3" %}{% code unknown %}')
    with translation.override("zh-hans"):
        assert page.render(Context({"unknown": "boom<b>"})) == (
            '<span class="ink-3" title="Reclaimed">已交还</span><span class="mono">boom&lt;b&gt;</span>'
        )
    with translation.override("en"):
        assert page.render(Context()).startswith('<span class="mono ink-3">Reclaimed</span>')


def _rules() -> list[faults.Rule]:
    rules = [*faults.XIDS.values(), *faults.FACTS.values(), *faults.RECOVERY.values(), faults.UNKNOWN_XID]
    return [*rules, faults.rule_of("recovery_action", recovery_action="other"), faults.rule_of("other")]


def test_why_a_replica_moves_is_told_in_whole_for_every_fault() -> None:
    reasons = [f"Xid{code}" for code in (*faults.XIDS, 9999)]
    reasons += [faults.reason_of(code) for code in faults.FACTS] + ["RecoveryAction", "TakenOut", "Retired", "Repaired"]
    with translation.override("zh-hans"):
        told = [sentences.said(faults.for_tenants(reason)) for reason in reasons]
        told += [sentences.said(f"the driver reported Xid 48: it {rule.plain}.") for rule in _rules()]
        told += [sentences.said(f"An engine on it does not end even when killed: it {r.plain}.") for r in _rules()]
    assert [text for text, _known in told if left_in_english(text)] == []


def _rejections(module: str) -> list[str]:
    """What a checker says when it rejects a version, with a word for each part that changes."""
    tree = ast.parse((ROOMS / "catalog" / "formats" / module).read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) > 1]
    texts = [node.args[1] for node in calls if isinstance(node.func, ast.Name) and node.func.id == "Rejected"]
    return [_sampled(text) for text in texts if isinstance(text, ast.Constant | ast.JoinedStr)]


def _sampled(text: ast.expr) -> str:
    if isinstance(text, ast.Constant):
        return str(text.value)
    parts = text.values if isinstance(text, ast.JoinedStr) else []
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "x7" for part in parts)


@pytest.mark.parametrize(
    "module",
    [
        "content.py",
        "decoder.py",
        "gguf.py",
        "ggufheader.py",
        "jsonfiles.py",
        "onnx.py",
        "onnxheader.py",
        "safetensors.py",
    ],
)
def test_why_a_version_is_rejected_is_known(module: str) -> None:
    said = _rejections(module)
    assert said
    with translation.override("zh-hans"):
        assert [text for text in said if not sentences.said(text).is_translated] == []


#: Where a part of what damages a file is said by a word of the module itself.
_WORDED = {
    "tensor x7 x7": ("tensor x7 overlaps another one", "tensor x7 leaves a hole before it"),
    "the header describes x7 bytes and x7 are there: the file x7": (
        "the header describes x7 bytes and x7 are there: the file is cut off",
        "the header describes x7 bytes and x7 are there: the file has bytes that no tensor names",
    ),
}


def _damages(module: str) -> list[str]:
    """What exactly a reader finds wrong with a file, with a word for each part that changes."""
    tree = ast.parse((ROOMS / "catalog" / "formats" / module).read_text())
    found: list[str] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name.strip("_") in ("Malformed", "damaged", "lies", "unsupported"):
            text = node.args[-1]
            if isinstance(text, ast.Constant | ast.JoinedStr):
                found += _WORDED.get(_sampled(text), (_sampled(text),))
    return found


@pytest.mark.parametrize(
    "module",
    ["ggufheader.py", "huggingface.py", "jsonfiles.py", "onnx.py", "onnxheader.py", "protobuf.py", "safetensors.py"],
)
def test_what_exactly_damages_a_file_is_known(module: str) -> None:
    said = _damages(module)
    assert said
    with translation.override("zh-hans"):
        told = {text: sentences.said(f"m.onnx is damaged: {text}. Export the model again.").text for text in said}
    assert [text for text, whole in told.items() if text in whole or not whole.startswith("m.onnx 已损坏")] == []


def test_names_of_which_only_some_are_said_are_counted_in_the_visitors_language() -> None:
    with translation.override("zh-hans"):
        told = [
            sentences.said("Tenants are in the group lab: a1, a2 and 3 more. Take them out of it first.").text,
            sentences.said("Placed on NVIDIA H100 and 3 more of node mill-1 and mill-2.").text,
        ]
    assert "a1, a2 及另外 3 个" in told[0]
    assert "NVIDIA H100 及另外 3 个" in told[1]
    assert "mill-1 和 mill-2" in told[1]


def test_what_a_node_said_is_known_as_a_sentence_too() -> None:
    with translation.override("zh-hans"):
        assert sentences.said("The GPU answers again.") == ("GPU 恢复响应。", True)
        assert sentences.said("Boom went the engine.") == ("Boom went the engine.", False)


def test_what_gave_way_and_still_waits_is_told_in_whole() -> None:
    gave = "It gave its place back: it was above what is guaranteed to the tenant, and was claimed."
    why = "None of 2 devices can take it (2 DeviceTaken). Nearest, on node n: L4 belongs to one replica as a whole."
    with translation.override("zh-hans"):
        text, known = sentences.said(f"{gave} {why}")
    assert known
    assert text.startswith("它交还了位置")
    assert _WORD.findall(text) == []
