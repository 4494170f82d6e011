"""How jobs, claims and ends are written for the scripts, and read from what they answer."""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from genmill.errors import (
    ClassNotAllowed,
    DeadlineUnmeetable,
    DependencyUnusable,
    FieldFault,
    IdempotencyMismatch,
    KeyChanged,
    LimitReached,
)
from genmill.jobs import (
    Claim,
    Dialect,
    JobRecord,
    JobRequest,
    JobState,
    error_json,
    pack_generate,
    record_from_hash,
    unpack_call,
)
from genmill.settings import Settings
from genmill.store.limits import LimitBook
from genmill.store.messages import Barred, KeyGuard, Late, Refusal, Settlement, Standing, Submitted, Unmet

CHUNK = 200
"""Jobs in one run of a script: others wait meanwhile, some milliseconds."""

T = TypeVar("T")


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """As many as one run of a script takes."""
    return (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))


def flat(fields: Mapping[str, Any]) -> list[Any]:
    """Name, value, name, value, as HSET and the scripts take them."""
    return [part for pair in fields.items() for part in pair]


def pairs(answer: Sequence[bytes]) -> list[tuple[str, str]]:
    """The inverse, of text."""
    return [(name.decode(), value.decode()) for name, value in zip(answer[::2], answer[1::2], strict=True)]


def shared_by(request: JobRequest) -> tuple[Any, ...]:
    """What jobs must have in common to be stored by one run of submit.lua: the fields below."""
    spec = request.model
    return (spec.name, request.batch_key, request.job_class, request.tenant, cost_of(request), request.input.rows)


def cost_of(request: JobRequest) -> float:
    """Milliseconds of GPU that the job is expected to take."""
    return round(request.model.cost_ms(request.input), 3)


def shared_fields(request: JobRequest, settings: Settings) -> dict[str, Any]:
    """Fields that all jobs of a model, class, tenant, cost and number of rows have in common."""
    spec = request.model
    return {
        "description": f"{spec.name} {spec.kind}", "origin": request.job_class.value, "timeout": 3600,
        "result_ttl": settings.result_ttl_s, "failure_ttl": settings.failure_ttl_s, "tenant": request.tenant,
        "model": spec.name, "batch_key": request.batch_key, "cost": cost_of(request), "rows": request.input.rows,
    }  # fmt: skip


def own_fields(request: JobRequest) -> dict[str, Any]:
    """Fields of this job alone."""
    fields: dict[str, Any] = {"data": pack_generate(request)}
    if request.webhook:
        fields["hook"] = request.webhook
    if request.start_webhook:
        fields["start_hook"] = request.start_webhook
    if request.dialect is not Dialect.NATIVE:
        fields["dialect"] = request.dialect.value
    if request.metadata:
        fields["metadata"] = json.dumps(dict(request.metadata))
    if request.depends_on:  # as RQ keeps them
        fields["dependency_id"], fields["dependency_ids"] = next(iter(request.depends_on)), _ids(request)
    return fields


def _ids(request: JobRequest) -> str:
    return json.dumps(list(request.depends_on))


def lifetime_s(settings: Settings) -> int:
    """How long an ended job may be there, so long its tenant's list knows it."""
    return max(settings.result_ttl_s, settings.failure_ttl_s)


def submit_args(
    requests: Sequence[JobRequest], settings: Settings, static_limits: str, guard: KeyGuard | None = None
) -> list[Any]:
    """For submit.lua, of jobs that are `shared_by` alike."""
    first = requests[0]
    shared = flat(shared_fields(first, settings))
    lifetime = lifetime_s(settings)
    delay_ms = settings.class_delay_ms[first.job_class.value]
    args = [*(guard or ("", "")), static_limits, settings.idempotency_ttl_s, lifetime, delay_ms, len(shared), *shared]
    for request in requests:
        own = flat(own_fields(request))
        times = [request.ttl_s or 0, request.deadline_s or 0, int(request.is_best_effort)]
        depends_on = _ids(request) if request.depends_on else ""
        head = [request.job_id, request.idempotency_key or "", request.body_hash]
        args += [*head, *times, depends_on, len(own), *own]
    return args


def read_submitted(verdict: Sequence[Any]) -> Submitted:
    """One answer of submit.lua."""
    kind, *rest = verdict
    if kind == b"limited":
        return Submitted("", refusal=read_refusal(rest))
    if kind == b"late":
        deadline_ms, soonest_ms = rest
        return Submitted("", late=Late(int(deadline_ms) / 1000, int(soonest_ms) / 1000))
    if kind == b"barred":
        job_class, allowed = rest
        return Submitted("", barred=Barred(job_class.decode(), tuple(allowed.decode().split())))
    if kind == b"key":
        return Submitted("", is_key_changed=True)
    if kind == b"dependency":
        return Submitted("", unmet=Unmet(*(part.decode("utf-8", "replace") for part in rest)))
    return Submitted(rest[0].decode(), is_replay=kind == b"replayed", is_mismatch=kind == b"mismatch")


def read_refusal(told: Sequence[Any]) -> Refusal:
    scope, limit, value, retry_after_s = told
    return Refusal(scope.decode(), float(limit), float(value), int(retry_after_s))


def accepted(submitted: Submitted, request: JobRequest) -> tuple[str, bool]:
    """(job id, whether an earlier request is replayed). Raises IdempotencyMismatch, LimitReached, DeadlineUnmeetable,
    ClassNotAllowed, DependencyUnusable, KeyChanged."""
    if submitted.is_key_changed:
        raise KeyChanged
    if submitted.is_mismatch:
        raise IdempotencyMismatch
    if submitted.refusal is not None:
        raise limit_reached(submitted.refusal)
    if submitted.late is not None:
        raise deadline_unmeetable(submitted.late)
    if submitted.barred is not None:
        raise class_not_allowed(submitted.barred)
    if submitted.unmet is not None:
        raise dependency_unusable(submitted.unmet, request)
    return submitted.job_id, submitted.is_replay


