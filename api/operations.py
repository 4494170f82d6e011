"""The table of operations that the OpenAPI document is built from; a test holds it against the app's routes."""

from __future__ import annotations

from typing import get_args

from api.files import Purpose
from api.operation import ABSENT as _ABSENT
from api.operation import AWAY as _AWAY
from api.operation import BARRED as _BARRED
from api.operation import BODY as _BODY
from api.operation import IDEMPOTENCY as _IDEMPOTENCY
from api.operation import INVALID as _INVALID
from api.operation import LIMITED as _LIMITED
from api.operation import RATE as _RATE
from api.operation import READ as _READ
from api.operation import STREAMS as _STREAMS
from api.operation import UNAUTHORIZED as _UNAUTHORIZED
from api.operation import Operation, event_stream
from api.operation import json_answer as _json
from api.operation import parameter as _parameter
from genmill.api_keys import Scope
from genmill.events import PLACE, EventKind
from genmill.jobs import JobState

_BYTES = {"description": "The bytes", "content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}
_UNCHANGED = {"description": "Not changed since the given ETag"}
_WAIT = (
    _parameter(
        "query", "wait", {"type": "number", "minimum": 0, "maximum": 999_999}, "Hold the answer for up to 60 seconds."
    ),
    _parameter("header", "Prefer", {"type": "string"}, "`wait=N` holds the answer for up to N <= 60 seconds."),
)
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
            "picture of a text that another job writes": {
                "value": {
                    "model": "shapes",
                    "input": {"prompt": {"from": "job:01jd0000000000000000000000", "path": "text"}, "seed": 7},
                }
            },
            "after another job": {
                "value": {
                    "model": "shapes",
                    "input": {"prompt": "a red circle on a blue background"},
                    "depends_on": ["01jd0000000000000000000000"],
                }
            },
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
                "purpose": {"enum": list(get_args(Purpose))},
                "metadata": {"type": "string", "description": "A JSON object, given back with the file."},
                "expires_after[anchor]": {"const": "created_at"},
                "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
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
_FILE_QUERY = (
    _parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": 10000}, "Most files on the page."),
    _parameter("query", "after", {"type": "string"}, "The last id of the page before."),
    _parameter("query", "order", {"enum": ["asc", "desc"]}, "By time of upload; the newest first without it."),
    _parameter("query", "purpose", {"type": "string"}, "Only files of this purpose."),
)
_SIGNED = (
    _parameter("query", "expires", {"type": "string"}, "Unix time.", is_needed=True),
    _parameter("query", "signature", {"type": "string"}, "Made by genmill.", is_needed=True),
)
_SUBMITTED = {"Location": "The job", "Retry-After": "Seconds until it is worth asking", **_RATE}
_EVENTS = event_stream(
    "Events until the job has ended, a comment every 15 seconds in between. Each has an `id`, an `event` that "
    "tells its kind, and `data`, a JobEvent. Every job has `state` (the last is terminal, and ends "
    "the stream), `progress` and `output`; a text has `token`, at its end or, with `stream`, as it is written; "
    "pictures have `preview` where that was asked for. Another `attempt` makes void what was told of the one before.",
    {"$ref": "#/components/schemas/JobEvent"}, list(EventKind),
)  # fmt: skip
_LAST_EVENT = _parameter(
    "header", "Last-Event-ID", {"type": "string", "maxLength": 80, "pattern": f"^({PLACE})?$"},
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
        _UNAUTHORIZED | _ABSENT | _INVALID | _STREAMS,
        (_LAST_EVENT,),
    ),
    Operation(
        "get", "/v1/jobs/{job_id}/preview", "readPreview", "Read the latest preview of a job with `preview`",
        {200: _PREVIEW}, _READ | _ABSENT,
    ),
    Operation("get", "/v1/models", "listModels", "List models", {200: _json("All", "ModelList")}, _READ),
    Operation(
        "get", "/v1/models/{name}", "readModel", "Read a model, by name or alias",
        {200: _json("The model", "Model")}, _READ | _ABSENT,
    ),
    Operation(
        "post", "/v1/files", "uploadFile",
        "Upload an image, to be given in a job's input as `file:<id>`, or lines of a batch",
        {201: _json("Stored", "File")},
        _READ | _INVALID | _BODY | {429: "The tenant has as many files as it may; `errors` names the number"}, (),
        _UPLOAD_BODY,
    ),
    Operation(
        "get", "/v1/files", "listFiles", "List your files, newest first",
        {200: _json("A page", "FileList")}, _READ | _INVALID, _FILE_QUERY,
    ),
    Operation(
        "get", "/v1/files/{file_id}", "readFile", "Read the facts of a file",
        {200: _json("The file", "File")}, _READ | _ABSENT,
    ),
    Operation(
        "delete", "/v1/files/{file_id}", "deleteFile", "Delete a file",
        {204: {"description": "Deleted"}, 200: _json("Deleted; for a client that accepts JSON", "DeletedFile")},
        _READ | _ABSENT,
    ),
    Operation(
        "get", "/v1/files/{file_id}/content", "readFileContent", "Read an uploaded file",
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
