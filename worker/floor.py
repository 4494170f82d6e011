"""The worker's shop floor: the stations, who is on board, what ends how. Knows nothing of RQ's worker class."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import assert_never

from redis.exceptions import RedisError

from genmill import keys
from genmill.errors import JobCanceled, ModelUnavailable
from genmill.extras import family_of
from genmill.jobs import Claim
from genmill.keeping import shelve
from genmill.links import Links
from genmill.registry import ModelSpec, Registry
from genmill.settings import Settings
from genmill.storage import open_storage
from genmill.store import Claimed, Outcome, Room, Settlement, Store, Want
from worker.board import Board
from worker.calls import CallStation
from worker.deliveries import DeliveryStation
from worker.ends import Ends
from worker.engines.base import (
    Device,
    Engine,
    Failed,
    Finished,
    Left,
    Postponed,
    Progress,
    Returned,
    StationEvent,
    is_device_lost,
)
from worker.publisher import Publisher
from worker.reports import Reports
from worker.residency import Residents
from worker.stations import Station
from worker.traces import trace
from worker.turns import whose_turn
from worker.unavailable import unavailable
from worker.uploads import Uploader

log = logging.getLogger("genmill.worker")

NOTHING = Claimed((), "busy")
MAX_PENDING_UPLOADS = 256
"""Above this the storage is not keeping up, and claiming more would only pile results up in memory."""


class Floor:
    """All that a worker has on board, between claim and settlement."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        settings: Settings,
        *,
        load: Callable[[ModelSpec], Engine],
        find_device: Callable[[], Device] = lambda: Device("cpu"),
    ) -> None:
        self.store, self.settings, self.board = store, settings, Board()
        storage = open_storage(settings)
        self.residents = Residents(registry, settings, storage, store, load, find_device)
        self._reports = Reports(store, self.residents)
        self._ends = Ends(
            self.board, Uploader(storage, settings.upload_threads, partial(shelve, store.redis, settings=settings))
        )
        self._calls = CallStation(store, registry, settings)
        self._deliveries = DeliveryStation(store, settings, Links(settings))
        self._publisher = Publisher(store.events)
        self._stops: deque[tuple[str, Outcome]] = deque()
        self._lost: deque[tuple[str, int]] = deque()

    def wants(self, classes: Sequence[str], most: int | None) -> list[Want]:
        """What to ask the queue for: nothing while the storage does not keep up, or a suspect runs alone."""
        staying = self._staying(self._ends.leaving())
        if self.uploads_pending() >= MAX_PENDING_UPLOADS or any(claim.is_suspect for claim in staying):
            return []
        wants = [Want(keys.CALL_BATCH_KEY, self._calls.free_slots(), is_resident=True)]
        if keys.CALLBACKS in classes:
            wants.append(Want(keys.CALLBACKS, self._deliveries.free_slots(), is_resident=True))
        if set(classes) - {keys.CALLBACKS}:
            wants += self.residents.wants()
        # the heads of full stations tell whether the jobs of a model that has no room are the most overdue
        is_crowded = any(want.room is Room.CROWDED for want in wants)
        bounded = (_at_most(want, most) for want in wants)
        return [w for w in bounded if w.slots > 0 or w.urgent > 0 or (w.is_resident and is_crowded)]

    def admit(self, claims: Sequence[Claim]) -> None:
        """Put a batch (one batch key) on its station; jobs whose model does not load are put off, with the reason."""
        if not claims:
            return
        for claim in claims:
            if (old := self.board.get(claim.job_id)) is not None:  # we lost its lease and got it again
                self._leave(old)
        self.board.add(claims)
        try:
            with self._reports.told_of_loading(claims):
                station = self._station(claims[0].batch_key)
            if station is None:
                raise ModelUnavailable(f"this worker has no model for {claims[0].batch_key}")  # noqa: TRY301 - ends as what loading raises
            station.admit(claims)
            self._ends.begin(claims)
        except RedisError as err:
            log.warning("batch %s goes back to the queue: %s", claims[0].batch_key, err)
            for claim in claims:
                self._ends.add(claim, Outcome.RETURNED)
        except Exception as err:  # the edge to third-party model code: whatever it raises ends these jobs only
            if is_device_lost(err):
                raise
            log.exception("batch %s cannot start", claims[0].batch_key)
            self._record([unavailable(claim, err) for claim in claims])
        for claim in self._calls.take_refiled():
            self._ends.forget(claim.job_id, claim.fence)

    def step(self) -> None:
        """One iteration: the most urgent engine with those that ride along, and whatever the thread-driven stations
        have ready."""
        self.obey()
        at_work = whose_turn(self.residents.stations(), self._heads(), time.time() * 1e3)
        stations: list[Station] = [*at_work, self._calls, self._deliveries]
        for station in stations:
            self._record(station.step())

    def uploads_pending(self) -> int:
        """Pictures, and frames of videos, of finished jobs that are not stored yet."""
        return self._ends.uploads.pending()

    def has_batch(self) -> bool:
        """A model is at work, so the loop should not wait."""
        return any(station.is_stepping() for station in self.residents.stations())

    def turn_over(self, worker: str, classes: Sequence[str], most: int | None, token: str) -> Claimed:
        """Commit what has ended and take a batch on board, in one round trip. Raises RedisError; then ask again with
        the same token: both may have been made."""
        batch, claimed = self._ends.batch(), NOTHING
        if wants := self.wants(classes, most):
            is_empty = not self._staying(batch)
            verdicts, claimed = self.store.turn_over(batch, worker, classes, wants, token=token, is_empty=is_empty)
        else:
            verdicts = self.store.settle(batch)
        self._ends.see_off(batch, verdicts)
        if claimed.why.startswith("swap "):
            self.residents.make_way(claimed.why.removeprefix("swap "))
        self.admit(claimed.claims)
        return claimed

    def settle(self) -> None:
        """Commit all that has ended. Keeps what could not be committed for the next call; raises RedisError."""
        while batch := self._ends.batch():
            self._ends.see_off(batch, self.store.settle(batch))

    def has_ended(self) -> bool:
        """Ends wait to be committed."""
        return self._ends.has_any()

    def _staying(self, leaving: Sequence[Settlement]) -> list[Claim]:
        return self.board.without((settlement.job_id, settlement.fence) for settlement in leaving)

    def report(self) -> None:
        """Tell the fleet what was measured here, now and then, where that has changed. Raises RedisError."""
        self._reports.publish()

    def is_idle(self) -> bool:
        return len(self.board) == 0

    def stop_job(self, job_id: str, outcome: Outcome) -> None:
        """Ask a job to leave before the next step; safe from any thread."""
        self._stops.append((job_id, outcome))

    def drop_job(self, job_id: str, fence: int) -> None:
        """The lease of this fence is lost: leave the batch and record nothing; safe from any thread."""
        self._lost.append((job_id, fence))

    def leave(self) -> None:
        """Return everybody on board to the queue with nothing charged, but let uploads end that can."""
        for claim in self.board.claims():
            if not self._ends.uploads.is_pending(claim) and not self._ends.has(claim):
                self._evict(claim)
                self._ends.add(claim, Outcome.RETURNED)
        self._ends.uploads.finish()
        for claim in self.board.claims():
            if not self._ends.has(claim):
                self._ends.add(claim, Outcome.RETURNED)

    def close(self) -> None:
        """Stop all threads and free the models."""
        self._ends.uploads.close()
        self._publisher.close()
        self._calls.close()
        self._deliveries.close()
        self.residents.close()

    def _station(self, batch_key: str) -> Station | None:
        if batch_key == keys.CALL_BATCH_KEY:
            return self._calls
        if batch_key == keys.CALLBACKS:
            return self._deliveries
        station = self.residents.station_for(batch_key)
        if station is not None and station.is_idle():
            station.join_in([other for other in self.residents.stations() if other.is_stepping()])
        return station

    def _heads(self) -> dict[str, float]:
        """The earliest virtual deadline of each station among those who take part in its steps."""
        heads: dict[str, float] = {}
        loading = {s.batch_key: s for s in self.residents.stations()}
        for claim in self.board.claims():
            station = loading.get(family_of(claim.batch_key))
            if station is None or station.is_loading(claim.job_id) or self._ends.uploads.is_pending(claim):
                continue
            heads[station.batch_key] = min(claim.vd_ms, heads.get(station.batch_key, float("inf")))
        return heads

    def _evict(self, claim: Claim, outcome: Outcome = Outcome.RETURNED) -> Left | None:
        if claim.batch_key == keys.CALL_BATCH_KEY:
            is_stopped = outcome is Outcome.STOPPED
            return self._calls.stop(claim.job_id) if is_stopped else self._calls.evict(claim.job_id)
        if claim.batch_key == keys.CALLBACKS:
            return self._deliveries.evict(claim.job_id)
        found = [s for s in self.residents.stations() if s.batch_key == family_of(claim.batch_key)]
        return found[0].evict(claim.job_id) if found else None

    def obey(self) -> None:
        """Let those go whose lease is lost or whose end was asked for."""
        while self._lost:
            job_id, fence = self._lost.popleft()
            claim = self.board.get(job_id)
            if claim is not None and claim.fence == fence and not self._ends.has(claim):
                self._leave(claim)
        while self._stops:
            job_id, outcome = self._stops.popleft()
            claim = self.board.get(job_id)
            left = None if claim is None or self._ends.uploads.is_pending(claim) else self._evict(claim, outcome)
            if claim is not None and left is not None:
                error = JobCanceled(f"interrupted at step {left.step}")
                self._ends.add(claim, outcome, error=error, gpu_ms=left.gpu_ms)

    def _leave(self, claim: Claim) -> None:
        log.warning("job %s: the lease was lost, it leaves the batch", claim.job_id)
        self._evict(claim)
        self._ends.forget(claim.job_id, claim.fence)

    def _record(self, events: Iterable[StationEvent]) -> None:
        for event in events:
            claim = self.board.get(event.job_id)
            if claim is None:
                continue
            match event:
                case Progress():
                    self.board.note_progress(event.job_id, event.step, event.steps)
                    self._publish(claim, event)
                case Finished():
                    self._ends.upload(claim, event)
                case Returned():
                    self._ends.add(claim, Outcome.FINISHED, result=event.value)
                case Failed():
                    exc = trace(event.error)
                    self._ends.add(claim, Outcome.FAILED, error=event.error, exc=exc, gpu_ms=event.gpu_ms)
                case Postponed():
                    delay_ms = int(event.delay_s * 1000)
                    self._ends.add(claim, Outcome.SCHEDULED, error=event.error, delay_ms=delay_ms)
                case _:
                    assert_never(event)

    def _publish(self, claim: Claim, event: Progress) -> None:
        if event.delta is not None:
            self._publisher.note_text(claim, event.delta)
        if event.sketch is not None:
            self._publisher.note_sketch(claim, event.step, event.sketch)


def _at_most(want: Want, most: int | None) -> Want:
    slots = max(0, want.slots)
    if most is not None:
        slots, urgent = min(slots, most), min(want.urgent, max(0, most - slots))
        return want._replace(slots=slots, urgent=urgent)
    return want._replace(slots=slots)
