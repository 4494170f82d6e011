"""The thread that keeps leases alive while the GPU works, notes progress and hears of cancels and lost leases."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from redis.exceptions import RedisError

from genmill.store import Store
from worker.board import Board

log = logging.getLogger("genmill.worker")

PROGRESS_S = 0.25
"""How often progress is written; a client cannot read more often to any use."""


class LeaseKeeper(threading.Thread):
    """Renews every `renew_s`. `on_lost` (job id, fence) and `on_cancel` (job id) are called from this thread,
    `heartbeat` once a renewal.
    """

    def __init__(
        self,
        store: Store,
        board: Board,
        *,
        heartbeat: Callable[[], None],
        on_lost: Callable[[str, int], None],
        on_cancel: Callable[[str], None],
    ) -> None:
        super().__init__(name="lease-keeper", daemon=True)
        self._store, self._board = store, board
        self._heartbeat, self._on_lost, self._on_cancel = heartbeat, on_lost, on_cancel
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()
        self.join(timeout=5)

    def run(self) -> None:
        due = 0.0
        while not self._stopped.wait(PROGRESS_S):
            try:
                self._store.events.note_progress(self._board.take_progress())
                if time.monotonic() >= due:
                    self.renew()
                    due = time.monotonic() + self._store.settings.renew_s
            except RedisError as err:
                log.warning("leases not renewed, trying again: %s", err)
                due = time.monotonic() + 1.0
            except Exception:  # the edge of the thread: leases must outlive any fault of their keeper
                log.exception("leases not renewed, trying again")
                due = time.monotonic() + 1.0

    def renew(self) -> None:
        """One renewal; raises RedisError."""
        self._heartbeat()
        leases = self._board.leases()
        if not leases:
            return
        renewal = self._store.renew(leases)
        for job_id, fence in renewal.lost:
            self._on_lost(job_id, fence)
        for job_id in renewal.canceled:
            self._on_cancel(job_id)
