"""How many rows a forward of a shape may have: a setting, what fits in memory, what running out of it has taught."""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from worker.engines.memory import SiteMemory

CLEAN_BATCHES = 20
"""Full batches without an error after which a lowered cap rises by one row."""


@dataclass(slots=True)
class RowCaps:
    """`ceiling` rows for every shape, until `memory` knows that fewer fit, or one has run out of it."""

    ceiling: int
    memory: SiteMemory | None = None
    _learnt: dict[Hashable, int] = field(default_factory=dict)
    _clean: dict[Hashable, int] = field(default_factory=dict)

    def of(self, shape: Hashable) -> int:
        cap = self._learnt.get(shape, self.ceiling)
        fitting = self.memory.most_rows(shape) if self.memory is not None else None
        return cap if fitting is None else min(cap, fitting)

    def watched(self, shape: Hashable, rows: int) -> AbstractContextManager[None]:
        """Around a forward: measures its memory while that is not known."""
        if self.memory is None or self.memory.model.room_bytes is None or not rows:
            return nullcontext()
        footprint = self.memory.of(shape)
        return self.memory.model.watched(footprint, rows) if footprint.is_new(rows) else nullcontext()

    def ran_out(self, shape: Hashable, rows: int) -> None:
        """A forward of this many rows did not fit: half of them is the new cap."""
        self._learnt[shape] = max(1, min(self._learnt.get(shape, self.ceiling), rows // 2))
        self._clean[shape] = 0
        if self.memory is not None:  # something else has taken what was thought to be free
            self.memory.model.refresh()

    def ran_clean(self, shape: Hashable, rows: int, of_call: int = 1) -> None:
        """A forward fitted. Only full ones are evidence that one row more may fit: those that the rows `of_call`, of
        one call more, would have taken past the cap."""
        if shape not in self._learnt or rows + of_call <= self._learnt[shape]:
            return
        self._clean[shape] += 1
        if self._clean[shape] >= CLEAN_BATCHES:
            self._clean[shape] = 0
            self._learnt[shape] = min(self.ceiling, self._learnt[shape] + 1)

    @property
    def learnt(self) -> dict[Hashable, int]:
        """Caps below the ceiling that out-of-memory errors taught."""
        return {shape: cap for shape, cap in self._learnt.items() if cap < self.ceiling}
