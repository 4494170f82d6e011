"""Why models made room for each other in this worker, how often, and what that took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """OVERDUE: it was told to go, because jobs of another were overdue. IDLE: it had nothing to do, and as many models
    were loaded as may be. BUDGET: it had nothing to do, and the other did not fit in memory beside it."""

    OVERDUE = "overdue"
    IDLE = "idle"
    BUDGET = "budget"


@dataclass(slots=True)
class Switches:
    """`counts` are models that went, `seconds` what it took to put them away and have the other one instead."""

    counts: dict[Cause, int] = field(default_factory=lambda: dict.fromkeys(Cause, 0))
    seconds: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(Cause, 0.0))
    last_s: float = float("-inf")
    """When the last one ended, by the worker's clock."""

    def note(self, causes: Mapping[str, Cause], took_s: float, now_s: float) -> None:
        """The models that went for one other; its time is shared between them."""
        for cause in causes.values():
            self.counts[cause] += 1
            self.seconds[cause] += took_s / len(causes)
        if causes:
            self.last_s = now_s

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def as_published(self) -> dict[str, tuple[int, float]]:
        return {cause.value: (self.counts[cause], self.seconds[cause]) for cause in Cause}
