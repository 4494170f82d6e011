"""Plain RQ jobs: an allow-listed function, one at a time, in a thread, with RQ's timeout."""

from __future__ import annotations

import importlib
import json
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from genmill import keys
from genmill.errors import FunctionNotAllowed, GenmillError, InvalidRequest, JobFailure
from genmill.jobs import Claim, JobRequest
from genmill.keys import JobClass
from genmill.registry import Registry, invalid_request
from genmill.settings import Settings
from genmill.store import Store
from worker.engines.base import Failed, Returned, StationEvent


class _GenerateCall(BaseModel):
    """The argument of a plain push of worker.tasks.generate."""

    model_config = ConfigDict(extra="forbid")

    model: str
    input: dict[str, Any]
    webhook: None = None


class CallStation:
    """Runs plain calls; turns a plain `worker.tasks.generate` into a full job of its lane."""

    batch_key = keys.CALL_BATCH_KEY

    def __init__(self, store: Store, registry: Registry, settings: Settings) -> None:
        self._store, self._registry, self._settings = store, registry, settings
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="call")
        self._running: tuple[str, Future[object]] | None = None
        self._events: list[StationEvent] = []
        self._refiled: list[str] = []

    def free_slots(self) -> int:
        return 0 if self._running else 1

    def admit(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            function, args, kwargs = claim.call
            try:
                if function == keys.GENERATE:
                    self._refile(claim, args, kwargs)
                else:
                    call = self._allowed(function)
                    self._running = (claim.job_id, self._pool.submit(_run, call, args, kwargs))
            except GenmillError as err:
                failure = err if isinstance(err, JobFailure) else JobFailure(err.detail)
                self._events.append(Failed(claim.job_id, failure))

    def step(self) -> list[StationEvent]:
        events, self._events = self._events, []
        if self._running and self._running[1].done():
            job_id, future = self._running
            self._running = None
            events.append(_outcome(job_id, future))
        return events

    def evict(self, job_id: str) -> int | None:
        """A function cannot be stopped from outside; its result is dropped."""
        if self._running and self._running[0] == job_id:
            self._running = None
            return 0
        return None

    def take_refiled(self) -> list[str]:
        """Jobs that went back to the queue as full jobs and are no longer on board."""
        refiled, self._refiled = self._refiled, []
        return refiled

    def is_idle(self) -> bool:
        return self._running is None and not self._events

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

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
        self._refiled.append(claim.job_id)


def _run(call: Callable[..., object], args: Sequence[Any], kwargs: dict[str, Any]) -> object:
    value = call(*args, **kwargs)
    json.dumps(value)  # results are stored as JSON; a value that is not fails its own job, here
    return value


def _outcome(job_id: str, future: Future[object]) -> StationEvent:
    error = future.exception()
    if error is None:
        return Returned(job_id, future.result())
    failure = JobFailure(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    failure.add_note("".join(traceback.format_exception(error)))
    return Failed(job_id, failure)
