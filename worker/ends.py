"""How jobs leave the worker: outputs on their way to the storage, ends on their way into the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from genmill import keys
from genmill.errors import JobFailure
from genmill.jobs import Claim
from genmill.store import Outcome, Settlement
from worker.board import Board
from worker.engines.base import Finished
from worker.uploads import Uploader

log = logging.getLogger("genmill.worker")

MOST_SETTLED = 64
"""Ends committed together: Redis does nothing else meanwhile."""


class Ends:
    """Keeps what has ended until the store has it, and the jobs on `board` until then."""

    def __init__(self, board: Board, uploads: Uploader) -> None:
        self.uploads = uploads
        self._board = board
        self._unsettled: list[Settlement] = []
        self._begun_s: dict[tuple[str, int], float] = {}

    def begin(self, claims: Iterable[Claim]) -> None:
        """Their model is there and has taken them."""
        self._begun_s.update(dict.fromkeys(((claim.job_id, claim.fence) for claim in claims), time.monotonic()))

    def upload(self, claim: Claim, finished: Finished) -> None:
        """Its end comes when its outputs are stored."""
        self.uploads.start(claim, finished)

    def add(
        self,
        claim: Claim,
        outcome: Outcome,
        *,
        result: object = None,
        error: JobFailure | None = None,
        exc: str = "",
        gpu_ms: float = 0.0,
        delay_ms: int = 0,
    ) -> None:
        self._unsettled.append(
            Settlement(claim.job_id, claim.fence, outcome, result, error, exc, gpu_ms=gpu_ms, delay_ms=delay_ms)
        )

    def batch(self) -> list[Settlement]:
        """What to commit next."""
        return [self._timed(settlement) for settlement in self.leaving()]

    def leaving(self) -> list[Settlement]:
        """The same, without what their runs took."""
        self._unsettled += self.uploads.take_done()
        return self._unsettled[:MOST_SETTLED]

    def has_any(self) -> bool:
        self._unsettled += self.uploads.take_done()
        return bool(self._unsettled)

    def has(self, claim: Claim) -> bool:
        """It has ended, and waits to be committed."""
        self._unsettled += self.uploads.take_done()
        return any((s.job_id, s.fence) == (claim.job_id, claim.fence) for s in self._unsettled)

    def see_off(self, batch: Sequence[Settlement], verdicts: Sequence[bool]) -> None:
        """They are committed, or refused where the lease was lost: either way they are no longer on board."""
        for settlement, is_ours in zip(batch, verdicts, strict=True):
            if not is_ours:
                log.warning("job %s was no longer ours: its end is not recorded", settlement.job_id)
            claim = self._board.get(settlement.job_id)
            if claim is not None and claim.batch_key not in (keys.CALL_BATCH_KEY, keys.CALLBACKS):
                self.uploads.discard(settlement.job_id, _orphaned(settlement, is_ours=is_ours))
            self.forget(settlement.job_id, settlement.fence)
        del self._unsettled[: len(batch)]

    def forget(self, job_id: str, fence: int) -> None:
        """It is not on board any more."""
        self._board.remove(job_id, fence)
        self._begun_s.pop((job_id, fence), None)

    def _timed(self, settlement: Settlement) -> Settlement:
        """With what the run took; only a success tells what runs take."""
        begun_s = self._begun_s.get((settlement.job_id, settlement.fence))
        if begun_s is None or settlement.outcome is not Outcome.FINISHED:
            return settlement
        return replace(settlement, run_ms=(time.monotonic() - begun_s) * 1e3)


def _orphaned(settlement: Settlement, *, is_ours: bool) -> Sequence[int]:
    """The attempts whose outputs nobody will ever commit."""
    if not is_ours:
        return [settlement.fence]
    return range(1, settlement.fence) if settlement.outcome.is_end else ()
