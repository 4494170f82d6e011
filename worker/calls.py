"""Plain RQ jobs: an allow-listed function, one at a time, in a thread of its own, for at most RQ's timeout."""

from __future__ import annotations

import importlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from genmill import keys
from genmill.errors import FunctionNotAllowed, GenmillError, InvalidRequest, JobFailure
from genmill.jobs import Claim, JobRequest
from genmill.keys import JobClass
from genmill.registry import Registry, invalid_request
from genmill.settings import Settings
from genmill.store import Store
from worker.engines.base import Failed, Left, Returned, StationEvent


class _GenerateCall(BaseModel):
    """The argument of a plain push of worker.tasks.generate."""

    model_config = ConfigDict(extra="forbid")

    model: str
    input: dict[str, Any]


@dataclass(slots=True)
class _Running:
    """A call under way. A daemon thread: it must not keep a leaving worker alive, and nothing else can end it."""

    job_id: str
    future: Future[object]
    thread: threading.Thread
    deadline: float
    is_dropped: bool = False


class CallStation:
    """Runs plain calls; turns a plain `worker.tasks.generate` into a full job of its lane."""

    batch_key = keys.CALL_BATCH_KEY

    def __init__(self, store: Store, registry: Registry, settings: Settings) -> None:
        self._store, self._registry, self._settings = store, registry, settings
        self._running: _Running | None = None
        self._events: list[StationEvent] = []
        self._refiled: list[Claim] = []

    def free_slots(self) -> int:
        """None while a thread lives, even if its job has ended: what it holds is not known."""
        return 0 if self._running and self._running.thread.is_alive() else 1

    def admit(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            function, args, kwargs = claim.call
            try:
                if function == keys.GENERATE:
                    self._refile(claim, args, kwargs)
                else:
                    self._running = _start(claim, self._allowed(function), args, kwargs)
            except GenmillError as err:
                failure = err if isinstance(err, JobFailure) else JobFailure(err.detail)
                self._events.append(Failed(claim.job_id, failure))

    def step(self) -> list[StationEvent]:
        events, self._events = self._events, []
        running = self._running
        if running is None or running.is_dropped:
            return events
        if running.future.done():
            self._running = None
            events.append(_outcome(running.job_id, running.future))
        elif time.monotonic() > running.deadline:
            running.is_dropped = True
            events.append(Failed(running.job_id, JobFailure("the function ran longer than the job's timeout")))
        return events

    def evict(self, job_id: str) -> Left | None:
        """A function cannot be stopped from outside; its result is dropped."""
        if self._running and self._running.job_id == job_id and not self._running.is_dropped:
            self._running.is_dropped = True
            return Left(0)
        return None

    def take_refiled(self) -> list[Claim]:
        """Jobs that went back to the queue as full jobs and are no longer on board."""
        refiled, self._refiled = self._refiled, []
        return refiled

    def is_idle(self) -> bool:
        return not self._events and (self._running is None or self._running.is_dropped)

    def close(self) -> None:
        self._running = None

    def _allowed(self, function: str) -> Callable[..., object]:
        if function not in self._settings.functions:
            known = ", ".join((keys.GENERATE, *self._settings.functions))
            raise FunctionNotAllowed(
                f"function {function or '(not JSON)'!r} is not in GENMILL_FUNCTIONS; allowed: {known}"
            )
        module, _, name = function.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as err:
            raise FunctionNotAllowed(f"function {function!r} cannot be imported: {err}") from err
        if not callable(found):
            raise FunctionNotAllowed(f"{function!r} is not a function")
        return found  # type: ignore[no-any-return]  # any callable will do

    def _refile(self, claim: Claim, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        try:
            parsed = _GenerateCall.model_validate(args[0] if args else kwargs.get("request", kwargs))
        except ValidationError as err:
            raise invalid_request(err, "") from None
        if parsed.input.get("init_image") is not None:
            raise InvalidRequest("init_image can only be given through the API")
        spec = self._registry.get(parsed.model)
        job_class = JobClass(claim.origin)
        request = JobRequest(claim.job_id, claim.tenant, spec, spec.parse_input(parsed.input), job_class)
        self._store.refile(claim, request)
        self._refiled.append(claim)


def _start(claim: Claim, call: Callable[..., object], args: Sequence[Any], kwargs: dict[str, Any]) -> _Running:
    future: Future[object] = Future()

    def run() -> None:
        try:
            value = call(*args, **kwargs)
            json.dumps(value)  # results are stored as JSON; a value that is not fails its own job, here
            future.set_result(value)
        except BaseException as error:  # noqa: BLE001  # the edge of the thread: SystemExit is a failure too
            future.set_exception(error)

    thread = threading.Thread(target=run, name=f"call {claim.job_id}", daemon=True)
    deadline = time.monotonic() + (claim.timeout_s or float("inf"))
    thread.start()
    return _Running(claim.job_id, future, thread, deadline)


def _outcome(job_id: str, future: Future[object]) -> StationEvent:
    error = future.exception()
    if error is None:
        return Returned(job_id, future.result())
    failure = JobFailure(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return Failed(job_id, failure)
