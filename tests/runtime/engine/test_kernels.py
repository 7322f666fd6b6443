"""The C kernels against torch, the torch paths that stand in for them, and that no row feels its neighbours."""

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from runtime.engine.causal import attention, loader, measure
from runtime.engine.causal.linear import NativeLinear
from runtime.engine.causal.model import Decoder
from runtime.engine.causal.quantized import Int8Linear
from runtime.engine.formats.opening import open_model
from runtime.engine.kernels import build, library
from tests.benchmarks.engine_limits import perplexity
from tests.build.engines import ROOT, LocalEngine
from tests.build.models import tiny_llama

pytestmark = pytest.mark.engine

BLOCK = 4
BLOCKS = (BLOCK, 16, 32)  # less than a vector, one, two
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("LlamaForCausalLM", {}),
    "window": ("MistralForCausalLM", {"sliding_window": 70}),
    "norms": ("Qwen3ForCausalLM", {"num_attention_heads": 8, "head_dim": 32}),
    "biases": ("Qwen2ForCausalLM", {"tie_word_embeddings": False}),
}


def kernels() -> library.Library:
    found = library.load()
    if found is None:
        pytest.skip("there is no C compiler")
    return found


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load", lambda: None)


def load(folder: Path, *, int8: bool = False) -> Decoder:
    source = open_model(folder, "huggingface")
    model = loader.load(
        source,
        dtype=torch.float32,
        device=torch.device("cpu"),
        quantization="int8" if int8 else "none",
        progress=lambda _share: None,
    )
    model.rope.resize(source.config.max_positions)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("variants")
    return {
        name: tiny_llama(base / name, architecture=architecture, **overrides)
        for name, (architecture, overrides) in VARIANTS.items()
    }


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[tuple[str, bool], Decoder]:
    kernels()
    return {(name, int8): load(path, int8=int8) for name, path in folders.items() for int8 in (False, True)}


def prompt(number: int, length: int) -> list[int]:
    return [(7 * number + 13 * at) % 300 for at in range(length)]


def run(model: Decoder, lengths: Seq[int], cuts: Seq[Seq[int]], block: int = BLOCK) -> list[Tensor]:
    """Logits after the last token of each sequence; in step n, sequence i computes ``cuts[n][i]`` tokens (0: none)."""
    each = -(-max(lengths) // block)
    cache = measure.new_cache(model, each * block * len(lengths))
    done, rows = [0] * len(lengths), [torch.empty(0)] * len(lengths)
    for step in cuts:
        active = sorted((i for i, count in enumerate(step) if count), key=lambda i: (step[i] > 1, done[i]))
        work = [
            (prompt(i, lengths[i])[done[i] : done[i] + step[i]], done[i], list(range(i * each, (i + 1) * each)))
            for i in active
        ]
        picks = np.cumsum([step[i] for i in active]) - 1
        with torch.inference_mode():
            logits = model.logits(model.forward(attention.layout(work, picks.tolist(), block_tokens=block), cache))
        for row, i in enumerate(active):
            done[i] += step[i]
            rows[i] = logits[row]
    assert done == list(lengths)
    return rows


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
def test_the_kernels_do_what_torch_does(
    name: str,
    int8: bool,
    folders: dict[str, Path],
    models: dict[tuple[str, bool], Decoder],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native = models[name, int8]
    assert native.program is not None
    without_kernels(monkeypatch)
    plain = load(folders[name], int8=int8)
    assert plain.program is None
    long = 200 if int8 else 500  # several tiles; in int8 each token adds what is rounded the other way
    lengths = (long, 3, 77)
    cuts = ((long - 70, 2, 64), (69, 0, 12), (1, 1, 1))
    expected = run(plain, lengths, cuts)
    for block in BLOCKS:
        for ours, theirs in zip(run(native, lengths, cuts, block), expected, strict=True):
            # where int8 rounds the other way, one unit of the scale is the difference
            tolerance = 0.05 if int8 else 1e-4
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(VARIANTS)),
    int8=st.booleans(),
    mates=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    length=st.integers(2, 300),
    first=st.integers(1, 299),
    threads=st.integers(1, 4),
    block=st.sampled_from(BLOCKS),
)
def test_a_row_is_the_same_bit_for_bit_beside_anybody_and_however_it_is_cut(
    models: dict[tuple[str, bool], Decoder],
    name: str,
    int8: bool,
    mates: list[int],
    length: int,
    first: int,
    threads: int,
    block: int,
) -> None:
    model = models[name, int8]
    alone = run(model, (length,), ((length,),), block)[0]
    cut = min(first, length - 1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = run(model, (length, *mates), ((cut, *mates), (length - cut, *[0] * len(mates))), block)[0]
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, together)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_crowd_of_single_rows_is_as_each_alone(
    name: str, int8: bool, block: int, models: dict[tuple[str, bool], Decoder]
) -> None:
    model = models[name, int8]
    lengths = tuple(range(3, 150, 10))  # more rows than one register block has
    expected = [run(model, (length,), ((length,),), block)[0] for length in lengths[:1]]
    before = tuple(length - 1 for length in lengths)
    together = run(model, lengths, (before, (1,) * len(lengths)), block)
    at_once = run(model, lengths, (lengths,), block)
    assert torch.equal(together[0], expected[0])
    for ours, theirs in zip(together, at_once, strict=True):
        assert torch.equal(ours, theirs)


