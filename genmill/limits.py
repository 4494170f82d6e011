"""Scopes of limits: what may be limited, and what a limit may be."""

from __future__ import annotations

import re

_SCOPE = re.compile(
    r"all|class:(p[0-3]|callbacks)|reserve:p[0-3]|(model|tenant):[^\s:]+|host:\S+|weight:(?!\*)[^\s:]+"
    r"|tc:[^\s:]+:p[0-3]|(queued|rate|budget):[^\s:]+"
)
_SHOWN = (
    "all, class:<queue>, reserve:<class>, model:<name>, tenant:<name>, tc:<tenant>:<class>, host:<host>, "
    "weight:<tenant>, queued:<tenant>, rate:<tenant>, budget:<tenant>; * stands for any model, tenant or host"
)

MOST = 1e12
"""Of any limit: whole numbers are exact up to here in Lua, in JSON and in floats, and nothing counts further."""


def check_limit(scope: str, value: float) -> None:
    """Raises ValueError naming what is wrong with the scope or its value."""
    if not _SCOPE.fullmatch(scope):
        raise ValueError(f"{scope!r} is no scope; there are {_SHOWN}")
    if not value <= MOST:  # nor is NaN
        raise ValueError(f"{scope} must be at most {MOST:g}, got {value:g}")
    if scope.startswith("weight:"):
        if value <= 0:
            raise ValueError(f"{scope} must be above 0, got {value:g}")
    elif value < 0:
        raise ValueError(f"{scope} must be 0 or more, got {value:g}")
    elif not scope.startswith("budget:") and value != int(value):
        raise ValueError(f"{scope} must be a whole number of jobs, got {value:g}")
