"""Places for whoever holds a thread while nothing happens: so many in all, and a share of them for one tenant."""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import Literal

SHARE = 4
"""A tenant gets one place of so many, so that none can take all."""

Refusal = Literal["all", "tenant"]


class Seats:
    """`most` in all, `most_of_tenant` of one tenant."""

    def __init__(self, most: int) -> None:
        self.most, self.most_of_tenant = most, max(1, most // SHARE)
        self._taken: Counter[str] = Counter()
        self._lock = Lock()

    def take(self, tenant: str) -> Refusal | None:
        """None when the tenant has a place now; else whose places are all taken."""
        with self._lock:
            if self._taken.total() >= self.most:
                return "all"
            if self._taken[tenant] >= self.most_of_tenant:
                return "tenant"
            self._taken[tenant] += 1
            return None

    def give_back(self, tenant: str) -> None:
        with self._lock:
            self._taken[tenant] -= 1
            if not self._taken[tenant]:
                del self._taken[tenant]
