"""``millpond models evaluate``: a model is judged by its config.json before anything is sent."""

import json

from tests.build.catalog import CONFIG
from tests.build.outlines import DEEPSEEK_V3


def test_a_config_or_its_folder_is_judged_before_an_upload(signed_in, shell, tmp_path):
    signed_in.worker.join_agent(name="mill-1")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    said = shell("models", "evaluate", tmp_path, "--set", "dtype=bfloat16")
    assert "LlamaForCausalLM" in said.out
    assert "mill-1" in said.out
    assert "would find a place now" in said.err
    answer = shell("models", "evaluate", file, "-o", "json").json
    assert (answer["served"], answer["exact"], answer["placement"]["fits"]) == (True, True, True)
    assert shell("models", "-o", "json").json == [], "nothing is kept, and the list is still there"

    file.write_text(json.dumps(DEEPSEEK_V3))
    said = shell("models", "evaluate", file, "--set", "dtype=bfloat16", "--set", "quantization=fp8", want=6)
    assert "671,026,404,352 (by the formulas of decoders in general)" in said.out
    assert "68.6 KiB" in said.out, "keys and values of a token"
    assert "multi-head latent attention" in said.err
    assert "It would fit if: " in said.err


def test_what_is_no_config_is_wrong_use(signed_in, shell, tmp_path):
    assert "cannot be read" in shell("models", "evaluate", tmp_path, want=2).err
    odd = ('{"a": NaN}', '{"a": 1e400}', '{"a": "\\ud800"}')  # can be read, and not be sent
    cases = [(text, "no JSON object") for text in ("{", "[]", *odd)]
    for text, told in (*cases, ("x" * 300_000, "more than 262144 bytes")):
        (tmp_path / "config.json").write_text(text)
        assert told in shell("models", "evaluate", tmp_path, want=2).err
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertForMaskedLM"]}))
    assert "file_refused" in shell("models", "evaluate", tmp_path, want=1).err
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert "invalid_config" in shell("models", "evaluate", tmp_path, "--set", "dtype=int3", want=1).err
