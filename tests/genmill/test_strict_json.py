"""What is read as JSON, and in which words the rest is refused."""

from __future__ import annotations

import json

import pytest

from genmill import strict_json
from genmill.strict_json import MOST_DIGITS, MOST_LEVELS, MOST_VALUES


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        ('"\\ud83d\\ude00"', "\U0001f600"),
        ('"\\\\ud800"', "\\ud800"),
        ("9" * MOST_DIGITS, int("9" * MOST_DIGITS)),
        ("-" + "9" * MOST_DIGITS, -int("9" * MOST_DIGITS)),
        ("[" + "[]," * 500 + "{}]", [*([[]] * 500), {}]),
        ('["' + "," * 20_000 + '"]', ["," * 20_000]),
    ],
)
def test_json_is_read(raw: str | bytes, read: object) -> None:
    assert strict_json.loads(raw) == read


def test_as_deep_as_it_may_be() -> None:
    assert json.dumps(strict_json.loads(nested(MOST_LEVELS))) == nested(MOST_LEVELS)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("NaN", "NaN is not JSON"),
        ("[-Infinity]", "-Infinity is not JSON"),
        ("1e999", "1e999 is too large"),
        ("9" * (MOST_DIGITS + 1), "too large"),
        ("9" * 5000, "too large"),
        (nested(MOST_LEVELS + 1), "nested more than 100 levels deep"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested more than 100 levels deep"),
        (nested(50_000), "nested more than 100 levels deep"),
        ('{"a": ["\\ud800"]}', r"\\ud800 stands without the other half"),
        ('{"\\uDFFF": 1}', r"\\udfff stands without the other half"),
        ("[" + "1," * MOST_VALUES + "1]", "has more than 10000 values"),
        ('{"a": {' + ",".join(f'"{n}": {{}}' for n in range(MOST_VALUES)) + "}}", "has more than 10000 values"),
        (b'"\xed\xa0\x80"', "byte 1 is not UTF-8"),
        ('"ä"'.encode("utf-16"), "byte 0 is not UTF-8"),
    ],
)
def test_what_is_not_json_is_refused_in_words_of_our_own(raw: str | bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        strict_json.loads(raw)
    assert "sys." not in str(caught.value)
    assert "recursion" not in str(caught.value)
