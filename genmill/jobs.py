"""The job as the store knows it: states, transitions, the record that everybody reads."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, assert_never

from ulid import ULID

from genmill.errors import JobFailure
from genmill.inputs import JobInput
from genmill.keys import GENERATE, JobClass
from genmill.references import Reference, stored
from genmill.registry import ModelSpec


class JobState(StrEnum):
    """What a client sees. Derived from RQ's status, so that RQ's tools and ours can never disagree."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"

    @property
    def is_terminal(self) -> bool:
        match self:
            case JobState.QUEUED | JobState.RUNNING:
                return False
            case JobState.SUCCEEDED | JobState.FAILED | JobState.CANCELED | JobState.EXPIRED:
                return True
            case _:
                assert_never(self)


class Dialect(StrEnum):
    """Whose client submitted the job, so how its webhook tells of it."""

    NATIVE = "native"
    REPLICATE = "replicate"
    OPENAI = "openai"


TRANSITIONS: Mapping[tuple[JobState | None, str], JobState] = {
    (None, "submit"): JobState.QUEUED,
    (JobState.QUEUED, "claim"): JobState.RUNNING,
    (JobState.QUEUED, "cancel"): JobState.CANCELED,
    (JobState.QUEUED, "expire"): JobState.EXPIRED,
    (JobState.QUEUED, "release"): JobState.QUEUED,
    (JobState.QUEUED, "give_up"): JobState.FAILED,
    (JobState.RUNNING, "succeed"): JobState.SUCCEEDED,
    (JobState.RUNNING, "fail"): JobState.FAILED,
    (JobState.RUNNING, "cancel"): JobState.CANCELED,
    (JobState.RUNNING, "return"): JobState.QUEUED,
    (JobState.RUNNING, "schedule"): JobState.QUEUED,
    (JobState.RUNNING, "retry"): JobState.QUEUED,
    (JobState.RUNNING, "repeat"): JobState.QUEUED,
    (JobState.RUNNING, "reap"): JobState.QUEUED,
    (JobState.RUNNING, "poison"): JobState.FAILED,
    (JobState.FAILED, "requeue"): JobState.QUEUED,
    (JobState.EXPIRED, "requeue"): JobState.QUEUED,
    (JobState.CANCELED, "requeue"): JobState.QUEUED,
    (JobState.SUCCEEDED, "redeliver"): JobState.QUEUED,
    (JobState.FAILED, "redeliver"): JobState.QUEUED,
    (JobState.CANCELED, "redeliver"): JobState.QUEUED,
}
"""(state before, event) -> state after; docs/states.md draws this table."""

_BY_RQ_STATUS = {
    "created": JobState.QUEUED,
    "queued": JobState.QUEUED,
    "deferred": JobState.QUEUED,
    "scheduled": JobState.QUEUED,
    "started": JobState.RUNNING,
    "finished": JobState.SUCCEEDED,
    "failed": JobState.FAILED,
    "stopped": JobState.CANCELED,
    "canceled": JobState.CANCELED,
}


