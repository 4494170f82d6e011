"""One plain call in a thread of its own: the function, then the one of RQ's callbacks that its end asks for."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any

from rq.callbacks import execute_failure_callback, execute_stopped_callback, execute_success_callback
from rq.job import Job, JobStatus
from rq.timeouts import JobTimeoutException
from rq.utils import now

from genmill.errors import JobFailure
from worker.engines.base import Failed, Returned, StationEvent

log = logging.getLogger("genmill.worker")


class Drop(Enum):
    """Why the end of a call is told by somebody else: it is past its time, RQ's stop command came, or the job is not
    ours any more (canceled, given back, its lease lost)."""

    LATE = auto()
    STOPPED = auto()
    GONE = auto()


class CallThread:
    """A daemon: it must not keep a leaving worker alive, and nothing can end it from outside.

    Callbacks run before the end is told, each within its own timeout; one that raises fails the job, as in RQ. But a
    call that was dropped keeps its thread until the function returns, and only then hears of it: on_failure of a late
    one, on_stopped of a stopped one. All methods are for the worker's loop.
    """

    def __init__(self, job: Job, call: Callable[[], object], timeout_s: float | None) -> None:
        self.job_id: str = job.id
        self._job, self._call = job, call
        self._stage, self._has_told_failure = "function", False
        self._deadline = time.monotonic() + (timeout_s or float("inf"))
        self._lock = threading.Lock()  # over the two: who tells the end
        self._end: StationEvent | None = None
        self._drop: Drop | None = None
        self._thread = threading.Thread(target=self._run, name=f"call {job.id}", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def is_dropped(self) -> bool:
        return self._drop is not None

    def end(self) -> StationEvent | None:
        """The end, when there is one to tell. A call past its time is dropped by this."""
        if self._drop is None and self._end is None and time.monotonic() > self._deadline and self.drop(Drop.LATE):
            return Failed(self.job_id, JobFailure(self._lateness()))
        return None if self._drop is not None else self._end

    def drop(self, why: Drop) -> bool:
        """False when that comes too late: it was dropped before, or has an end, which only GONE takes from it."""
        with self._lock:
            if self._drop is not None or (self._end is not None and why is not Drop.GONE):
                return False
            self._drop = why
            return True

    def _run(self) -> None:
        end = self._work()
        with self._lock:
            self._end = end
        if self._drop is not None:
            self._tell_afterwards(self._drop)

    def _work(self) -> StationEvent:
        try:
            value = self._call()
            json.dumps(value)  # results are stored as JSON; a value that is not fails its own job, here
            if self._drop is None:
                self._tell_success(value)
        except BaseException as error:  # noqa: BLE001  # the edge of the thread: SystemExit is a failure too
            return Failed(self.job_id, _failure(self._tell_failure(error) if self._drop is None else error))
        return Returned(self.job_id, value)

    def _tell_success(self, value: object) -> None:
        self._enter("success callback", JobStatus.FINISHED)
        execute_success_callback(self._job, self._within, value)

    def _tell_failure(self, error: BaseException) -> BaseException:
        """The error to record; one that the callback raises goes before."""
        self._enter("failure callback", JobStatus.FAILED)
        self._has_told_failure = True
        try:
            execute_failure_callback(self._job, self._within, type(error), error, error.__traceback__)
        except BaseException as worse:  # noqa: BLE001  # as above
            return worse
        return error

    def _tell_afterwards(self, why: Drop) -> None:
        try:
            if why is Drop.STOPPED:
                self._enter("stopped callback", JobStatus.STOPPED)
                execute_stopped_callback(self._job, self._within)
            elif why is Drop.LATE and not self._has_told_failure:
                self._tell_failure(JobTimeoutException(self._lateness()))
        except BaseException:  # the edge of the thread; the job has ended before
            log.exception("job %s: %s", self.job_id, self._stage)

    def _enter(self, stage: str, status: JobStatus) -> None:
        """The job as RQ's own worker hands it to a callback; Redis knows nothing of its end yet."""
        self._deadline, self._stage = float("inf"), stage
        self._job.ended_at, self._job._status = now(), status

    @contextmanager
    def _within(self, timeout_s: float, *_error: type[BaseException], **_named: Any) -> Iterator[None]:
        """In the place of RQ's death penalty, which needs the main thread: the worker's loop looks at the clock."""
        self._deadline = time.monotonic() + (timeout_s if timeout_s > 0 else float("inf"))
        yield

    def _lateness(self) -> str:
        return f"the {self._stage} ran longer than its timeout"


def _failure(error: BaseException) -> JobFailure:
    if isinstance(error, JobFailure):
        return error
    failure = JobFailure(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
