"""The table of operations that the OpenAPI document is built from; a test holds it against the app's routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from genmill.api_keys import Scope
from genmill.jobs import JobState

_UNAUTHORIZED = {401: "No valid API key"}
_AWAY = {503: "Redis or the storage is away; see Retry-After"}
_LIMITED = {429: "A quota of the tenant is used up; `errors` names it, see Retry-After"}
_BARRED = {403: "The tenant may not use this priority, or the key does not have the scope `submit`"}
_INVALID = {422: "A field is not valid; `errors` names field, limit and value"}
_ABSENT = {404: "There is nothing here for this tenant"}
_BODY = {400: "Not a JSON object", 413: "Body too large", 415: "Wrong content type"}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `is_open`: no API key is asked for; else one with `needed_scope`."""

    method: str
    path: str
    name: str
    summary: str
    answers: Mapping[int, dict[str, Any]]
    problems: Mapping[int, str] = field(default_factory=dict)
    parameters: tuple[dict[str, Any], ...] = ()
    body: dict[str, Any] | None = None
    is_open: bool = False
    scope: Scope | None = None
    is_body_needed: bool = True

    @property
    def needed_scope(self) -> Scope:
        """The one given, else that of the method, as in api/auth.py."""
        return self.scope or (Scope.READ if self.method == "get" else Scope.SUBMIT)


def _json(text: str, schema: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
    }
    if headers:
        answer["headers"] = {name: {"description": why, "schema": {"type": "string"}} for name, why in headers.items()}
    return answer


def _parameter(where: str, name: str, schema: dict[str, Any], why: str, *, is_needed: bool = False) -> dict[str, Any]:
    return {"name": name, "in": where, "required": is_needed, "schema": schema, "description": why}


