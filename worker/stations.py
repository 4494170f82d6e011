"""Where claimed jobs are worked on: one station for each loaded model, one for deliveries, one for plain calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import RedisError

from genmill.errors import (
    GenmillError,
    InputUnavailable,
    InvalidJob,
    InvalidRequest,
    JobFailure,
    NotFound,
    StorageUnavailable,
)
from genmill.images import stored_image
from genmill.inputs import ImageInput, JobInput
from genmill.jobs import Claim
from genmill.registry import Batching, ModelSpec
from genmill.storage import Storage
from genmill.store import Made, SourceBook, Want
from worker.engines.base import (
    Curve,
    Engine,
    EngineJob,
    Event,
    Failed,
    Left,
    ModelMemory,
    Postponed,
    StationEvent,
    TakesAdapters,
)
from worker.references import filled, outputs_for, refers

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger("genmill.worker")

INPUT_RETRY_S = 5.0
"""For so long a job is put off whose input cannot be read because the storage or Redis is away."""
STEP_SMOOTHING = 0.25
"""Weight of the last step in the running mean of how long a step takes."""


class Station(Protocol):
    """Called from the worker's loop only. `step` gives one event list for one iteration and never blocks long."""

    batch_key: str

    def free_slots(self) -> int: ...
    def admit(self, claims: Sequence[Claim]) -> None: ...
    def step(self) -> list[StationEvent]: ...
    def evict(self, job_id: str) -> Left | None: ...
    def is_idle(self) -> bool: ...
    def close(self) -> None: ...


