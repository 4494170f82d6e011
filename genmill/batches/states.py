"""States of a batch, and what leads from one to another."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import assert_never


class BatchState(StrEnum):
    """In the words of OpenAI's batches. `expiring` drains as `cancelling` does."""

    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    EXPIRING = "expiring"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_terminal(self) -> bool:
        match self:
            case BatchState.IN_PROGRESS | BatchState.CANCELLING | BatchState.EXPIRING:
                return False
            case BatchState.COMPLETED | BatchState.CANCELLED | BatchState.EXPIRED:
                return True
            case _:
                assert_never(self)

    @property
    def is_draining(self) -> bool:
        return self in (BatchState.CANCELLING, BatchState.EXPIRING)


TRANSITIONS: Mapping[tuple[BatchState | None, str], BatchState] = {
    (None, "enroll"): BatchState.IN_PROGRESS,
    (BatchState.IN_PROGRESS, "cancel"): BatchState.CANCELLING,
    (BatchState.EXPIRING, "cancel"): BatchState.CANCELLING,
    (BatchState.IN_PROGRESS, "expire"): BatchState.EXPIRING,
    (BatchState.IN_PROGRESS, "complete"): BatchState.COMPLETED,
    (BatchState.CANCELLING, "drain"): BatchState.CANCELLED,
    (BatchState.EXPIRING, "drain"): BatchState.EXPIRED,
}
"""(state before, event) -> state after; docs/states.md draws this table."""