_EVENT_SCHEMA = "#/components/schemas/JobEvent"
_BYTES = {"description": "The bytes", "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}
_UNCHANGED = {"description": "Not changed since the given ETag"}
_WAIT = (
    _parameter("query", "wait", {"type": "number", "minimum": 0}, "Hold the answer for up to 60 seconds."),
    _parameter("header", "Prefer", {"type": "string"}, "`wait=N` holds the answer for up to N <= 60 seconds."),
)
_IDEMPOTENCY = _parameter(
    "header", "Idempotency-Key", {"type": "string", "maxLength": 255},
    "The same key and body give the same job for 24 hours; another body is refused with 422.",
)  # fmt: skip
_SUBMIT_BODY = {
    "application/json": {
        "schema": {"$ref": "#/components/schemas/JobBody"},
        "examples": {
            "image": {
                "value": {
                    "model": "shapes",
                    "input": {"prompt": "a red circle on a blue background", "steps": 20, "seed": 7},
                }
            },
            "text": {"value": {"model": "captions", "input": {"prompt": "a red", "max_tokens": 8}}},
        },
    }
}
_UPLOAD_BODY = {
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {
                "content": {"type": "string", "format": "binary"},
                "file": {"type": "string", "format": "binary"},
                "purpose": {"type": "string", "description": "`batch` for lines of a batch; else it is an image."},
            },
        }
    }
}
_LIST_QUERY = (
    _parameter("query", "state", {"enum": [state.value for state in JobState]}, "Only jobs in this state."),
    _parameter("query", "model", {"type": "string"}, "Only jobs of this model."),
    _parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": 100}, "Most jobs on the page."),
    _parameter("query", "after", {"type": "string"}, "`after` of the page before."),
)
_LINES = {"schema": {"type": "string", "description": "One LineBody a line, each a JSON object."}}
_BATCH_BODY = {
    "application/x-ndjson": {
        **_LINES,
        "examples": {
            "two": {
                "value": '{"custom_id": "a", "model": "shapes", "input": {"prompt": "a red circle"}}\n'
                '{"custom_id": "b", "model": "captions", "input": {"prompt": "a red"}}\n'
            }
        },
    },
    "application/jsonl": _LINES,
    "application/json": {"schema": {"$ref": "#/components/schemas/BatchBody"}},
}
_BATCH_QUERY = (
    _parameter("query", "priority", {"$ref": "#/components/schemas/JobClass"}, "With lines: class of those without."),
    _parameter("query", "expires_in_s", {"type": "integer", "minimum": 60}, "With lines: seconds that the batch has."),
    _parameter("query", "rerun", {"type": "boolean"}, "With lines: run them although an earlier batch has."),
)
_BATCH_PAGE = (
    _parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": 100}, "Most batches on the page."),
    _parameter("query", "after", {"type": "string"}, "`after` of the page before."),
)
_RESULTS_QUERY = (
    _parameter("query", "after", {"type": "integer", "minimum": 0}, "`seq` of the last line that is known already."),
    _parameter("query", "limit", {"type": "integer", "minimum": 1}, "Most lines."),
)
_RESULTS = {
    "description": "Lines that have ended and are not known yet, each once, in a lasting order",
    "content": {"application/x-ndjson": {"schema": {"$ref": "#/components/schemas/BatchResult"}}},
}
_SIGNED = (
    _parameter("query", "expires", {"type": "string"}, "Unix time.", is_needed=True),
    _parameter("query", "signature", {"type": "string"}, "Made by genmill.", is_needed=True),
)
_RATE = {
    "RateLimit-Policy": "Of a tenant with a limit of submissions: how many (`q`) in how many seconds (`w`)",
    "RateLimit": "How many are left (`r`), and seconds until all are again (`t`)",
}
_SUBMITTED = {"Location": "The job", "Retry-After": "Seconds until it is worth asking", **_RATE}
_EVENTS = {
    "description": (
        "Events until the job has ended, a comment every 15 seconds in between. Each has an `id`, an `event` that is "
        "the `kind` of JobEvent, and `data`, which is its rest as JSON. Every job has `state` (the last is terminal, "
        "and ends the stream), `progress` and `output`; a text has `token`, at its end or, with `stream`, as it is "
        "written; pictures have `preview` where that was asked for. Another `attempt` makes void what was told of the "
        "one before."
    ),
    "content": {"text/event-stream": {"schema": {"type": "string", "contentSchema": {"$ref": _EVENT_SCHEMA}}}},
}
_LAST_EVENT = _parameter(
    "header", "Last-Event-ID", {"type": "string", "maxLength": 80},
    "The id of the last event that was heard: the stream goes on behind it, with nothing lost and nothing told twice.",
)  # fmt: skip
_PREVIEW = {
    "description": "How the pictures look now",
    "content": {"image/webp": {"schema": {"type": "string", "format": "binary"}}},
    "headers": {
        name: {"description": why, "schema": {"type": "string"}}
        for name, why in {"X-Attempt": "Of which attempt", "X-Step": "After how many steps"}.items()
    },
}
_READ = _UNAUTHORIZED | _AWAY

