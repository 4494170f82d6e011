"""Modules as processes of their own."""

from __future__ import annotations

import pytest

from genmill.errors import ChildFailed
from genmill.up.modules import run_module


def test_json_goes_in_and_comes_out_and_stderr_is_heard() -> None:
    heard: list[str] = []
    assert run_module("tests.genmill.echo", ["a"], {"b": [1]}, heard.append) == {
        "arguments": ["a"],
        "given": {"b": [1]},
    }
    assert heard == ["reading", "done"]


def test_its_last_words_are_the_error() -> None:
    with pytest.raises(ChildFailed, match="ValueError: told to"):
        run_module("tests.genmill.echo", ["fail"], {}, lambda _line: None)


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(ChildFailed, match="nowhere"):
        run_module("tests.nowhere", [], {}, lambda _line: None)
