"""How many rows a forward of a shape may have: a setting, lowered by running out of memory, raised with care."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

CLEAN_BATCHES = 20
"""Full batches without an error after which a lowered cap rises by one row."""


@dataclass(slots=True)
class RowCaps:
    """`ceiling` rows for every shape, until one has run out of memory."""

    ceiling: int
    _learnt: dict[Hashable, int] = field(default_factory=dict)
    _clean: dict[Hashable, int] = field(default_factory=dict)

    def of(self, shape: Hashable) -> int:
        return self._learnt.get(shape, self.ceiling)

    def ran_out(self, shape: Hashable, rows: int) -> None:
        """A forward of this many rows did not fit: half of them is the new cap."""
        self._learnt[shape] = max(1, min(self.of(shape), rows // 2))
        self._clean[shape] = 0

    def ran_clean(self, shape: Hashable, rows: int) -> None:
        """A forward fitted. Only full ones are evidence that one row more may fit."""
        if shape not in self._learnt or rows < self._learnt[shape]:
            return
        self._clean[shape] += 1
        if self._clean[shape] >= CLEAN_BATCHES:
            self._clean[shape] = 0
            self._learnt[shape] = min(self.ceiling, self._learnt[shape] + 1)

    @property
    def learnt(self) -> dict[Hashable, int]:
        """Caps below the ceiling that out-of-memory errors taught."""
        return {shape: cap for shape, cap in self._learnt.items() if cap < self.ceiling}
