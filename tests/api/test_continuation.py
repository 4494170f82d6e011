"""Texts that are only appended to, over several attempts."""

from __future__ import annotations

import pytest

from api.continuation import Continuation
from genmill.errors import TextChanged
from genmill.events import EventKind, JobEvent


def token(attempt: int, offset: int, text: str) -> JobEvent:
    return JobEvent(EventKind.TOKEN, {"attempt": attempt, "offset": offset, "text": text}, "")


def told(*events: JobEvent) -> list[str]:
    text = Continuation()
    return [text.read(event) for event in events]


def test_tokens_are_appended() -> None:
    assert told(token(1, 0, "a "), token(1, 2, "red"), token(1, 5, "")) == ["a ", "red", ""]


def test_an_attempt_that_writes_the_same_goes_on_where_the_one_before_broke_off() -> None:
    assert told(token(1, 0, "a red"), token(2, 0, "a "), token(2, 2, "red circle")) == ["a red", "", " circle"]


@pytest.mark.parametrize("other", [token(2, 0, "a blue"), token(1, 3, "other"), token(2, 0, "b")])
def test_another_text_cannot_be_appended(other: JobEvent) -> None:
    with pytest.raises(TextChanged):
        told(token(1, 0, "a red"), other)


def test_the_whole_is_what_was_told() -> None:
    text = Continuation()
    text.read(token(1, 0, "a red"))
    text.check_whole("a red")
    text.read(token(1, 2, "r"))  # written anew, and shorter
    with pytest.raises(TextChanged):
        text.check_whole("a r")