def test_the_time_of_a_step_is_told_by_operation(models: dict[tuple[str, bool], Decoder]) -> None:
    model = models["plain", False]
    assert model.program is not None
    batch = attention.layout([(prompt(0, 40), 0, list(range(10)))], [39], block_tokens=BLOCK)
    spent = model.program.times(batch, measure.new_cache(model, 40))
    assert {library.LINEAR, library.ATTEND, library.NORM, library.ROPE, library.BEST, library.EMBED} <= set(spent)
    assert all(nanoseconds >= 0 for nanoseconds in spent.values())
    assert spent[library.LINEAR] > 0


@pytest.mark.parametrize("rows", [1, 13, 130, 700])
@pytest.mark.parametrize(("outputs", "inputs", "bias"), [(7, 5, True), (97, 200, True), (130, 576, False)])
def test_products_of_any_shape(rows: int, outputs: int, inputs: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(rows * outputs)
    weight = torch.randn((outputs, inputs), generator=generator)
    x = torch.randn((rows, inputs), generator=generator)
    added = torch.randn(outputs, generator=generator) if bias else None
    exact = functional.linear(x, weight, added)
    single = NativeLinear(kernels(), library.Arena(), weight, added, int8=False)
    torch.testing.assert_close(single(x), exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(single.rows(torch.tensor([0, outputs - 1])), weight[[0, -1]])
    packed = NativeLinear(kernels(), library.Arena(), weight, added, int8=True)
    spare = Int8Linear(weight, added)
    torch.testing.assert_close(packed(x), spare(x), rtol=1e-3, atol=inputs**0.5 * 0.05)
    assert float((packed(x) - exact).norm() / exact.norm()) < 0.02
    assert float((spare(x) - exact).norm() / exact.norm()) < 0.02
    torch.testing.assert_close(packed.rows(torch.tensor([outputs - 1])), weight[[-1]], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
def test_what_is_not_finite_stays_so_and_stays_alone(int8: bool) -> None:
    linear = NativeLinear(kernels(), library.Arena(), torch.randn((64, 300)), None, int8=int8)
    x = torch.randn((5, 300))
    clean = linear(x)
    for value in (float("nan"), float("inf")):
        broken = x.clone()
        broken[2, 250] = value
        got = linear(broken)
        assert not torch.isfinite(got[2]).any()
        assert torch.equal(got[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])


def test_the_best_token_is_the_first_of_the_largest(models: dict[tuple[str, bool], Decoder]) -> None:
    program = models["plain", False].program
    assert program is not None
    logits = torch.randn((6, models["plain", False].config.vocab_size))
    logits[1, 5] = logits[1, 9] = 50.0
    logits[2, -1] = 60.0
    logits[3, 7] = float("nan")
    logits[4, 8] = float("-inf")
    best, finite = program.best(logits)
    assert finite == [True, True, True, False, False, True]
    assert [best[row] for row in (0, 1, 2, 5)] == [
        int(logits[0].argmax()),
        5,
        logits.shape[1] - 1,
        int(logits[5].argmax()),
    ]


@pytest.mark.parametrize("int8", [False, True], ids=["float32", "int8"])
def test_the_best_of_a_product_is_found_without_its_outputs(int8: bool) -> None:
    outputs, inputs, rows = 97, 64, 15  # the last panel is not full: what pads it is 0, more than every output
    weight = -torch.rand((outputs, inputs), generator=torch.Generator().manual_seed(3)) - 0.5
    weight[[5, 40, 90]] = -0.25  # the same largest output in three panels
    x = torch.rand((rows, inputs), generator=torch.Generator().manual_seed(4)) + 0.1
    x[3] *= -1.0
    x[6, 1], x[9, 2] = float("nan"), float("inf")
    found = kernels()
    packed = NativeLinear(found, library.Arena(), weight, None, int8=int8).packed
    matrix = ctypes.pointer(packed.struct)
    ops = [library.Op(kind=library.QUANTIZE, in_=0, n=inputs)] if int8 else []
    ops.append(library.Op(kind=library.LINEAR, in_=0, out=1, weight=matrix, flags=library.ONLY_BEST))
    ops.append(library.Op(kind=library.BEST, in_=1, weight=matrix))
    program = library.Program(found, ops, [inputs, 2 * outputs], quantized_width=inputs if int8 else 0)
    program.reserve(rows, frozenset((0,)))
    best, finite = np.empty(rows, np.int32), np.empty(rows, np.uint8)
    step = library.Step(rows=rows, argmax=best.ctypes.data, finite=finite.ctypes.data)
    program.run(step, 2, {0: x.data_ptr()})
    assert finite.tolist() == [row not in (6, 9) for row in range(rows)]
    expected = NativeLinear(found, library.Arena(), weight, None, int8=int8)(x).argmax(dim=-1)
    assert int(expected[3]) not in (5, 40, 90)
    assert [best[row] for row in range(rows) if row not in (6, 9)] == [
        5 if row != 3 else int(expected[3]) for row in range(rows) if row not in (6, 9)
    ]


def test_gates_and_their_ups_are_multiplied_where_they_are_computed() -> None:
    found = kernels()
    half, inputs, rows = 5 * found.lanes, 70, 29
    generator = torch.Generator().manual_seed(5)
    weight, bias = torch.randn((2 * half, inputs), generator=generator), torch.randn(2 * half, generator=generator)
    x = torch.randn((rows, inputs), generator=generator)
    linear = NativeLinear(found, library.Arena(), weight, bias, int8=False, interleaved=True)
    exact = functional.linear(x, weight, bias)
    torch.testing.assert_close(linear(x), exact, rtol=1e-4, atol=1e-4)  # a call by itself has them in their own order
    op = library.Op(kind=library.LINEAR, in_=0, out=1, flags=library.GATED, act=library.SILU)
    op.weight = ctypes.pointer(linear.packed.struct)
    program = library.Program(found, [op], [inputs, half], quantized_width=0)
    program.reserve(rows, frozenset((0,)))
    program.run(library.Step(rows=rows), 2, {0: x.data_ptr()})
    wanted = functional.silu(exact[:, :half]) * exact[:, half:]
    torch.testing.assert_close(torch.from_numpy(program.buffer(1, rows)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("token", "position"), [(10**6, 0), (-1, 0), (1, 10**6)])
def test_what_the_model_does_not_have_is_an_error(
    models: dict[tuple[str, bool], Decoder], token: int, position: int
) -> None:
    model = models["plain", False]
    batch = attention.layout([([token], position, [0] * (position // BLOCK + 1))], [0], block_tokens=BLOCK)
    with pytest.raises(IndexError):
        model.forward(batch, measure.new_cache(model, BLOCK))


def test_callers_in_several_threads_do_not_mix(models: dict[tuple[str, bool], Decoder]) -> None:
    model = models["norms", False]
    expected = {length: run(model, (length,), ((length,),))[0] for length in (5, 60, 120)}
    linear = NativeLinear(kernels(), library.Arena(), torch.randn((64, 64)), None, int8=False)
    x = torch.randn((9, 64))
    product, wrong = linear(x), []

    def multiply() -> None:
        for _ in range(200):
            if not torch.equal(linear(x), product):
                wrong.append("product")

    other = threading.Thread(target=multiply)
    other.start()
    for _ in range(5):
        for length, logits in expected.items():
            assert torch.equal(run(model, (length,), ((length,),))[0], logits)
    other.join()
    assert not wrong


def test_int8_costs_little_in_quality(folders: dict[str, Path], models: dict[tuple[str, bool], Decoder]) -> None:
    source = open_model(folders["norms"], "huggingface")
    text = "the mill stands by the water and the water turns the wheel " * 12
    exact, rounded = (perplexity(models["norms", int8], source, text, window=128) for int8 in (False, True))
    assert abs(rounded / exact - 1) <= 0.03
    assert rounded != exact
    assert models["norms", True].weights_bytes < models["norms", False].weights_bytes / 2


def test_an_engine_without_kernels_answers_the_same(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    kernels()
    answers = []
    for spare in (False, True):
        if spare:
            without_kernels(monkeypatch)
        engine = LocalEngine(folders["plain"])
        assert (engine.model.program is None) is spare
        pending = [engine.submit(prompt(number, 10 + 3 * number), 20) for number in range(5)]
        answers.append([item.tokens() for item in pending])
        engine.engine.stop()
    assert answers[0] == answers[1]


def test_the_library_is_compiled_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels()
    monkeypatch.setenv(build.CACHE_ENV, str(tmp_path / "cache"))
    first = build.library_path()
    assert first is not None
    assert first.parent == tmp_path / "cache" / "kernels"
    assert first.parent.stat().st_mode & 0o077 == 0
    stamp = first.stat().st_mtime_ns
    assert build.library_path() == first
    assert first.stat().st_mtime_ns == stamp
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    first.chmod(0o777)  # somebody else could have written it
    again = build.library_path()
    assert again == first
    assert again.stat().st_mtime_ns != stamp


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_all = tmp_path / "kernels"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv(build.CACHE_ENV, str(tmp_path))
    used = build.private_folder("kernels")
    assert used != open_to_all
    assert used.stat().st_mode & 0o077 == 0


def test_without_a_working_compiler_there_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(build.CACHE_ENV, str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.library_path() is None
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    broken.chmod(0o755)
    assert build.library_path() is None
    assert list((tmp_path / "cache" / "kernels").iterdir()) == []
    monkeypatch.setenv(build.SWITCH_ENV, "off")
    assert build.library_path() is None


def test_a_model_that_was_read_before_needs_no_transformers(folders: dict[str, Path], tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from runtime.engine.formats.opening import open_model\n"
        "source = open_model(pathlib.Path(sys.argv[1]), 'huggingface')\n"
        "tokens = source.tokenizer.encode('the mill <|im_end|>', special=True)\n"
        "print('transformers' in sys.modules, source.config.rms_eps, source.config.windows, tokens, "
        "sorted(source.eos_ids), source.chat_template)\n"
    )
    shown = [
        subprocess.run(
            [sys.executable, "-c", code, str(folders["window"])],
            cwd=ROOT,
            env={**os.environ, build.CACHE_ENV: str(tmp_path), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(3)
    ]
    assert shown[0].startswith("True ")
    assert shown[1].startswith("False ")
    assert shown[0].removeprefix("True ") == shown[1].removeprefix("False ")
    assert shown[2] == shown[1]
    for entry in (tmp_path / "models").iterdir():
        entry.write_text("{")  # what cannot be read is made anew