OPERATIONS = (
    Operation(
        "post", "/v1/jobs", "submitJob", "Submit a job",
        {202: _json("Accepted", "Job", _SUBMITTED), 200: _json("Ended while the answer was held", "Job")},
        _READ | _INVALID | _BODY | _LIMITED | _BARRED, (*_WAIT, _IDEMPOTENCY), _SUBMIT_BODY,
    ),
    Operation(
        "get", "/v1/jobs", "listJobs", "List your jobs, newest first",
        {200: _json("A page", "JobList")}, _READ | _INVALID, _LIST_QUERY,
    ),
    Operation(
        "get", "/v1/jobs/{job_id}", "readJob", "Read a job, or wait for its end",
        {200: _json("The job", "Job")}, _READ | _ABSENT | _INVALID, _WAIT,
    ),
    Operation(
        "post", "/v1/jobs/{job_id}/cancel", "cancelJob", "Cancel a job wherever it stands",
        {200: _json("What it did", "CanceledJob")}, _READ | _ABSENT,
    ),
    Operation(
        "get", "/v1/jobs/{job_id}/events", "followJob", "Follow a job by server-sent events, to its end",
        {200: _EVENTS, 204: {"description": "All has been heard: the job had ended"}},
        _UNAUTHORIZED | _ABSENT | _INVALID | {503: "Redis is away, or too many streams are open; see Retry-After"},
        (_LAST_EVENT,),
    ),
    Operation(
        "get", "/v1/jobs/{job_id}/preview", "readPreview", "Read the latest preview of a job with `preview`",
        {200: _PREVIEW}, _READ | _ABSENT,
    ),
    Operation(
        "post", "/v1/batches", "createBatch", "Submit many jobs as the lines of one body or file",
        {202: _json("Accepted", "Batch", {"Location": "The batch", **_RATE}), 200: _json("Known already", "Batch")},
        _READ | _INVALID | _BODY | _LIMITED | _ABSENT, _BATCH_QUERY, _BATCH_BODY,
    ),
    Operation(
        "get", "/v1/batches", "listBatches", "List your batches, newest first",
        {200: _json("A page", "BatchList")}, _READ | _INVALID, _BATCH_PAGE,
    ),
    Operation(
        "get", "/v1/batches/{batch_id}", "readBatch", "Read how far a batch is",
        {200: _json("The batch", "Batch")}, _READ | _ABSENT,
    ),
    Operation(
        "post", "/v1/batches/{batch_id}/cancel", "cancelBatch",
        "Cancel a batch: what waits is canceled, what runs may end",
        {200: _json("What it did", "CanceledBatch")}, _READ | _ABSENT,
    ),
    Operation(
        "get", "/v1/batches/{batch_id}/results", "readBatchResults", "Read a batch's results, while it runs and after",
        {200: _RESULTS}, _READ | _ABSENT | _INVALID, _RESULTS_QUERY,
    ),
    Operation("get", "/v1/models", "listModels", "List models", {200: _json("All", "ModelList")}, _READ),
    Operation(
        "get", "/v1/models/{name}", "readModel", "Read a model, by name or alias",
        {200: _json("The model", "Model")}, _READ | _ABSENT,
    ),
    Operation(
        "post", "/v1/files", "uploadFile", "Upload an image to use as init_image by `file:<id>`, or lines of a batch",
        {201: _json("Stored", "File")}, _READ | _INVALID | _BODY, (), _UPLOAD_BODY,
    ),
    Operation(
        "get", "/v1/files/{file_id}/content", "readFile", "Read an uploaded file",
        {200: _BYTES, 304: _UNCHANGED}, _READ | _ABSENT,
    ),
    Operation(
        "get", "/v1/outputs/{key}", "readOutput", "Read an output under the link that the job gave",
        {200: _BYTES, 304: _UNCHANGED}, {403: "Not a link of ours", 410: "The link is too old"} | _ABSENT | _AWAY,
        _SIGNED, None, is_open=True,
    ),
    Operation(
        "get", "/v1/webhooks/default/secret", "readWebhookSecret", "Read the secret of your webhooks",
        {200: _json("Standard Webhooks secret", "Secret")}, _READ, scope=Scope.SUBMIT,
    ),
    Operation("get", "/v1/status", "readStatus", "Read the fleet's state", {200: _json("Now", "Status")}, _READ),
    Operation("get", "/healthz", "healthz", "The process answers", {200: _json("Yes", "Health")}, is_open=True),
    Operation(
        "get", "/readyz", "readyz", "Redis and storage answer",
        {200: _json("Yes", "Health")}, _AWAY, is_open=True,
    ),
    Operation(
        "get", "/openapi.json", "openapi", "This document",
        {200: {"description": "OpenAPI 3.1", "content": {"application/json": {"schema": {"type": "object"}}}}},
        is_open=True,
    ),
)  # fmt: skip
