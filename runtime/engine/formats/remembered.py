"""What transformers made of a model's small files, kept so that the next start can do without importing it.

An entry is JSON in the user's private cache folder, named by a digest over those files and over the versions of what
read them; another file or another version is another entry. Models whose rotary embedding needs transformers itself
are not kept. Whatever is wrong with an entry or with the folder only costs the time that the entry would have saved.
"""

import dataclasses
import hashlib
import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from runtime.base import logs
from runtime.engine import architectures
from runtime.engine.causal import config as decoder_config
from runtime.engine.causal.config import DecoderConfig
from runtime.engine.kernels.build import keep, private_folder
from runtime.engine.tokenizer import TextTokenizer

_log = logs.get(__name__)

_READERS: Final = ("transformers", "tokenizers")
_OURS: Final = (Path(__file__), Path(decoder_config.__file__), Path(architectures.__file__))
_MAX_ENTRIES: Final = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """A model but for its weights."""

    config: DecoderConfig
    tokenizer: TextTokenizer
    chat_template: str | None
    eos_ids: frozenset[int]


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    config: dict[str, Any]
    architecture: str
    tokenizer: str
    special_texts: dict[str, str]
    chat_template: str | None
    eos_ids: list[int]


def digest(kind: str, files: Iterable[tuple[str, bytes]]) -> str:
    """Name of the entry for ``files`` (name, content) as read by what is installed now."""
    found = hashlib.sha256(kind.encode())
    for reader in _READERS:
        found.update(importlib.metadata.version(reader).encode() + b"\0")
    for path in _OURS:
        found.update(path.read_bytes())
    for name, content in files:
        found.update(f"{name}\0{len(content)}\0".encode() + content)
    return found.hexdigest()[:40]


def recall(name: str) -> Known | None:
    """The entry called ``name``, or ``None``."""
    try:
        entry = msgspec.json.decode((_folder() / name).read_bytes(), type=_Entry)
        architecture = architectures.by_name(entry.architecture)
        if architecture is None:
            return None
        config: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in entry.config.items()
        }
        return Known(
            config=DecoderConfig(architecture=architecture, hf=None, **config),
            tokenizer=TextTokenizer(Tokenizer.from_str(entry.tokenizer), entry.special_texts),
            chat_template=entry.chat_template,
            eos_ids=frozenset(entry.eos_ids),
        )
    except FileNotFoundError:
        return None
    except Exception as exc:  # tokenizers raises bare exceptions; an entry that cannot be used is written anew
        _log.warning("remembered_model_unusable", error=str(exc)[:300])
        return None


def remember(name: str, known: Known) -> None:
    """Keep ``known`` under ``name``, and at most a few others."""
    if known.config.rope.get("rope_type", "default") not in architectures.LOCAL_ROPE_TYPES:
        return
    config = {
        field.name: getattr(known.config, field.name)
        for field in dataclasses.fields(known.config)
        if field.name not in ("architecture", "hf")
    }
    try:
        entry = _Entry(
            config=config,
            architecture=known.config.architecture.name,
            tokenizer=known.tokenizer.serialized(),
            special_texts=known.tokenizer.special_texts,
            chat_template=known.chat_template,
            eos_ids=sorted(known.eos_ids),
        )
        keep(_folder(), name, msgspec.json.encode(entry), most=_MAX_ENTRIES)
    except (OSError, TypeError, ValueError) as exc:
        _log.info("model_not_remembered", error=str(exc)[:300])


def _folder() -> Path:
    return private_folder("models")
