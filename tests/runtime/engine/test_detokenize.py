"""Tokens to text: whole characters, exact stops, whatever the cuts."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engine.detokenize import OutputText
from runtime.engine.tokenizer import TextTokenizer, special_token_texts
from tests.build.models import tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    wrapped = tiny_tokenizer()
    return TextTokenizer(wrapped.backend_tokenizer, special_token_texts(wrapped))


def byte_tokens(tokenizer: TextTokenizer) -> dict[int, int]:
    """The token of each single byte."""
    return {
        tokenizer.token_bytes(token)[0]: token
        for token in range(tokenizer.vocab_size)
        if len(tokenizer.token_bytes(token)) == 1
    }


def stream(tokenizer: TextTokenizer, tokens: list[int], stops: tuple[str, ...] = (), **options: bool) -> list[str]:
    """Every piece that would be sent."""
    output = OutputText(tokenizer, stops=stops, **options)
    pieces = []
    for token in tokens:
        delta = output.push(token)
        pieces.append(delta.text)
        if delta.stopped:
            return pieces
    return [*pieces, output.finish()]


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40))
def test_pieces_join_to_the_text_and_hold_no_broken_character(tokenizer: TextTokenizer, text: str) -> None:
    singles = byte_tokens(tokenizer)
    one_by_one = [singles[byte] for byte in text.encode()]
    for tokens in (tokenizer.encode(text, special=False), one_by_one):
        pieces = stream(tokenizer, tokens)
        assert "".join(pieces) == text
        assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


def test_half_a_character_at_the_end_is_dropped(tokenizer: TextTokenizer) -> None:
    singles = byte_tokens(tokenizer)
    tokens = [singles[byte] for byte in "ok 水".encode()[:-1]]
    assert "".join(stream(tokenizer, tokens)) == "ok "


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(alphabet="ab水c", max_size=24),
    stops=st.lists(st.text(alphabet="ab水c", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
)
def test_stops_cut_exactly_and_nothing_of_them_is_shown(
    tokenizer: TextTokenizer, text: str, stops: list[str], include: bool
) -> None:
    singles = byte_tokens(tokenizer)
    tokens = [singles[byte] for byte in text.encode()]
    shown = "".join(stream(tokenizer, tokens, tuple(stops), include_stop=include))
    # the first stop to be completed decides; of several completed by one character, the one that began first
    ends = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in stops if stop in text]
    if not ends:
        assert shown == text
        return
    _, start, stop = min(ends)
    assert shown == (text[: start + len(stop)] if include else text[:start])


def test_text_that_cannot_become_a_stop_any_more_is_shown_at_once(tokenizer: TextTokenizer) -> None:
    singles = byte_tokens(tokenizer)
    pieces = stream(tokenizer, [singles[byte] for byte in b"abcabd"], ("abcd",))
    assert pieces == ["", "", "", "abc", "", "abd", ""]


def test_special_tokens_are_hidden_unless_wanted(tokenizer: TextTokenizer) -> None:
    tokens = tokenizer.encode("<|im_start|>hi<|im_end|>", special=False)
    assert "".join(stream(tokenizer, tokens)) == "hi"
    assert "".join(stream(tokenizer, tokens, skip_special=False)) == "<|im_start|>hi<|im_end|>"


def test_sentencepiece_vocabularies_by_bytes() -> None:
    from tokenizers import Tokenizer, decoders, models

    vocab = {"<unk>": 0, "<0xE6>": 1, "<0xB0>": 2, "<0xB4>": 3, "\u2581the": 4, "\u2581": 5}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces = TextTokenizer(backend, {})
    assert stream(pieces, [4, 1, 2, 3, 5]) == [" the", "", "", "水", " ", ""]


def test_log_probabilities_keep_the_bytes_of_half_a_character(tokenizer: TextTokenizer) -> None:
    singles = byte_tokens(tokenizer)
    tokens = [singles[byte] for byte in "水".encode()]
    assert b"".join(tokenizer.token_bytes(token) for token in tokens).decode() == "水"
    assert tokenizer.token_text(tokens[0]) == "\ufffd"


def test_ids_without_a_token_are_nothing(tokenizer: TextTokenizer, tmp_path: Path) -> None:
    assert tokenizer.token_bytes(10_000_000) == b""