def deadline_unmeetable(late: Late) -> DeadlineUnmeetable:
    """The error of a job that comes too late."""
    detail = (
        f"deadline_s is {late.deadline_s:g}, the job would end after {late.soonest_s:.1f} s at the soonest; "
        "give it more time, a more urgent priority, or best_effort"
    )
    fault = FieldFault("/deadline_s", detail, f">= {late.soonest_s:.1f}", f"{late.deadline_s:g}")
    return DeadlineUnmeetable(detail, faults=(fault,))


def class_not_allowed(barred: Barred) -> ClassNotAllowed:
    """The error of a job of a class that its tenant may not use."""
    allowed = ", ".join(barred.allowed)
    detail = f"priority {barred.job_class} is not open to this tenant; it may use {allowed}"
    return ClassNotAllowed(detail, faults=(FieldFault("/priority", detail, allowed, barred.job_class),))


def dependency_unusable(unmet: Unmet, request: JobRequest) -> DependencyUnusable:
    """The error of a job that cannot wait for another one."""
    pointer = request.depends_on.get(unmet.job_id, "/depends_on")
    match unmet.what:
        case "ended":
            limit = "a job that may still succeed"
            detail = f"{unmet.detail}; what depends on it would never run: name {limit}"
        case "full":
            limit = f"fewer than {unmet.detail} jobs"
            detail = f"{unmet.detail} jobs wait for job:{unmet.job_id}; it takes one more while {limit} do"
        case _:
            limit = "a job of yours"
            detail = f"{unmet.job_id} is not {limit}, or its result has expired"
    return DependencyUnusable(detail, faults=(FieldFault(pointer, detail, limit, unmet.job_id),))


def limit_reached(refusal: Refusal) -> LimitReached:
    """The error of a refusal."""
    detail = f"the limit {refusal.scope} is {refusal.limit:g}, it stands at {refusal.value:g}"
    fault = FieldFault("/", detail, f"{refusal.limit:g}", f"{refusal.value:g}")
    return LimitReached(
        detail, faults=(fault,), retry_after_s=refusal.retry_after_s, scope=refusal.scope, limit=refusal.limit
    )


def settle_args(settlement: Settlement) -> list[Any]:
    """One job's part of the arguments, see lib/settling.lua."""
    payload = b64encode(json.dumps(settlement.result).encode()) if settlement.result is not None else ""
    # A traceback holds whatever a job's input held, lone surrogates too.
    exc = b64encode(zlib.compress(settlement.exc.encode("utf-8", "replace"))) if settlement.exc else ""
    error = error_json(settlement.error) if settlement.error else ""
    is_hopeless = settlement.error is not None and not settlement.error.is_retryable
    head = [settlement.job_id, settlement.fence, settlement.outcome.value]
    times = [round(settlement.gpu_ms, 3), settlement.delay_ms, int(is_hopeless), round(settlement.run_ms)]
    return [*head, payload, error, exc, *times, output_bytes(settlement.result)]


def output_bytes(result: object) -> int:
    """Bytes of a job's outputs: its files as they are stored, its text as UTF-8. 0 for what a function returned."""
    if not isinstance(result, Mapping):
        return 0
    outputs, text = result.get("outputs"), result.get("text")
    files = outputs if isinstance(outputs, list) else []
    sizes = [one.get("bytes") for one in files if isinstance(one, Mapping)]
    texts = [text.get("text")] if isinstance(text, Mapping) else []
    return sum(size for size in sizes if isinstance(size, int)) + sum(
        len(one.encode("utf-8", "replace")) for one in texts if isinstance(one, str)
    )


def read_claim(row: Sequence[bytes | None], suspect_crashes: int) -> Claim:
    """One row of a claim's answer."""
    job_id, fence, data, origin, tenant, batch_key, vd, postponed, rows, cost, parent, crashes, timeout = (
        b"" if part is None else part for part in row
    )
    try:
        call = unpack_call(data)
    except (ValueError, TypeError, RecursionError):
        call = ("", [], {})  # pickled or broken: the call station refuses it by name, and never unpickles
    return Claim(
        job_id.decode(), int(fence), origin.decode(), tenant.decode(), batch_key.decode(), float(vd),
        int(postponed or 0), int(float(rows or 1)), float(cost or 1), parent.decode() or None,
        int(crashes or 0) >= suspect_crashes, float(timeout) if timeout and float(timeout) > 0 else None, call,
    )  # fmt: skip


def read_record(
    job_id: str, fields: Mapping[bytes, bytes], entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]]
) -> JobRecord:
    """A job hash with its latest result, as HGETALL and XREVRANGE answer."""
    result = entries[0][1].get(b"return_value") if entries and fields.get(b"status") == b"finished" else None
    return record_from_hash(job_id, fields, result)


def read_standing(job_id: str, told: Sequence[Any] | None, limits: LimitBook) -> Standing | None:
    """The answer of standing.lua; None for a job that is not there."""
    if told is None:
        return None
    flat_fields, result, waiting, submissions = told
    fields, found = _paired(flat_fields), _paired(result or ())
    record = record_from_hash(job_id, fields, found.get(b"return_value"))
    is_waiting = waiting is not None and record.state is JobState.QUEUED
    rate = limits.read_rate(record.tenant, submissions)
    return Standing(record, limits.read_waiting(waiting) if is_waiting else None, rate)


def _paired(flat_pairs: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat_pairs[::2], flat_pairs[1::2], strict=True))