def new_job_id() -> str:
    """Sorts by time of creation; characters that RQ allows."""
    return str(ULID()).lower()


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A validated job that is not stored yet. It may wait for `ttl_s`; it should end within `deadline_s`, and is not
    taken when it cannot, nor kept waiting past it, unless `is_best_effort`. One that `is_reproducible` shares no
    forward with others. While it runs it tells, of a text that `is_streamed` the tokens, of pictures that it
    `has_preview` of how they look. `webhook` is called at its end, `start_webhook` when a worker first takes it.

    It waits until all that it `depends_on` have succeeded: ids, with the pointer to where the request names each.
    `references` are to their outputs, by the places of `input` that these will fill; until then words stand there.
    """

    job_id: str
    tenant: str
    model: ModelSpec
    input: JobInput
    job_class: JobClass = JobClass.P1
    webhook: str | None = None
    start_webhook: str | None = None
    dialect: Dialect = Dialect.NATIVE
    ttl_s: int | None = None
    deadline_s: float | None = None
    is_best_effort: bool = False
    is_reproducible: bool = False
    is_streamed: bool = False
    has_preview: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    idempotency_key: str | None = None
    body_hash: str = ""
    depends_on: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, Reference] = field(default_factory=dict)

    @property
    def batch_key(self) -> str:
        return self.model.batch_key_of(self.input)


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that this worker holds the lease of. `call` is (function, args, kwargs) as RQ stores it; `is_suspect`: it
    was on board at every crash but the last allowed one, and runs alone. `postponed`: how often it was put off.
    """

    job_id: str
    fence: int
    origin: str
    tenant: str
    batch_key: str
    vd_ms: float
    postponed: int
    rows: int
    cost_ms: float
    parent: str | None
    is_suspect: bool
    timeout_s: float | None
    call: tuple[str, list[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A stored job. Times in Unix milliseconds; `result` is what the worker returned."""

    job_id: str
    tenant: str
    state: JobState
    model: str
    job_class: str
    batch_key: str
    request: Mapping[str, Any]
    fence: int
    rows: int
    created_at: str
    enqueued_ms: float
    started_ms: float | None
    ended_ms: float | None
    gpu_ms: float
    metadata: Mapping[str, Any]
    progress: Mapping[str, int] | None
    error: Mapping[str, str] | None
    result: Any
    has_cancel_request: bool
    webhook: str | None
    deadline_ms: float | None = None
    dialect: Dialect = Dialect.NATIVE
    depends_on: tuple[str, ...] = ()
    is_loading: bool = False
    """A worker has it, and loads its model."""

    @property
    def is_streamed(self) -> bool:
        return self.request.get("stream") is True

    @property
    def has_preview(self) -> bool:
        return self.request.get("preview") is True


def error_json(error: JobFailure) -> str:
    return json.dumps({"code": error.code, "message": error.detail})


def failure_of(error: Mapping[str, str] | None) -> JobFailure:
    """The failure that a stored job tells of: the class with its code, with its own message."""
    told = error or {}
    kinds = {kind.code: kind for kind in JobFailure.__subclasses__()}
    return kinds.get(told.get("code", ""), JobFailure)(told.get("message"))


def pack_call(function: str, args: list[Any], kwargs: Mapping[str, Any]) -> bytes:
    """RQ's `data` field with its JSONSerializer: zlib of [function, instance, args, kwargs]."""
    return zlib.compress(json.dumps([function, None, args, dict(kwargs)], separators=(",", ":")).encode())


def unpack_call(raw: bytes) -> tuple[str, list[Any], dict[str, Any]]:
    """The inverse; reads plain JSON too, as Lua writes it. Never unpickles. Raises ValueError."""
    with suppress(zlib.error):  # written by Lua, which has no zlib; RQ reads both forms as well
        raw = zlib.decompress(raw)
    function, _instance, args, kwargs = json.loads(raw.decode("utf-8"))
    return str(function), list(args), dict(kwargs or {})


def pack_generate(request: JobRequest) -> bytes:
    asked: dict[str, Any] = {
        "model": request.model.name, "input": request.input.model_dump(mode="json", exclude_defaults=False)
    }  # fmt: skip
    if request.is_reproducible:
        asked["reproducible"] = True
    if request.is_streamed:
        asked["stream"] = True
    if request.has_preview:
        asked["preview"] = True
    if request.references:
        asked["references"] = stored(request.references)
    return pack_call(GENERATE, [asked], {})


def state_of(status: str, error: Mapping[str, str] | None) -> JobState:
    """One truth: RQ's status, told apart by the error's code where RQ has no word for it."""
    state = _BY_RQ_STATUS.get(status, JobState.QUEUED)
    if state is JobState.FAILED and error and error.get("code") == "expired":
        return JobState.EXPIRED
    return state


LOADING = '{"step": 0, "steps": 0, "loading": true}'
"""Stands as a job's progress while its model is loaded; with steps for whoever knows of those alone."""


def progress_of(text: str | bytes) -> tuple[int, int] | None:
    """(step, steps) of a job's progress as it is stored; None where no step was told of."""
    told = json.loads(text) if text else {}
    return None if not told or _is_loading(told) else (told["step"], told["steps"])


def _is_loading(told: Mapping[str, Any]) -> bool:
    return "loading" in told


def record_from_hash(job_id: str, fields: Mapping[bytes, bytes], result: bytes | None) -> JobRecord:
    """Read a job hash; missing fields (jobs of foreign tools) take neutral values."""

    def text(name: str, default: str = "") -> str:
        return fields.get(name.encode(), default.encode()).decode("utf-8", "replace")

    def number(name: str) -> float | None:
        return float(text(name)) if text(name) else None

    def document(name: str) -> dict[str, Any] | None:
        return json.loads(text(name)) if text(name) else None

    try:
        _function, args, _kwargs = unpack_call(fields.get(b"data", b"[null,null,[],{}]"))
    except (ValueError, TypeError):
        args = []
    error, steps, told = document("error"), progress_of(text("progress")), document("progress") or {}
    progress = steps and {"step": steps[0], "steps": steps[1]}
    request = args[0] if args and isinstance(args[0], dict) else {}
    return JobRecord(
        job_id=job_id, tenant=text("tenant", "default"), state=state_of(text("status"), error), model=text("model"),
        job_class=text("origin"), batch_key=text("batch_key"), request=request, fence=int(number("fence") or 0),
        rows=int(number("rows") or 1), created_at=text("created_at"), enqueued_ms=number("enqueued_ms") or 0.0,
        started_ms=number("start_ms"), ended_ms=number("ended_ms"), gpu_ms=number("gpu_ms") or 0.0,
        metadata=document("metadata") or {}, progress=progress, is_loading=_is_loading(told), error=error,
        result=json.loads(b64decode(result)) if result else None, has_cancel_request=bool(text("cancel")),
        webhook=text("hook") or None, deadline_ms=number("deadline_ms"), dialect=Dialect(text("dialect", "native")),
        depends_on=tuple(json.loads(text("dependency_ids", "[]"))),
    )  # fmt: skip
