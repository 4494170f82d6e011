"""How long a forward of so many rows takes, learnt while it runs.

A running mean for each number of rows that was seen, and straight lines between them: a curve that has steps, as a
CPU's caches and a GPU's waves of blocks make them, is kept as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

WEIGHT = 0.1
"""Of the newest forward in the mean of its size: about the last twenty count."""
FLAT = 1.1
"""Up to this much of the least time a forward counts as no slower: below the knee a row more costs nothing."""


@dataclass(slots=True)
class ServiceCurve:
    """Times in milliseconds, sizes in rows. Answers None until two sizes were seen, but for a size that was."""

    means: dict[int, float] = field(default_factory=dict)

    def saw(self, rows: int, took_ms: float) -> None:
        """A forward of `rows` took so long."""
        mean = self.means.get(rows, took_ms)
        self.means[rows] = mean + WEIGHT * (took_ms - mean)

    @property
    def is_known(self) -> bool:
        return len(self.means) > 1

    def expected_ms(self, rows: int) -> float | None:
        """Between two sizes on the line through them, beyond all on that of the last two; below all as the least."""
        if rows in self.means:
            return self.means[rows]
        if not self.is_known:
            return None
        sizes = sorted(self.means)
        if rows <= sizes[0]:
            return self.means[sizes[0]]
        right = min(bisect_left(sizes, rows), len(sizes) - 1)
        low, high = sizes[right - 1], sizes[right]
        slope = (self.means[high] - self.means[low]) / (high - low)
        if rows > high:
            slope = max(slope, 0.0)
        return self.means[low] + slope * (rows - low)

    def most_rows(self, within_ms: float, cap: int) -> int | None:
        """The most rows up to `cap` that take no longer. 0 when none do."""
        if not self.is_known:
            return None
        return max((rows for rows in range(1, cap + 1) if (self.expected_ms(rows) or 0.0) <= within_ms), default=0)

    @property
    def knee(self) -> int | None:
        """The most rows that take about the least time: with fewer the device idles."""
        return self.most_rows(min(self.means.values()) * FLAT, max(self.means)) if self.is_known else None

    def as_json(self) -> dict[str, object]:
        """What is published: milliseconds by rows, and the knee."""
        return {"ms": {str(rows): round(ms, 3) for rows, ms in sorted(self.means.items())}, "knee_rows": self.knee}


def published(device: str, curves: Mapping[str, ServiceCurve]) -> dict[str, Mapping[str, object]]:
    """Those that are known, as engines tell them: by device and shape, joined by a blank."""
    return {f"{device} {shape}": curve.as_json() for shape, curve in curves.items() if curve.is_known}
