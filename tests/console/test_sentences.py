"""What the rooms say in English is said again in Chinese: every sentence that their loops and services write."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import translation

from console.presenters import placements, reasons, sentences
from console.tags.marks import plan_refusal
from scheduling import whynot
from scheduling.feasible import Reason
from scheduling.links import PCIE4, all_to_all
from scheduling.ranks import ModelFacts
from scheduling.whynot import Why
from serving import conditions
from serving.conditions import Facts
from serving.states import DeploymentState, ReplicaState

ROOMS = Path(__file__).resolve().parents[2] / "platform"
#: Modules whose sentences end up in rows that pages show. What they raise is said by its code.
WRITERS = (
    "serving/conditions.py", "serving/observing.py", "serving/reconcile/cycle.py", "serving/reconcile/plan.py",
    "rollouts/advance.py", "rollouts/decide.py", "rollouts/experiments.py", "rollouts/judge/verdict.py",
    "rollouts/perform.py", "rollouts/services.py", "fleet/care.py", "fleet/leases.py", "fleet/observation.py",
    "scheduling/feasible.py", "scheduling/answers.py", "scheduling/plan.py", "scheduling/giving_way.py",
)  # fmt: skip
#: Where a part is not any number.
SAMPLES = {
    "said": "ended", "asleep": "7 of them asleep until the next request", "here": "this is no MIG instance",
    "what": "available right now", "together": " over NVLink", "pairs": " in groups of 7",
}  # fmt: skip


def _written(path: Path) -> Iterator[tuple[int, str]]:
    """Sentences of a module, with a number for each part that changes; without docstrings and what is raised."""
    tree = ast.parse(path.read_text())
    left_out = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise | ast.Expr)
        for part in (ast.walk(node) if not isinstance(node, ast.Expr) else [node.value])
    }
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.JoinedStr):
            left_out |= {id(part) for part in node.values}
        text = _text(node)
        if len(text) > 12 and (text[0].isupper() or text[0].isdigit()) and text[-1] == "." and " " in text:
            yield getattr(node, "lineno", 0), text


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if not isinstance(node, ast.JoinedStr):
        return ""
    return "".join(_text(part) if isinstance(part, ast.Constant) else _sample(part) for part in node.values)


def _sample(part: ast.expr) -> str:
    source = ast.unparse(part.value) if isinstance(part, ast.FormattedValue) else ""
    return SAMPLES.get(source, "7 replicas" if source.startswith("counted(") else "7")


@pytest.mark.parametrize("module", WRITERS)
def test_every_sentence_of_a_row_is_known(module: str) -> None:
    with translation.override("zh-hans"):
        unknown = [f"{line}: {text}" for line, text in _written(ROOMS / module) if not sentences.said(text)[1]]
    assert not unknown


def test_the_walk_reads_sentences() -> None:
    found = [text for _line, text in _written(ROOMS / "serving/conditions.py")]
    assert "7 of 7 replicas serving." in found


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("Started by maya@harbor.example.", "由 maya@harbor.example 开始。"),
        ("Stopping; 1 replica still to finish.", "正在停止，还有 1 个副本待结束。"),
        ("No replica is ready yet; the first is loading.", "尚无副本就绪，最快的一个：加载中。"),
        ("50 % of the traffic goes to the candidate.", "候选的流量占比为 50%。"),
        (
            "Rolled back; the baseline has all the traffic. Failed: error rate 67.3 %, limit 1.0 % (what the baseline "
            "allows; baseline 0.0 %), over 55 requests.",
            "已回滚，全部流量回到基线。未通过：错误率 67.3%，上限 1.0%（基线允许的范围；基线 0.0%），共 55 个请求。",
        ),
        (
            "Waiting: the baseline answered 3 of the 40 requests that a verdict needs.",
            "等待中：判定需要 40 个请求，基线已回答 3 个。",
        ),
        (
            "None of 2 devices can take it (2 NodeLost). Nearest, on node mill-a: Needs 9 GiB of device memory; L4 "
            "has 3.5 GiB free of 24 GiB.",
            "2 个设备都放不下（节点无响应 2 个）。最接近的在节点 mill-a 上："
            "需要 9 GiB 显存；L4 空闲 3.5 GiB，共 24 GiB。",
        ),
        (
            "This needs 1 replica; the tenant's quota is 12, of which 18 is in use and 0 is left (its group has no "
            "more). Scale another deployment down or ask a platform admin for a larger quota.",
            "需要 1 个副本；租户配额为 12，已用 18，剩余 0（所属组已无余量）。"
            "可缩减其他部署，或联系平台管理员提高配额。",
        ),
        (
            "None of 4 devices can take it (1 DeviceUnhealthy, 3 InsufficientCpu). Nearest, on node mill-a: L4 GPU-1 "
            "is quarantined: no details",
            "4 个设备都放不下（设备异常 1 个、CPU 不足 3 个）。最接近的在节点 mill-a 上："
            "L4 GPU-1 状态为“已隔离”：无详细信息",
        ),
    ],
)
def test_a_sentence_is_said_with_its_parts(english: str, chinese: str) -> None:
    with translation.override("zh-hans"):
        assert sentences.said(english) == (chinese, True)
    with translation.override("en"):
        assert sentences.said(english) == (english, False)


def test_what_nobody_knows_stays_as_it_was_said() -> None:
    with translation.override("zh-hans"):
        assert sentences.said("CUDA error: out of memory") == ("CUDA error: out of memory", False)
        assert sentences.said("") == ("", False)
        assert not sentences.said("Started by " + "x" * 5000 + ".").is_translated


@pytest.mark.parametrize("state", list(ReplicaState))
@pytest.mark.parametrize("deployment", list(DeploymentState))
def test_conditions_of_a_deployment_are_all_said(state: ReplicaState, deployment: DeploymentState) -> None:
    health = conditions.health(deployment, 2, 1, [Facts(state, "", "Waiting for a place.")])
    with translation.override("zh-hans"):
        unknown = [one.message for one in health.conditions if not sentences.said(one.message).is_translated]
    assert not unknown


def _parts(text: str) -> str:
    return re.sub(r"%\((\w+)\)s", lambda found: {"plan": "TP4", "acts": "lower num_threads"}.get(found[1], "7"), text)


@pytest.mark.parametrize("clause", [*placements.ADVICE[2:], *placements.PLANS])
def test_what_would_help_is_said_by_its_own_pattern_alone_and_joined(clause: str) -> None:
    text = _parts(clause).replace("%%", "%")
    with translation.override("zh-hans"):
        alone = sentences.said(text)
        assert alone.is_translated
        joined = sentences.said(f"{text}; and node n1 reported again").text
    assert joined == f"{alone.text}；同时，节点 n1 重新上报"


@pytest.mark.parametrize("reason", [*Reason, *Why, "NoDevices", "NeedUnknown", "QuotaExceeded"])
def test_every_reason_has_words_in_both_languages(reason: str) -> None:
    with translation.override("en"):
        english = reasons.word(str(reason))
    with translation.override("zh-hans"):
        assert english != reasons.word(str(reason)) != str(reason) != english


def _model(**facts: int | bool) -> ModelFacts:
    sizes = {"weights_bytes": 1, "layers": 4, "heads": 8, "kv_heads": 8, "head_dim": 8, "hidden_size": 64}
    return ModelFacts(**{**sizes, **facts})  # type: ignore[arg-type]  # sizes are ints, one fact is a bool


@pytest.mark.parametrize(
    "refused",
    [
        whynot.tensor(_model(), 3),
        whynot.tensor(_model(heads=6, kv_heads=4), 3),
        whynot.tensor(_model(inner_size=7), 2),
        whynot.tensor(_model(expert_size=768, block=128), 4),
        whynot.experts(0, tp=1, ep=2),
        whynot.experts(8, tp=1, ep=3),
        whynot.experts(8, tp=8, ep=4),
        whynot.stages(_model(), 5, PCIE4),
        whynot.stages(_model(), 2, None),
        whynot.stages(_model(stages_supported=False), 2, PCIE4),
        whynot.reach(8, 4, node=True),
        whynot.reach(8, 4, node=False),
        whynot.tensor_over(_model(), 2, PCIE4),
        whynot.apart(8, "NVIDIA H100 80GB HBM3", 1),
        whynot.experts_over(all_to_all(4, 2, 2, 64, 2, 2, PCIE4)),
        whynot.too_large(1 << 30, 2 << 30, 1 << 30, 0, 1),
        whynot.too_large(9 << 30, 2 << 30, 1 << 30, 5, 8),
    ],
    ids=lambda refused: refused.sentence[:40],
)
def test_what_stands_against_a_plan_is_said(refused: whynot.Refused) -> None:
    with translation.override("zh-hans"):
        assert sentences.said(refused.sentence).is_translated
        assert sentences.said(f"TP4: {refused.sentence}.").is_translated
        assert plan_refusal(refused.sentence, refused.code.value) == sentences.said(refused.sentence).text
        unknown = str(plan_refusal("what nobody has said yet", refused.code.value))
    assert unknown.endswith(' (<span lang="en">what nobody has said yet</span>)')
    assert not unknown.startswith(refused.code.value)
