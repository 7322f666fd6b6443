"""What each way of holding a model costs in quality and saves in bytes: perplexity of a fixed text, in every mode.

``MODEL`` is a Hugging Face folder or a GGUF file (default: the sample model, where it is found), ``TOKENS`` how much of
the text is read. The last line is one JSON object.
"""

import json
import os

import torch

from runtime.engine.causal import loader
from runtime.engine.formats.kinds import guess_format
from runtime.engine.formats.opening import open_model
from tests.benchmarks.engine import find_model
from tests.benchmarks.engine_limits import TEXT, perplexity

# (quantization, how keys and values are held, number format)
MODES = (
    ("none", "same", "float32"),
    ("none", "same", "bfloat16"),
    ("none", "same", "float16"),
    ("int8", "same", "float32"),
    ("int8_weight_only", "same", "float32"),
    ("int8_weight_only", "same", "bfloat16"),
    ("int4_weight_only", "same", "float32"),
    ("int4_weight_only", "same", "bfloat16"),
    ("fp8", "same", "float32"),
    ("none", "int8", "float32"),
    ("none", "fp8", "float32"),
    ("int4_weight_only", "int8", "bfloat16"),
)
_MIB = 1 << 20


def main() -> None:
    """Measure every mode, one after the other."""
    path = find_model(os.environ.get("MODEL", ""))
    found = {}
    print(f"{path.name}\n{'mode':44} {'perplexity':>10} {'change':>8} {'weights':>10} {'KV/token':>9}")
    for quantization, kv, dtype in MODES:
        source = open_model(path, guess_format(path))
        model = loader.load(
            source,
            dtype=getattr(torch, dtype),
            device=torch.device("cpu"),
            quantization=quantization,
            kv=kv,
            progress=lambda _share: None,
        )
        model.resize_positions(1024)
        text = source.tokenizer.decode(
            source.tokenizer.encode(TEXT.read_text(), special=False)[: int(os.environ.get("TOKENS", "4096"))]
        )
        value = perplexity(model, source, text)
        name = f"{quantization}, kv {kv}, {dtype}"
        found[name] = round(value, 4)
        change = value / next(iter(found.values())) - 1
        held, kv_bytes = model.weights_bytes / _MIB, model.kv.token_bytes(source.config)
        print(f"{name:44} {value:10.3f} {change:+8.2%} {held:6.1f} MiB {kv_bytes:7} B", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
