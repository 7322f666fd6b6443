"""A Hugging Face folder: config.json, tokenizer files, safetensors. Nothing in it is ever executed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from runtime.engine import errors
from runtime.engine.causal import config as decoder_config
from runtime.engine.formats import remembered
from runtime.engine.formats.source import ModelSource, TensorPiece
from runtime.engine.tokenizer import TextTokenizer, special_token_texts

_WEIGHTS: Final = ".safetensors"


def open_folder(folder: Path) -> ModelSource:
    """Open the folder at ``folder``.

    Raises:
        errors.StartError: a file is missing or damaged, or the model is not one that is served.
    """
    files = _weight_files(folder)
    digest = remembered.digest("huggingface", _described(folder))
    known = remembered.recall(digest)
    if known is None:
        known = _read(folder)
        remembered.remember(digest, known)
    return ModelSource(
        config=known.config,
        tokenizer=known.tokenizer,
        chat_template=known.chat_template,
        eos_ids=known.eos_ids,
        total_bytes=sum(path.stat().st_size for path in files),
        pieces=lambda: _pieces(files),
    )


def _described(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file directly in ``folder`` but the weights: what the config and the tokenizer are made of."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix != _WEIGHTS:
            yield path.name, path.read_bytes()


def _read(folder: Path) -> remembered.Known:
    """Config and tokenizer as transformers reads them."""
    import transformers  # seconds: only where what it says is not remembered

    hf = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if not getattr(tokenizer, "is_fast", False):
        raise errors.StartError("MissingTokenizer", "The folder has no tokenizer.json that can be used.")
    return remembered.Known(
        config=decoder_config.read(hf),
        tokenizer=TextTokenizer(tokenizer.backend_tokenizer, special_token_texts(tokenizer)),
        chat_template=_chat_template(tokenizer),
        eos_ids=_eos_ids(folder, hf, tokenizer),
    )


def _chat_template(tokenizer: Any) -> str | None:
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) and template else None


def _eos_ids(folder: Path, hf: Any, tokenizer: Any) -> frozenset[int]:
    """Every token that ends an answer, as config, generation config and tokenizer say."""
    found: set[int] = set()
    stated: list[Any] = [getattr(hf, "eos_token_id", None), tokenizer.eos_token_id]
    generation = folder / "generation_config.json"
    if generation.is_file():
        try:
            stated.append(json.loads(generation.read_bytes()).get("eos_token_id"))
        except (ValueError, AttributeError) as exc:
            raise errors.StartError("DamagedModel", f"generation_config.json is not a JSON object: {exc}") from exc
    for value in stated:
        found.update(int(item) for item in (value if isinstance(value, list) else [value]) if item is not None)
    return frozenset(found)


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of the model, each directly inside ``folder``."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as exc:
            raise errors.StartError("DamagedModel", f"{index.name} is not a weight index: {exc}") from exc
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    files = []
    for name in names:
        path = folder / str(name)
        if Path(str(name)).name != name or not path.is_file():
            raise errors.StartError("DamagedModel", f"The weight index names {name!r}, which is not in the folder.")
        files.append(path)
    if not files:
        raise errors.StartError("MissingWeights", f"{folder} has no .safetensors file.")
    return files


def _pieces(files: list[Path]) -> Iterator[TensorPiece]:
    for path in files:
        try:
            with safe_open(path, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    tensor = opened.get_tensor(name)
                    yield TensorPiece(name, 0, tensor, tensor.numel() * tensor.element_size())
        except (SafetensorError, OSError) as exc:
            raise errors.StartError("DamagedModel", f"{path.name} cannot be read: {exc}") from exc
