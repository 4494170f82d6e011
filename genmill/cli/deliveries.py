"""Deliveries of webhooks on the terminal, of jobs and of batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from genmill.cli.screen import table

STYLES = {"waiting": "yellow", "sending": "cyan", "delivered": "green", "failed": "red", "unknown": "magenta"}
REDELIVERY_ANSWERS = {"queued": "will be sent once more", "pending": "is under way anyway"}


def deliveries_table(deliveries: Sequence[Mapping[str, Any]]) -> RenderableType:
    """A row for each attempt, and one for a delivery that had none yet."""
    rows = [row for delivery in deliveries for row in _rows(delivery)]
    return table("delivery", "event", "state", "attempt", "at", "answer", rows=rows) if rows else "no deliveries"


def redelivery_line(delivery: Mapping[str, Any]) -> str:
    answer = str(delivery["redelivery"])
    return f"{delivery['id']} {REDELIVERY_ANSWERS.get(answer, answer)}"


def _rows(delivery: Mapping[str, Any]) -> list[list[str | Text]]:
    state = Text(delivery["state"], style=STYLES.get(delivery["state"], ""))
    head: list[str | Text] = [delivery["id"], delivery["event"], state]
    rows = [[*head, str(one["attempt"]), one["at"], one["detail"]] for one in delivery["attempts"]]
    if delivery["next_attempt_at"]:
        rows.append([*head, "next", delivery["next_attempt_at"], ""])
    return rows or [[*head, "", "", ""]]