class ModelStation:
    """An engine behind its input loading: images, and what other jobs made, are read in threads, then the job joins
    the batch. Its batch key is the model's; jobs with any of the model's adapters have their place on it."""

    def __init__(
        self,
        spec: ModelSpec,
        engine: Engine,
        storage: Storage,
        pool: ThreadPoolExecutor,
        sources: SourceBook,
        clock: Callable[[], float] = time.perf_counter,
        measured_with: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`measured_with`: the circumstances of what is measured of the model here."""
        self.batch_key = spec.batch_key
        self.step_s = 0.0
        self.spent_s = 0.0
        self._clock = clock
        self._spec, self._engine, self._storage, self._pool = spec, engine, storage, pool
        self._measured_with, self._sources = dict(measured_with), sources
        self._loading: dict[str, tuple[Claim, Future[EngineJob]]] = {}
        self._refused: list[StationEvent] = []

    def free_slots(self) -> int:
        return self._engine.free_slots() - self._loading_rows()

    def want(self) -> Want:
        """What may join."""
        return Want(self.batch_key, self.free_slots(), True, self.is_idle(), self.urgent_slots())

    def load_adapter(self, name: str) -> int:
        """Into memory, before jobs that ask for it come: how many bytes that takes. Raises ModelUnavailable, and
        InvalidJob for an engine that takes none."""
        if not isinstance(self._engine, TakesAdapters):
            how = self._engine.batching
            raise InvalidJob(f"model {self._spec.name} runs in {how} batches, which take no loras")
        return self._engine.load_adapter(name)

    def join_in(self, others: Sequence[ModelStation]) -> None:
        """It has work again: the time that it was idle gives it nothing over those that were at work."""
        if others:
            self.spent_s = max(self.spent_s, min(other.spent_s for other in others))

    def urgent_slots(self) -> int:
        """Besides the free ones, for jobs of p0 only; less what is on its way and will find none free."""
        return self._engine.urgent_slots() + min(0, self.free_slots())

    def _loading_rows(self) -> int:
        return sum(claim.rows for claim, _ in self._loading.values())

    def admit(self, claims: Sequence[Claim]) -> None:
        self._begin_filling([claim for claim in claims if refers(claim)])
        ready = []
        for claim in (claim for claim in claims if not refers(claim)):
            try:
                job = self._parse(claim, self._spec.input_class.model_validate)
            except InvalidJob as err:
                self._refused.append(Failed(claim.job_id, err))
                continue
            if images := _images_of(job):
                self._loading[claim.job_id] = (claim, self._pool.submit(self._with_images, job, images))
            else:
                ready.append(job)
        self._engine.admit(ready)

    def _begin_filling(self, claims: Sequence[Claim]) -> None:
        """What they refer to is read once. The pool goes by this order: no thread waits for what has not begun."""
        if claims:
            reading = self._pool.submit(outputs_for, claims, self._sources)
            for claim in claims:
                self._loading[claim.job_id] = (claim, self._pool.submit(self._filled, claim, reading))

    def step(self) -> list[StationEvent]:
        events: list[StationEvent] = [*self._refused]
        self._refused.clear()
        events += self._join_loaded()
        events += self._timed_step() if self.is_stepping() else self._engine.step()
        return events

    def _timed_step(self) -> list[Event]:
        start = self._clock()
        events = self._engine.step()
        took_s = self._clock() - start
        self.spent_s += took_s
        self.step_s = took_s if not self.step_s else self.step_s + STEP_SMOOTHING * (took_s - self.step_s)
        return events

    def evict(self, job_id: str) -> Left | None:
        if job_id in self._loading:
            self._loading.pop(job_id)[1].cancel()
            return Left(0)
        return self._engine.evict(job_id)

    def is_idle(self) -> bool:
        return self._engine.is_idle() and not self._loading and not self._refused

    def is_loading(self, job_id: str) -> bool:
        """The job waits for its input and takes no part in the steps yet."""
        return job_id in self._loading

    def is_stepping(self) -> bool:
        """The engine has somebody on board; while inputs load there is only waiting."""
        return not self._engine.is_idle()

    @property
    def batching(self) -> Batching:
        return self._engine.batching

    def curves(self) -> Mapping[str, Curve]:
        """By device and shape, joined by a blank."""
        return self._engine.curves()

    def memory(self) -> ModelMemory:
        """What the model takes, as far as that was measured."""
        return replace(self._engine.memory(), measured_with=self._measured_with)

    def parked_bytes(self) -> int:
        """What it holds of the host's memory while it is parked."""
        return self._engine.parked_bytes()

    def park(self) -> None:
        """Out of use: to the host's memory. Raises RuntimeError where that has no room; close it then."""
        self._engine.park()

    def unpark(self) -> None:
        """Back on the device. Raises RuntimeError where that has no room; close it then."""
        self._engine.unpark()

    def close(self) -> None:
        self._engine.close()

    def _filled(self, claim: Claim, reading: Future[dict[str, Made]]) -> EngineJob:
        """Checked as at its submission: how long the texts of others would be nobody could know. Raises what
        `outputs_for` and `filled` raise, and what reading images raises."""
        job = self._parse(filled(claim, reading.result()), self._spec.parse_input)
        return self._with_images(job, _images_of(job))

    def _parse(self, claim: Claim, read: Callable[[Any], JobInput]) -> EngineJob:
        """Raises InvalidJob."""
        try:
            request = claim.call[1][0]
            job_input = read(request["input"])
        except (ValueError, KeyError, IndexError, TypeError) as err:
            raise InvalidJob("the stored input cannot be read") from err
        except InvalidRequest as err:
            raise InvalidJob(err.detail) from None
        return EngineJob(
            claim.job_id, job_input, job_class=claim.origin, vd_ms=claim.vd_ms,
            is_reproducible=request.get("reproducible") is True, is_streamed=request.get("stream") is True,
            has_preview=request.get("preview") is True,
        )  # fmt: skip

    def _with_images(self, job: EngineJob, keys: Mapping[str, str]) -> EngineJob:
        images: dict[str, Any] = {f"{role}_image": self._image(role, key) for role, key in keys.items()}
        return replace(job, **images)

    def _image(self, role: str, key: str) -> Image:
        """Raises InputUnavailable that says which it is, StorageUnavailable, InvalidImage."""
        try:
            return stored_image(self._storage.get(key).body)
        except NotFound:
            raise InputUnavailable(f"the {role} image is not stored any more") from None

    def _join_loaded(self) -> list[StationEvent]:
        events: list[StationEvent] = []
        for job_id in [job_id for job_id, (_, future) in self._loading.items() if future.done()]:
            _, future = self._loading.pop(job_id)
            try:
                self._engine.admit([future.result()])
            except StorageUnavailable as err:
                events.append(Postponed(job_id, INPUT_RETRY_S, InputUnavailable(err.detail)))
            except RedisError as err:
                log.warning("input of %s: %s", job_id, err)
                events.append(
                    Postponed(job_id, INPUT_RETRY_S, InputUnavailable("what others made cannot be read now"))
                )
            except JobFailure as err:
                events.append(Failed(job_id, err))
            except GenmillError as err:
                events.append(Failed(job_id, InputUnavailable(err.detail)))
            except Exception:  # the edge of the loading thread: a stored input that nobody can read
                log.exception("input of %s", job_id)
                events.append(Failed(job_id, InputUnavailable("the stored input cannot be read; the cause is logged")))
        return events


def _images_of(job: EngineJob) -> Mapping[str, str]:
    """Where its images are stored, by their roles."""
    return job.input.images() if isinstance(job.input, ImageInput) else {}
