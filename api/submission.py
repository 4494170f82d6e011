"""From a request body to a stored job: nothing is stored before everything is checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from redis.exceptions import RedisError

from api import desk
from api.chains import MOST_DEPENDENCIES, check_sources, dependencies_of
from api.input_images import read_input_images
from api.services import Services
from genmill import net
from genmill.errors import (
    ClassNotAllowed,
    DeadlineUnmeetable,
    DependencyUnusable,
    FieldFault,
    IdempotencyMismatch,
    InvalidRequest,
    KeyChanged,
    LimitReached,
    StorageUnavailable,
    StoreUnavailable,
)
from genmill.inputs import ImageInput, JobInput
from genmill.jobs import Dialect, JobRequest, new_job_id
from genmill.keeping import clear_away, inputs_folder, shelve
from genmill.keys import JobClass
from genmill.references import JOB_ID, Reference, take_out
from genmill.registry import ModelSpec, invalid_request
from genmill.store import KeyGuard, Stored
from genmill.strict_json import Flag
from genmill.tenants import allowed_classes

MAX_METADATA_BYTES = 4096
MAX_TTL_S = 7 * 24 * 3600

JobId = Annotated[str, StringConstraints(pattern=rf"^{JOB_ID}$")]

Metadata = TypeVar("Metadata", bound=Mapping[str, Any])


def check_metadata(metadata: Metadata) -> Metadata:
    """Raises ValueError."""
    size = len(json.dumps(metadata))
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"takes {size} bytes as JSON, at most {MAX_METADATA_BYTES} bytes are kept")
    return metadata


CLASS_TEXT = (
    "p0 is the most urgent class, p3 the least. Without it p1, or for a tenant that may not use p1 the most urgent "
    "below it that it may use."
)


STREAM_TEXT = (
    "Tell a text's tokens as they come, in the job's events. Pictures have their progress and outputs there, asked or "
    "not."
)


class JobFields(BaseModel):
    """What is asked of every job."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, StringConstraints(min_length=1, max_length=200)] = Field(
        description="Name or alias of a model, see GET /v1/models."
    )
    input: dict[str, Any] = Field(description="What to generate; the model's input_schema tells the fields.")
    priority: JobClass = Field(default=JobClass.P1, description=CLASS_TEXT)
    webhook: str | None = Field(default=None, description="Called once the job has ended, signed.")
    ttl_s: int | None = Field(default=None, ge=1, le=MAX_TTL_S, description="Expire when not started by then.")
    deadline_s: float | None = Field(
        default=None, ge=0.1, le=MAX_TTL_S, allow_inf_nan=False,
        description="The job should have ended by then. Refused when it cannot, expired when it waits past it.",
    )  # fmt: skip
    best_effort: Flag = Field(default=False, description="Take the job and run it, even past its deadline.")
    reproducible: Flag = Field(
        default=False, description="Share no forward with others: slower; the same bits on the same kind of device."
    )
    stream: Flag = Field(default=False, description=STREAM_TEXT)
    preview: Flag = Field(
        default=False, description="Draw small previews of pictures (not of videos) as they are made."
    )
    metadata: Annotated[dict[str, Any], AfterValidator(check_metadata)] = Field(
        default_factory=dict, description="Given back with the job; 4096 bytes of JSON."
    )


class JobBody(JobFields):
    """Body of `POST /v1/jobs`."""

    depends_on: Annotated[tuple[JobId, ...], Field(max_length=MOST_DEPENDENCIES)] = Field(
        default=(),
        description="Ids of your jobs. This one waits until all have succeeded, and ends with the first that does "
        "not. Those that its input refers to count without being named here.",
    )


@dataclass(frozen=True, slots=True)
class Manner:
    """How a dialect wants its job told of: by which of its webhook's events, `start` and `end`."""

    dialect: Dialect = Dialect.NATIVE
    events: frozenset[str] = frozenset({"end"})

    def webhook(self, event: str, url: str | None) -> str | None:
        return url if event in self.events else None


NATIVE = Manner()

NOT_STORED = (
    ClassNotAllowed, DeadlineUnmeetable, DependencyUnusable, IdempotencyMismatch, KeyChanged, LimitReached,
    StorageUnavailable,
)  # fmt: skip
"""Say that a job is not stored; StoreUnavailable does not, when the append-only file is late."""


def submit(
    raw: Mapping[str, Any],
    tenant: str,
    idempotency_key: str | None,
    services: Services,
    manner: Manner = NATIVE,
    *,
    guard: KeyGuard | None = None,
) -> Stored:
    """Raises InvalidRequest of many kinds, and KeyChanged where the API key is not as `guard` says, which is only for
    what `reads_nothing`.

    Its images are stored before the job, so that a worker never finds a job without them, and removed again when the
    job is not.
    """
    request, images = _checked(raw, tenant, idempotency_key, services, manner)
    has_class = "priority" in raw
    if not images:
        return _store(request, services, guard, has_class=has_class)
    shelve(services.redis, request.job_id, services.settings)
    try:
        for place, png in images.items():
            services.storage.put(place, png, "image/png")
        stored = _store(request, services, guard, has_class=has_class)
    except RedisError:
        if not _is_stored(request.job_id, services):
            _clear_away(request.job_id, services)
            raise
        return _store(request, services, guard, has_class=has_class)  # the answer got lost: an id is stored once
    except NOT_STORED:
        _clear_away(request.job_id, services)
        raise
    if stored.job_id != request.job_id:
        _clear_away(request.job_id, services)
    return stored


