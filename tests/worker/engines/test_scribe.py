"""Deltas of a text: together they are the text, none holds part of a character or of a stop string."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from genmill.registry import load_registry
from tests.worker.engines import tiny_text
from worker.engines.base import TextDelta
from worker.engines.scribe import Scribe, held_back
from worker.engines.wording import cut


def deltas_of(tokenizer: Any, prompt: list[int], tokens: list[int], stops: tuple[str, ...] = ()) -> list[TextDelta]:
    scribe = Scribe(tokenizer, prompt, stops)
    deltas = [scribe.read(tokens[:size]) for size in range(1, len(tokens) + 1)]
    return [delta for delta in deltas if delta is not None]


def joined(deltas: list[TextDelta]) -> str:
    for before, after in pairwise(deltas):
        assert before.offset + len(before.text) == after.offset
    return "".join(delta.text for delta in deltas)


@cache
def pieces(kind: str) -> Any:
    """Tokenizers that put words together from pieces in the three usual ways."""
    words = ["<unk>", "a", "red", "cir", "cle", "on", "."]
    if kind == "bytes":
        return tiny_text.tokenizer()
    if kind == "wordpiece":
        vocab = {word: index for index, word in enumerate([*words, "##cle", "##s"])}
        tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="<unk>"))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece(cleanup=False)
    else:
        vocab = {word: index for index, word in enumerate([*words, *("\u2581" + word for word in words[1:])])}
        tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@pytest.mark.parametrize("text", ["plain", "\u00e9t\u00e9 \U0001f600\U0001f600 \u4e2d\u6587", "tail \U0001f600"])
def test_characters_of_several_tokens_come_whole(text: str) -> None:
    tokenizer = tiny_text.tokenizer()
    deltas = deltas_of(tokenizer, tokenizer("say:")["input_ids"], tokenizer(text)["input_ids"])
    assert joined(deltas) == text
    assert not any("\ufffd" in delta.text for delta in deltas)


@given(kind=st.sampled_from(["bytes", "wordpiece", "metaspace"]), data=st.data())
def test_the_deltas_are_the_beginning_of_the_text(kind: str, data: st.DataObject) -> None:
    tokenizer = pieces(kind)
    ids = st.integers(3 if kind == "bytes" else 1, len(tokenizer) - 1)
    prompt = data.draw(st.lists(ids, min_size=1, max_size=12))
    if kind == "bytes":
        prompt = tokenizer("a prompt")["input_ids"]  # one that ends within a character has no text of its own
    tokens = data.draw(st.lists(ids, min_size=1, max_size=30))
    before, whole = (tokenizer.decode(part, skip_special_tokens=True) for part in (prompt, prompt + tokens))
    told = joined(deltas_of(tokenizer, prompt, tokens))
    assert whole[len(before) :].startswith(told)
    if not whole.endswith("\ufffd"):
        assert told == whole[len(before) :]


def test_the_shipped_tokenizer_is_told_whole() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(load_registry().get("captions").source)
    prompt = tokenizer("a red")["input_ids"]
    tokens = tokenizer("a red circle on a blue background")["input_ids"][len(prompt) :]
    whole = tokenizer.decode(prompt + tokens, skip_special_tokens=True)
    assert (
        joined(deltas_of(tokenizer, prompt, tokens))
        == whole[len(tokenizer.decode(prompt, skip_special_tokens=True)) :]
    )


@given(
    text=st.text("abc", min_size=1, max_size=40), stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)
)
def test_nothing_of_a_stop_string_is_told(text: str, stops: list[str]) -> None:
    """The text ends at the first stop; until then what is told is always a beginning of what is kept."""
    tokenizer = tiny_text.tokenizer()
    tokens = tokenizer(text)["input_ids"]
    kept, is_stopped = cut(text, stops)
    scribe, told = Scribe(tokenizer, [5], stops), ""
    for size in range(1, len(tokens) + 1):
        if cut(text[:size], stops)[1]:
            break  # the engine ends the text here
        delta = scribe.read(tokens[:size])
        told += delta.text if delta else ""
        assert kept.startswith(told)
    if not is_stopped:
        assert len(kept) - len(told) == held_back(kept, stops)


def test_the_longest_beginning_of_any_stop_is_held_back() -> None:
    assert held_back("say abab", ["abac", "bx"]) == 2
    assert held_back("say aba", ["abac", "bx"]) == 3
    assert held_back("say", ["abac"]) == 0
