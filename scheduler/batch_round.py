"""The round over all batches: collect what has ended, feed what has room, drain what was called off, clear away."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from redis.exceptions import RedisError

from genmill.batches import BatchRecord, Ledger, LineParts, ResultParts
from genmill.batches.parts import folder_of
from genmill.batches.records import job_id_of
from genmill.errors import StorageUnavailable
from genmill.registry import Registry
from genmill.settings import Settings
from genmill.storage import Storage
from genmill.store import Store
from scheduler.apart import OUTAGES, apart
from scheduler.clearing import clear_files, clear_objects
from scheduler.collecting import EVERY_S, MANY, Collector
from scheduler.feeding import Feeder

log = logging.getLogger("genmill.scheduler")

BUSY_PAUSE_S, IDLE_PAUSE_S = 0.1, 1.0
REST_S = 5.0
SWEEP_S = 10.0
"""How often it is looked whether open lines still have their jobs, and whether storage is to be cleared away."""


class BatchRound:
    """Runs beside the scheduler's tick, in a thread of its own, so that a slow storage delays neither reaping nor
    limits. Every step is safe to repeat and to be made by two at once."""

    def __init__(
        self, store: Store, storage: Storage, registry: Registry, settings: Settings, *,
        leads: Callable[[], bool], clock: Callable[[], float] = time.monotonic, collect_every_s: float = EVERY_S,
    ) -> None:  # fmt: skip
        self.ledger = Ledger(store.redis, settings)
        lines = LineParts(storage)
        self._feeder = Feeder(store, self.ledger, lines, registry, settings, leads=leads, clock=clock)
        self._collector = Collector(
            store, self.ledger, lines, ResultParts(storage), clock=clock, every_s=collect_every_s
        )
        self._store, self._storage, self._leads, self._clock = store, storage, leads, clock
        self._sweep_at = clock()
        self._rest_until: dict[str, float] = {}

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set."""
        while not stop.is_set():
            pause_s = IDLE_PAUSE_S
            try:
                if self._leads():
                    pause_s = self.turn()
            except (RedisError, StorageUnavailable) as err:
                log.warning("batches wait: %s", err)
            except Exception:  # the edge of the thread: one bad batch must not stop the round for good
                log.exception("a round of batches failed, trying again")
            stop.wait(pause_s)

    def turn(self) -> float:
        """One step of every batch; seconds until the next. Raises RedisError."""
        batches, most_moved = self.ledger.active(), 0
        is_sweep = self._clock() >= self._sweep_at
        for batch in batches:
            if self._leads() and self._clock() >= self._rest_until.get(batch.batch_id, 0.0):
                most_moved = max(most_moved, self._step_alone(batch, is_sweep=is_sweep))
        if is_sweep:
            self._sweep_at = self._clock() + SWEEP_S
            apart("clearing batches away", self._clear_away)
            apart("clearing files away", lambda: clear_files(self._store, self._storage))
            apart("clearing objects away", lambda: clear_objects(self._store, self._storage))
            self._collector.forget_others({batch.batch_id for batch in batches})
            self._rest_until = {one: at for one, at in self._rest_until.items() if at > self._clock()}
        if most_moved >= MANY:
            return 0.0
        return BUSY_PAUSE_S if batches else IDLE_PAUSE_S

    def step(self, batch: BatchRecord, *, is_sweep: bool = False) -> int:
        """Returns how many lines moved. Raises RedisError, StorageUnavailable; what needs no storage is done even
        then, so that a batch without it expires all the same, and what waits of a called off one is canceled."""
        try:
            return self._move_lines(batch, is_sweep=is_sweep)
        finally:
            if batch.state.is_draining:
                self._drain(batch)
            self.ledger.conclude(batch.batch_id, batch.state)

    def _move_lines(self, batch: BatchRecord, *, is_sweep: bool) -> int:
        if is_sweep:
            self._collector.note_vanished(batch)
        moved = self._collector.collect(batch)
        return moved if batch.state.is_draining else moved + self._feeder.feed(batch)

    def _step_alone(self, batch: BatchRecord, *, is_sweep: bool) -> int:
        """A batch that cannot go on now holds no other up, and is tried again after a rest."""
        try:
            return self.step(batch, is_sweep=is_sweep)
        except StorageUnavailable as err:
            log.warning("batch %s waits: %s", batch.batch_id, err.detail)
        except OUTAGES:
            raise
        except Exception:  # the edge to one batch's data: whatever is wrong with it concerns no other
            log.exception("batch %s cannot go on", batch.batch_id)
        self._rest_until[batch.batch_id] = self._clock() + REST_S
        return 0

    def _drain(self, batch: BatchRecord) -> None:
        """Cancel what waits; what runs may end."""
        self._feeder.adopt(batch)
        busy = {*self.ledger.running_lines(batch.batch_id), *self.ledger.ended_lines(batch.batch_id)}
        for number in self.ledger.open_lines(batch.batch_id):
            if number not in busy:
                self._store.cancel(job_id_of(batch.batch_id, number))

    def _clear_away(self) -> None:
        for batch_id in self.ledger.outdated():
            try:
                self._storage.delete_prefix(folder_of(batch_id))
            except StorageUnavailable as err:
                log.warning("what is left of batch %s is cleared in a later round: %s", batch_id, err.detail)
                return
            self.ledger.forget(batch_id)
