"""Values of options as people write them: lengths of time, rates, days. Each function is the `type` of an option."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date

import click

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_A_MINUTE = {"": 1, "/m": 1, "/s": 60}


def seconds(text: str) -> float:
    """Such as 90s, 30m, 24h or 90d. Raises click.BadParameter, as all of these do."""
    return _measured(text, _SECONDS, "90s, 30m, 24h or 90d")


def per_minute(text: str) -> float:
    """Such as 100/m or 5/s."""
    return _measured(text, _A_MINUTE, "100/m or 5/s")


def day(text: str) -> date:
    """Such as 2026-01-31."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a day such as 2026-01-31") from None


def _measured(text: str, units: Mapping[str, int], example: str) -> float:
    found = re.fullmatch(r"(\d{1,12}(?:\.\d+)?)(\D*)", text)
    if found is None or found[2] not in units:
        raise click.BadParameter(f"{text!r} is not such as {example}")
    return float(found[1]) * units[found[2]]
