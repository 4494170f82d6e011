"""One tree of errors. The docstring is the default message; class attributes are policy.

Every error that a client can see carries `code` (stable, for programs), `status` (HTTP) and
`is_retryable` (whether the same request may succeed later).
"""

from __future__ import annotations

from typing import ClassVar

from genmill.faults import FieldFault as FieldFault  # noqa: PLC0414 - who makes an error finds it here


class GenmillError(Exception):
    """Something went wrong inside genmill."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    is_retryable: ClassVar[bool] = False
    retry_after_s: int | None = None
    """When another try makes sense, where that is known."""

    def __init__(self, detail: str | None = None, *, faults: tuple[FieldFault, ...] = ()) -> None:
        self.detail = detail or (type(self).__doc__ or "").strip().split("\n")[0]
        self.faults = faults
        super().__init__(self.detail)


class TooManyWaiting(GenmillError):
    """Too many answers are held already; try again."""

    code, status, is_retryable = "too_many_waiting", 503, True


class TooBusy(GenmillError):
    """Too many requests are worked on already; try again."""

    code, status, is_retryable = "too_busy", 503, True


class StillRunning(GenmillError):
    """The job has not ended while the answer was held; the same request again waits for the same job."""

    code, status, is_retryable = "still_running", 504, True


class SettingsInvalid(GenmillError):
    """The settings have faults."""

    code = "settings_invalid"


class ChildFailed(GenmillError):
    """A process that was started for this has failed."""

    code = "child_failed"


class InvalidRequest(GenmillError):
    """The request is not valid."""

    code, status = "invalid_request", 422


class MalformedJson(InvalidRequest):
    """The body is not a JSON object."""

    code, status = "malformed_json", 400


class UnsupportedMediaType(InvalidRequest):
    """The content type is not supported here."""

    code, status = "unsupported_media_type", 415


class BodyTooLarge(InvalidRequest):
    """The body is larger than the server reads."""

    code, status = "body_too_large", 413


class UnknownModel(InvalidRequest):
    """No model has this name."""

    code, status = "unknown_model", 422


class InvalidImage(InvalidRequest):
    """The input image cannot be used."""

    code = "invalid_image"


class BatchInvalid(InvalidRequest):
    """Lines of the batch are not valid; nothing of it is kept."""

    code = "batch_invalid"


class IdempotencyMismatch(InvalidRequest):
    """This Idempotency-Key was used with another body."""

    code = "idempotency_mismatch"


class DeadlineUnmeetable(InvalidRequest):
    """The job cannot end before its deadline."""

    code = "deadline_unmeetable"


class DependencyUnusable(InvalidRequest):
    """The job cannot wait for a job that it depends on."""

    code = "dependency_unusable"


class NothingToDeliver(InvalidRequest):
    """No webhook of this was due, so none can be sent once more."""

    code = "nothing_to_deliver"


class Unauthorized(GenmillError):
    """A valid API key is needed."""

    code, status = "unauthorized", 401


class KeyChanged(Unauthorized):
    """The API key has changed since it was looked up."""


class Forbidden(GenmillError):
    """The signature or the key does not allow this."""

    code, status = "forbidden", 403


class ScopeMissing(Forbidden):
    """The API key does not have the scope that this needs."""

    code = "scope_missing"


class ClassNotAllowed(Forbidden):
    """The tenant may not use this priority."""

    code = "class_not_allowed"


class LimitReached(GenmillError):
    """The tenant has too many jobs now, or has used up what it may."""

    code, status, is_retryable = "limit_reached", 429, True

    def __init__(
        self, detail: str | None = None, *, faults: tuple[FieldFault, ...] = (), retry_after_s: int | None = None,
        scope: str | None = None, limit: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(detail, faults=faults)
        self.retry_after_s, self.scope, self.limit = retry_after_s, scope, limit


class NotFound(GenmillError):
    """There is nothing here."""

    code, status = "not_found", 404


class JobNotFound(NotFound):
    """No such job."""

    code = "job_not_found"


class PreviewNotFound(NotFound):
    """The job has no preview, or none yet."""

    code = "preview_not_found"


class BatchNotFound(NotFound):
    """No such batch."""

    code = "batch_not_found"


class OutputExpired(GenmillError):
    """The output is past its retention."""

    code, status = "output_expired", 410


class StoreUnavailable(GenmillError):
    """The queue's Redis cannot be reached; try again."""

    code, status, is_retryable = "store_unavailable", 503, True


class StorageUnavailable(GenmillError):
    """The output storage cannot be reached; try again."""

    code, status, is_retryable = "storage_unavailable", 503, True


class TooManyStreams(GenmillError):
    """Too many event streams are open here; try again."""

    code, status, is_retryable = "too_many_streams", 503, True


class TextChanged(GenmillError):
    """The text was begun anew after a fault and goes on otherwise than what was told; the job has all of it."""

    code, is_retryable = "text_changed", True


class JobFailure(GenmillError):
    """The job could not be completed."""

    code, is_retryable = "job_failed", True
    """Of a job: whether another run may succeed; asked for jobs that have RQ's Retry. `status` is what a client hears
    whose answer was held until the job's end."""


class InvalidJob(JobFailure):
    """The job asks for what cannot be done."""

    code, status, is_retryable = "invalid_job", 422, False


class JobPoisoned(JobFailure):
    """The worker died several times with this job on board."""

    code, is_retryable = "poisoned", False


class JobExpired(JobFailure):
    """The job waited longer than its ttl or deadline allows."""

    code, status, is_retryable = "expired", 504, False


class JobCanceled(JobFailure):
    """The job was canceled."""

    code, status, is_retryable = "canceled", 409, False


class DependencyFailed(JobFailure):
    """A job that this one depends on did not succeed."""

    code, status, is_retryable = "dependency_failed", 424, False


class JobDeleted(JobFailure):
    """The job was deleted before its result was collected."""

    code, is_retryable = "job_deleted", False


class ModelUnavailable(JobFailure):
    """The model could not be loaded on this worker."""

    code = "model_unavailable"


class GenerationFailed(JobFailure):
    """The model raised while it worked on this job."""

    code = "generation_failed"


class OutputInvalid(JobFailure):
    """The model produced NaN or an empty image."""

    code = "output_invalid"


class InputUnavailable(JobFailure):
    """An input of the job could not be read."""

    code, status, is_retryable = "input_unavailable", 422, False


class DeliveryFailed(JobFailure):
    """The webhook receiver did not answer with 2xx."""

    code = "delivery_failed"


class FunctionNotAllowed(JobFailure):
    """The job names a function that this worker does not run."""

    code, is_retryable = "function_not_allowed", False
