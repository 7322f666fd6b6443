"""Text to tokens and back. Wraps the Rust tokenizer that transformers builds from the model's files."""

import functools
import json
from typing import Any, Final

from tokenizers import Tokenizer

from runtime.engine import errors

_SPECIAL_NAMES: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
_NORMALISATION: Final = 4
_WORD_START: Final = "\u2581"  # sentencepiece's mark for a space


def special_token_texts(tokenizer: Any) -> dict[str, str]:
    """The named special tokens of a transformers tokenizer, as chat templates expect them."""
    return {name: str(value) for name in _SPECIAL_NAMES if (value := getattr(tokenizer, name, None)) is not None}


class TextTokenizer:
    """Encoding, and the exact bytes of each token.

    Decoding goes by bytes, never by text: a character may span tokens.
    """

    def __init__(self, backend: Tokenizer, special_texts: dict[str, str]) -> None:
        self._backend = backend
        self.special_texts = special_texts
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self._added = {index: token.content.encode() for index, token in added.items()}
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self._alphabet = _byte_alphabet(backend)
        # Normalisation may shorten a text before it is cut into tokens, decomposed letters most of all.
        longest = max((len(text) for text in backend.get_vocab(with_added_tokens=True)), default=1)
        self.most_bytes_per_token = longest * _NORMALISATION
        self.token_bytes = functools.lru_cache(maxsize=65536)(self._token_bytes)

    def serialized(self) -> str:
        """The whole tokenizer as JSON, from which the same one can be made."""
        return str(self._backend.to_str())

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Tokens of ``text``; with ``special`` the model's own start tokens are added."""
        return list(self._backend.encode(text, add_special_tokens=special).ids)

    def token_id(self, text: str) -> int | None:
        """The token that is exactly ``text``, where the vocabulary has one."""
        found = self._backend.token_to_id(text)
        return None if found is None else int(found)

    def token_text(self, token: int) -> str:
        """The token as people see it in log-probabilities; U+FFFD stands for bytes that are no text by themselves."""
        return self.token_bytes(token).decode("utf-8", errors="replace")

    def decode(self, tokens: list[int], *, skip_special: bool = True) -> str:
        """Text of ``tokens``, invalid bytes replaced."""
        kept = (token for token in tokens if not (skip_special and token in self.special_ids))
        return b"".join(self.token_bytes(token) for token in kept).decode("utf-8", errors="replace")

    def _token_bytes(self, token: int) -> bytes:
        """Bytes that ``token`` stands for; nothing for an id without a token."""
        if token in self._added:
            return self._added[token]
        text = self._backend.id_to_token(token)
        if text is None:
            return b""
        if self._alphabet is not None:
            alphabet = self._alphabet
            return b"".join(bytes([alphabet[char]]) if char in alphabet else char.encode() for char in text)
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes.fromhex(text[3:5])
        return text.replace(_WORD_START, " ").encode()


def _byte_alphabet(backend: Tokenizer) -> dict[str, int] | None:
    """The byte of each character of a byte-level vocabulary; ``None`` for a sentencepiece one."""
    kinds = _decoder_kinds(json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else None)
    if "ByteLevel" in kinds:
        return _gpt2_alphabet()
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return None
    raise errors.StartError(
        "UnsupportedTokenizer", f"A tokenizer that decodes by {sorted(kinds) or 'nothing'} is not served."
    )


def _decoder_kinds(decoder: Any) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    kinds = {str(decoder.get("type"))}
    for child in decoder.get("decoders", []):
        kinds |= _decoder_kinds(child)
    return kinds


@functools.cache
def _gpt2_alphabet() -> dict[str, int]:
    """Printable bytes stand for themselves, the others for characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
