"""The text of a job as it is written: deltas that later tokens do not change, and that hold no stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from worker.engines.base import TextDelta

CONTEXT_TOKENS = 6
"""Tokens before a new one that are decoded with it: whether it begins with a blank depends on the one before it."""
UNFINISHED = "\ufffd"
"""What a tokenizer shows for the first bytes of a character."""


class Scribe:
    """Reads a growing list of tokens. Only the last few are decoded at each, so that a long text costs no more."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._context = list(prompt[-CONTEXT_TOKENS:])
        self._start, self._read = 0, len(self._context)
        self._held = ""
        self._offset = 0

    def read(self, tokens: Sequence[int]) -> TextDelta | None:
        """What can be told now and could not before. None while a character is unfinished, or what there is may be
        the beginning of a stop string; the end of the text tells the rest."""
        self._held += self._decoded(tokens)
        ready = len(self._held) - held_back(self._held, self._stops)
        if ready == 0:
            return None
        delta = TextDelta(self._offset, self._held[:ready])
        self._held, self._offset = self._held[ready:], self._offset + ready
        return delta

    def _decoded(self, tokens: Sequence[int]) -> str:
        """The text of those tokens that have come since the last that made whole characters."""
        size = len(self._context) + len(tokens)
        before, now = self._text(tokens, self._read), self._text(tokens, size)
        if len(now) <= len(before) or now.endswith(UNFINISHED):
            return ""
        self._start, self._read = self._read, size
        return now[len(before) :]

    def _text(self, tokens: Sequence[int], stop: int) -> str:
        """From the context's start on; positions count the context's tokens first."""
        split = len(self._context)
        part = [*self._context[self._start : stop], *tokens[max(0, self._start - split) : max(0, stop - split)]]
        return str(self._tokenizer.decode(part, skip_special_tokens=True))


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of a text might begin a stop string."""
    return max((_overlap(text, stop) for stop in stops), default=0)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
