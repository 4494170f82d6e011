"""JSON as its standard has it: UTF-8, whole characters, no NaN, no infinity, no number that would become one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from typing import Annotated, Any, NoReturn

from pydantic import BeforeValidator, Field

_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _refuse_lookalike(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError(f"must be a number, got {json.dumps(value)[:40]}")  # noqa: TRY004 - pydantic's way
    return value


Flag = Annotated[bool, Field(strict=True)]
"""Of a body: true or false, and not 1 or "no", which pydantic would take for it."""
NUMERIC = BeforeValidator(_refuse_lookalike)
"""Of a number in a body: neither true nor "1"; 1.0 is an integer. Stands last, or the schema lacks the bounds."""


MOST_LEVELS = 100
"""Of objects and arrays in one another. Whoever writes again what was read has less of the stack left than the
reader had, so that is no measure."""
MOST_VALUES = 10_000
"""Of one document: more than any list here may have. Who checks values says something of each that is wrong."""
MOST_DIGITS = 308
"""Of an integer: with more it is infinite to all who count in floats."""


def loads(raw: str | bytes) -> Any:
    """Raises ValueError, in words of our own or of where the text breaks off."""
    try:
        text = raw.decode("utf-8-sig") if isinstance(raw, bytes) else raw
    except UnicodeDecodeError as err:
        raise ValueError(f"byte {err.start} is not UTF-8") from None
    try:
        read = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_bounded)
    except RecursionError:
        raise _too_deep() from None
    containers = text.count("[") + text.count("{")
    if containers > MOST_LEVELS:
        _check_depth(read)
    if containers + text.count(",") > MOST_VALUES:
        _check_size(read)
    if _ESCAPED_SURROGATE.search(text):
        _check_characters(read)
    return read


def _check_depth(read: Any) -> None:
    level = [read]
    for _ in range(MOST_LEVELS):
        level = [part for one in level for part in _parts(one) if isinstance(part, dict | list)]
        if not level:
            return
    raise _too_deep()


def _check_size(read: Any) -> None:
    rest, size = [read], 0
    while rest:
        parts = _parts(rest.pop())
        size += len(parts)
        if size > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES} values")
        rest += [part for part in parts if isinstance(part, dict | list)]


def _parts(value: Any) -> Collection[Any]:
    return value.values() if isinstance(value, dict) else value


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {MOST_LEVELS} levels deep")


def _check_characters(read: Any) -> None:
    """Half of a surrogate pair is no character: nobody can encode it."""
    try:
        json.dumps(read, ensure_ascii=False).encode()
    except UnicodeEncodeError as err:
        half = f"\\u{ord(err.object[err.start]):04x}"
        raise ValueError(f"{half} stands without the other half of its pair") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _bounded(text: str) -> int:
    if len(text.lstrip("-")) > MOST_DIGITS:
        raise ValueError(f"the number {text[:40]}... is too large")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number