def _clear_away(job_id: str, services: Services) -> None:
    """The images of a job that is not stored. What cannot be done now the scheduler does later, by the shelf."""
    with suppress(StorageUnavailable, RedisError):
        clear_away(services.redis, services.storage, job_id)


def reads_nothing(raw: Mapping[str, Any]) -> bool:
    """Whether checking this body takes no look at other jobs, files or hosts: it has texts and numbers alone."""
    given = raw.get("input")
    if not isinstance(given, Mapping) or raw.keys() & {"webhook", "depends_on"}:
        return False
    return not given.keys() & {"init_image", "mask_image"} and not any(
        isinstance(value, (Mapping, list)) for value in given.values()
    )


def _checked(
    raw: Mapping[str, Any], tenant: str, idempotency_key: str | None, services: Services, manner: Manner
) -> tuple[JobRequest, dict[str, bytes]]:
    """The request, and its images by the places where they are to be stored."""
    try:
        body = JobBody.model_validate(raw)
    except ValidationError as err:
        raise invalid_request(err, "", JobBody.model_fields) from None
    spec = services.registry.get(body.model)
    filled, references = take_out(body.input)
    job_input = spec.parse_input(filled)
    depends_on = dependencies_of(body.depends_on, references)
    check_sources(references, tenant, services)
    check_preview(body, spec, job_input)
    if body.webhook is not None:
        with desk.away():  # its host is looked up
            net.check_webhook(body.webhook, services.settings)
    job_id = new_job_id()
    job_input, images = _placed(job_input, inputs_folder(job_id), references, tenant, services)
    request = JobRequest(
        job_id=job_id, tenant=tenant, model=spec, input=job_input, job_class=body.priority,
        webhook=manner.webhook("end", body.webhook), start_webhook=manner.webhook("start", body.webhook),
        dialect=manner.dialect, ttl_s=body.ttl_s, deadline_s=body.deadline_s, is_best_effort=body.best_effort,
        is_reproducible=body.reproducible, is_streamed=body.stream, has_preview=body.preview, metadata=body.metadata,
        idempotency_key=idempotency_key, body_hash=body_hash(raw), depends_on=depends_on, references=references,
    )  # fmt: skip
    return request, images


def _placed(
    job_input: JobInput, folder: str, references: Mapping[str, Reference], tenant: str, services: Services
) -> tuple[JobInput, dict[str, bytes]]:
    """The input with its images in `folder`, and these by their places. What other jobs make is not there yet."""
    if not isinstance(job_input, ImageInput):
        return job_input, {}
    pngs = read_input_images(job_input, tenant, services, but={f"/input/{place}" for place in references})
    places = {role: f"{folder}/{role}.png" for role in pngs}
    return job_input.with_images(places), {places[role]: png for role, png in pngs.items()}


def check_preview(body: JobFields, spec: ModelSpec, job_input: JobInput) -> None:
    """Raises InvalidRequest where there would be none."""
    if not body.preview:
        return
    if not isinstance(job_input, ImageInput):
        raise _no_preview(f"preview is of pictures, model {spec.name} writes text: it has stream", "image models")
    if job_input.num_frames > 1:
        raise _no_preview(f"preview is of pictures, not of a video of {job_input.num_frames} frames", "1 frame")


def _no_preview(detail: str, limit: str) -> InvalidRequest:
    return InvalidRequest(detail, faults=(FieldFault("/preview", detail, limit, "true"),))


def _store(request: JobRequest, services: Services, guard: KeyGuard | None, *, has_class: bool) -> Stored:
    """In the class that was asked for; else in the most urgent that the tenant may use and that is no more urgent than
    the default. Few tenants are barred from that, so it is tried first."""
    try:
        return services.store.submit_told(request, guard)
    except ClassNotAllowed:
        allowed = allowed_classes(services.redis, request.tenant) or list(JobClass)
        fitting = [one for one in JobClass if one >= request.job_class and one in allowed]
        if has_class or not fitting:
            raise
    return services.store.submit_told(replace(request, job_class=fitting[0]), guard)


def body_hash(raw: Mapping[str, Any]) -> str:
    """Of the body as it was sent, but for order and white space; so a drawn seed does not change it."""
    return hashlib.sha256(json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _is_stored(job_id: str, services: Services) -> bool:
    """Whether a submit that failed was made all the same. Raises StoreUnavailable, and its images stay, when
    nobody can tell: a job without its input would be worse than an input without its job."""
    try:
        return services.store.get(job_id) is not None
    except RedisError as err:
        raise StoreUnavailable from err
