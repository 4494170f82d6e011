"""Use by tenant and day, as programs and spreadsheets read it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

from genmill.errors import FieldFault, InvalidRequest
from genmill.store.usage import DayUse

DEFAULT_DAYS = 30
MOST_DAYS = 400
COLUMNS = ("day", "tenant", "succeeded", "failed", "canceled", "expired", "gpu_seconds", "output_bytes")


def period(first: date | None, last: date | None, today: date | None = None) -> tuple[date, date]:
    """The days that are meant, UTC: up to today, 30 of them, where nothing else is said. Raises InvalidRequest."""
    last = last or today or datetime.now(UTC).date()
    first = first or date.fromordinal(max(1, last.toordinal() - DEFAULT_DAYS + 1))
    days = (last - first).days + 1
    if not 1 <= days <= MOST_DAYS:
        detail = f"from {first} to {last} are {days} days; from 1 to {MOST_DAYS} can be asked for"
        raise InvalidRequest(detail, faults=(FieldFault("/from", detail, f"1..{MOST_DAYS} days", f"{days} days"),))
    return first, last


def usage_view(uses: Sequence[DayUse], first: date, last: date) -> dict[str, Any]:
    """JSON of the rows, with their sums."""
    rows = [_row(use) for use in uses]
    sums = {name: round(sum(row[name] for row in rows), 3) for name in COLUMNS[2:]}
    return {"object": "usage", "from": first.isoformat(), "to": last.isoformat(), "data": rows, "total": sums}


def usage_csv(uses: Sequence[DayUse]) -> str:
    """A line for each row under the names of the columns."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS)
    writer.writeheader()
    writer.writerows(_row(use) for use in uses)
    return out.getvalue()


def _row(use: DayUse) -> dict[str, Any]:
    facts = use._asdict() | {"day": use.day.isoformat(), "gpu_seconds": round(use.gpu_ms / 1000, 3)}
    return {name: facts[name] for name in COLUMNS}
