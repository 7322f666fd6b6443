"""Reading a model's JSON files within bounds."""

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from catalog.formats.facts import Reason, Rejected, Source

MAX_CONFIG_BYTES: Final = 4 * 1024**2
MAX_INDEX_BYTES: Final = 32 * 1024**2
MAX_TEMPLATE_BYTES: Final = 512 * 1024


class TokenizerModel(msgspec.Struct):
    """What is looked at inside ``tokenizer.json``'s model; everything else is skipped without being built."""

    type: str = "BPE"
    vocab: msgspec.Raw = msgspec.Raw()


class Tokenizer(msgspec.Struct):
    """``tokenizer.json``."""

    model: TokenizerModel


def find(files: Sequence[Source], path: str) -> Source | None:
    """The file at ``path``."""
    return next((file for file in files if file.path == path), None)


def read_object(file: Source, limit: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Read a JSON object of at most ``limit`` bytes.

    Raises:
        Rejected: larger, or no JSON object.
    """
    data = _bytes(file, limit)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise damaged(file, f"it is not JSON ({str(exc)[:80]})") from exc
    if not isinstance(value, dict):
        raise damaged(file, "it is not a JSON object")
    return value


def read_tokenizer(file: Source) -> str:
    """Check that ``tokenizer.json`` is whole and return the kind of its model (BPE, Unigram, WordPiece …).

    Raises:
        Rejected: it is not a tokenizer.
    """
    data = _bytes(file, 64 * 1024**2)
    try:
        tokenizer = msgspec.json.decode(data, type=Tokenizer)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise Rejected(
            Reason.MISSING_TOKENIZER,
            f"{file.path} is not a tokenizer file ({str(exc)[:80]}). Save the tokenizer again and upload it whole.",
        ) from exc
    if bytes(tokenizer.model.vocab)[:1] not in (b"{", b"["):
        raise Rejected(
            Reason.MISSING_TOKENIZER, f"{file.path} has no vocabulary. Save the tokenizer again and upload it whole."
        )
    return tokenizer.model.type[:40]


def read_text(file: Source, limit: int = MAX_TEMPLATE_BYTES) -> str:
    """Read UTF-8 text of at most ``limit`` bytes."""
    try:
        return _bytes(file, limit).decode()
    except UnicodeDecodeError as exc:
        raise damaged(file, "it is not UTF-8 text") from exc


def damaged(file: Source, what: str) -> Rejected:
    """The refusal of a file that breaks its own format."""
    return Rejected(Reason.DAMAGED_FILE, f"{file.path} is damaged: {what}. Export it again.")


def _bytes(file: Source, limit: int) -> bytes:
    if file.size > limit:
        raise Rejected(
            Reason.FILE_TOO_LARGE,
            f"{file.path} has {file.size} bytes; it may have at most {limit}. Upload the original file.",
        )
    return file.location.read_bytes()
