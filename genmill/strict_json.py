"""JSON as its standard has it: no NaN, no infinity, no number that would become one."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn


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
