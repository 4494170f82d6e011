"""Plain RQ jobs: an allow-listed function, one at a time, in a thread of its own, for at most RQ's timeout."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from redis.exceptions import RedisError
from rq.job import Job
from rq.serializers import JSONSerializer

from genmill import keys
from genmill.errors import FunctionNotAllowed, GenmillError, InvalidJob, InvalidRequest, JobFailure
from genmill.jobs import Claim, JobRequest
from genmill.keys import JobClass
from genmill.registry import Registry, invalid_request
from genmill.settings import Settings
from genmill.store import Store
from worker.call_thread import CallThread, Drop
from worker.engines.base import Failed, Left, StationEvent


class _GenerateCall(BaseModel):
    """The argument of a plain push of worker.tasks.generate."""

    model_config = ConfigDict(extra="forbid")

    model: str
    input: dict[str, Any]
    reproducible: bool = False
    stream: bool = False
    preview: bool = False


class CallStation:
    """Runs plain calls; turns a plain `worker.tasks.generate` into a full job of its lane."""

    batch_key = keys.CALL_BATCH_KEY

    def __init__(self, store: Store, registry: Registry, settings: Settings) -> None:
        self._store, self._registry, self._settings = store, registry, settings
        self._running: CallThread | None = None
        self._events: list[StationEvent] = []
        self._refiled: list[Claim] = []

    def free_slots(self) -> int:
        """None while an end is to be told, or a thread lives whose job has ended: what it holds is not known."""
        running = self._running
        return 0 if running and (running.is_alive() or not running.is_dropped()) else 1

    def admit(self, claims: Sequence[Claim]) -> None:
        """Raises RedisError; nothing has run then."""
        for claim in claims:
            try:
                self._admit(claim)
            except GenmillError as err:
                failure = err if isinstance(err, JobFailure) else InvalidJob(err.detail)
                self._events.append(Failed(claim.job_id, failure))

    def step(self) -> list[StationEvent]:
        events, self._events = self._events, []
        end = self._running.end() if self._running else None
        if self._running and end is not None:
            events.append(end)
            if not self._running.is_dropped():
                self._running = None
        return events

    def evict(self, job_id: str) -> Left | None:
        """A function cannot be stopped from outside; its result is dropped."""
        return self._drop(job_id, Drop.GONE)

    def stop(self, job_id: str) -> Left | None:
        """The same at RQ's stop command: the job's on_stopped is called when the function has returned."""
        return self._drop(job_id, Drop.STOPPED)

    def take_refiled(self) -> list[Claim]:
        """Jobs that went back to the queue as full jobs and are no longer on board."""
        refiled, self._refiled = self._refiled, []
        return refiled

    def is_idle(self) -> bool:
        return not self._events and (self._running is None or self._running.is_dropped())

    def close(self) -> None:
        self._running = None

    def _drop(self, job_id: str, why: Drop) -> Left | None:
        running = self._running
        return Left(0) if running and running.job_id == job_id and running.drop(why) else None

    def _admit(self, claim: Claim) -> None:
        function, args, kwargs = claim.call
        if function == keys.GENERATE:
            if _callbacks_of(self._fetch(claim)):
                raise InvalidJob(f"{function} takes no callbacks; let another job depend on it")
            self._refile(claim, args, kwargs)
            return
        call, job = self._allowed(function), self._fetch(claim)
        for name in _callbacks_of(job):
            self._allowed(name, "callback")
        self._running = CallThread(job, partial(call, *args, **kwargs), claim.timeout_s)

    def _fetch(self, claim: Claim) -> Job:
        """As RQ reads it, never unpickled. Raises InvalidJob, RedisError."""
        try:
            return Job.fetch(claim.job_id, connection=self._store.redis, serializer=JSONSerializer)
        except RedisError:
            raise
        except Exception as err:  # the edge to RQ's reading of a hash that anybody may have written
            raise InvalidJob(f"RQ cannot read the job: {type(err).__name__}: {err}") from err

    def _allowed(self, function: str, role: str = "function") -> Callable[..., object]:
        if function not in self._settings.functions:
            own = (keys.GENERATE,) if role == "function" else ()
            known = ", ".join((*own, *self._settings.functions))
            raise FunctionNotAllowed(
                f"{role} {function or '(not JSON)'!r} is not in GENMILL_FUNCTIONS; allowed: {known}"
            )
        module, _, name = function.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as err:
            raise FunctionNotAllowed(f"{role} {function!r} cannot be imported: {err}") from err
        if not callable(found):
            raise FunctionNotAllowed(f"{function!r} is not a function")
        return found  # type: ignore[no-any-return]  # any callable will do

    def _refile(self, claim: Claim, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        try:
            parsed = _GenerateCall.model_validate(args[0] if args else kwargs.get("request", kwargs))
        except ValidationError as err:
            raise invalid_request(err, "") from None
        for name in ("init_image", "mask_image", "control"):
            if parsed.input.get(name) is not None:
                raise InvalidRequest(f"{name} can only be given through the API")
        spec = self._registry.get(parsed.model)
        request = JobRequest(
            claim.job_id, claim.tenant, spec, spec.parse_input(parsed.input), JobClass(claim.origin),
            is_reproducible=parsed.reproducible, is_streamed=parsed.stream, has_preview=parsed.preview,
        )  # fmt: skip
        self._store.refile(claim, request)
        self._refiled.append(claim)


def _callbacks_of(job: Job) -> list[str]:
    """Dotted names of RQ's on_success, on_failure and on_stopped."""
    names = (job._success_callback_name, job._failure_callback_name, job._stopped_callback_name)
    return [name for name in names if name]
