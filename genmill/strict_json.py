"""JSON as its standard has it: no NaN, no infinity, no number that would become one."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, NoReturn

from pydantic import BeforeValidator, Field


def _refuse_lookalike(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError(f"must be a number, got {json.dumps(value)[:40]}")  # noqa: TRY004 - pydantic's way
    return value


Flag = Annotated[bool, Field(strict=True)]
"""Of a body: true or false, and not 1 or "no", which pydantic would take for it."""
NUMERIC = BeforeValidator(_refuse_lookalike)
"""Of a number in a body: neither true nor "1"; 1.0 is an integer. Stands last, or the schema lacks the bounds."""


def loads(raw: str | bytes) -> Any:
    """Raises ValueError, and RecursionError for what is nested too deeply."""
    return json.loads(raw, parse_constant=_refuse_constant, parse_float=_finite)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number
