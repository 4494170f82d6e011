"""Who is on board: the claimed jobs of this worker, shared by the loop and the lease thread."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from genmill.jobs import Claim


class Board:
    """Thread-safe. A job is on board from its claim to its settlement, uploads included."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[str, Claim] = {}
        self._progress: dict[str, tuple[int, int]] = {}

    def add(self, claims: Iterable[Claim]) -> None:
        with self._lock:
            self._claims.update((claim.job_id, claim) for claim in claims)

    def remove(self, job_id: str, fence: int) -> None:
        """Only the claim of this fence: a newer one of the same job stays."""
        with self._lock:
            claim = self._claims.get(job_id)
            if claim is not None and claim.fence == fence:
                del self._claims[job_id]
                self._progress.pop(job_id, None)

    def get(self, job_id: str) -> Claim | None:
        with self._lock:
            return self._claims.get(job_id)

    def claims(self) -> list[Claim]:
        with self._lock:
            return list(self._claims.values())

    def without(self, leaving: Iterable[tuple[str, int]]) -> list[Claim]:
        """Who is on board once these, by job id and fence, have left."""
        gone = set(leaving)
        return [claim for claim in self.claims() if (claim.job_id, claim.fence) not in gone]

    def leases(self) -> list[tuple[str, int]]:
        """(job id, fence) of everybody on board."""
        return [(claim.job_id, claim.fence) for claim in self.claims()]

    def note_progress(self, job_id: str, step: int, steps: int) -> None:
        with self._lock:
            if job_id in self._claims:
                self._progress[job_id] = (step, steps)

    def take_progress(self) -> list[tuple[str, int, int, int]]:
        """(job id, fence, step, steps) noted since the last call."""
        with self._lock:
            noted, self._progress = self._progress, {}
            return [
                (job_id, self._claims[job_id].fence, step, steps)
                for job_id, (step, steps) in noted.items()
                if job_id in self._claims
            ]

    def __len__(self) -> int:
        with self._lock:
            return len(self._claims)
