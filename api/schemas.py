"""Schemas of the answers, in JSON Schema as OpenAPI 3.1 takes it, each with an example."""

from __future__ import annotations

from typing import Any

from api.schema import FREE as _FREE
from api.schema import MAYBE_NUMBER as _MAYBE_NUMBER
from api.schema import MAYBE_TEXT as _MAYBE_TEXT
from api.schema import TEXT as _TEXT
from api.schema import WHOLE as _WHOLE
from api.schema import json_list as _list
from api.schema import json_object as _object
from genmill.batches import BatchState
from genmill.jobs import JobState
from genmill.registry import Batching
from genmill.store.callbacks import DeliveryState

_ERROR = _object({"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _TEXT})
_FAULT = _object(
    {"line": _WHOLE, "pointer": _TEXT, "detail": _TEXT, "limit": _TEXT, "value": _TEXT},
    optional=("line", "limit", "value"),
)
_PROBLEM_EXAMPLE = {
    "type": "urn:genmill:problem:invalid_request",
    "title": "The request is not valid.",
    "status": 422,
    "detail": "width must be a multiple of 8, got 65",
    "instance": "/v1/jobs",
    "errors": [
        {
            "pointer": "/input/width",
            "detail": "width must be a multiple of 8, got 65",
            "limit": "multiple of 8",
            "value": "65",
        }
    ],
    "error": {
        "message": "width must be a multiple of 8, got 65",
        "type": "invalid_request_error",
        "param": "/input/width",
        "code": "invalid_request",
    },
}

_OUTPUT = _object(
    {
        "url": _TEXT,
        "content_type": _TEXT,
        "width": _WHOLE,
        "height": _WHOLE,
        "bytes": _WHOLE,
        "frames": {**_WHOLE, "description": "Of a video, an animated WebP."},
        "fps": _WHOLE,
    },
    optional=("content_type", "width", "height", "bytes", "frames", "fps"),
)
_LOGPROB = _object(
    {
        "token": _TEXT,
        "logprob": {
            "type": "number",
            "description": "Natural logarithm of the token's probability in the model's own distribution, before "
            "temperature and top_p.",
        },
        "top": {"type": "array", "items": _object({"token": _TEXT, "logprob": {"type": "number"}})},
    }
)
_GENERATED_TEXT = _object(
    {
        "text": _TEXT, "finish_reason": _TEXT, "prompt_tokens": _WHOLE, "completion_tokens": _WHOLE,
        "tokens": {"type": "array", "items": _LOGPROB},
    },
    optional=("finish_reason", "prompt_tokens", "completion_tokens", "tokens"),
)  # fmt: skip
_EVENT = {
    "attempt": {**_WHOLE, "description": "How often the job was begun; 0 before its first run."},
    "state": {"enum": [state.value for state in JobState]},
    "error": {"description": "Of the last state, as in the job."},
    "step": _WHOLE,
    "steps": _WHOLE,
    "offset": {**_WHOLE, "description": "Characters of the text before this; what was told behind it is replaced."},
    "text": {"description": "Of `token` what goes on at `offset`, of `output` the whole of it with its counts."},
    "content_type": _TEXT,
    "data": {"type": "string", "description": "A preview's bytes, in base64."},
    "index": {**_WHOLE, "description": "Which output; an image's other members are those in the job."},
}
_TIMINGS = _object(
    {"queued_s": _MAYBE_NUMBER, "run_s": _MAYBE_NUMBER, "total_s": _MAYBE_NUMBER, "gpu_ms": _MAYBE_NUMBER}
)

_JOB = {
    "id": _TEXT,
    "object": {"const": "job"},
    "state": {"enum": [state.value for state in JobState]},
    "model": _TEXT,
    "priority": _TEXT,
    "created_at": _MAYBE_TEXT,
    "queued_at": _MAYBE_TEXT,
    "started_at": _MAYBE_TEXT,
    "ended_at": _MAYBE_TEXT,
    "deadline_at": _MAYBE_TEXT,
    "timings": _TIMINGS,
    "progress": {"anyOf": [_object({"step": _WHOLE, "steps": _WHOLE}), {"type": "null"}]},
    "position": {
        "type": ["integer", "null"],
        "description": "Ready jobs of the same class, model and adapters before it.",
    },
    "waiting_for": {
        "type": ["object", "null"],
        "description": "Why a queued job does not run yet; `limit` with the scope that is full, `dependency` with the "
        "jobs that it waits for. `loading`, of a running job: its worker loads the model.",
        "properties": {
            "reason": {
                "type": "string",
                "enum": ["turn", "limit", "no_worker", "suspended", "delay", "dependency", "loading"],
            },
            "scope": _TEXT,
            "limit": _WHOLE,
            "running": _WHOLE,
            "jobs": {"type": "array", "items": _TEXT, "description": "Those that have to succeed first."},
        },
        "required": ["reason"],
        "additionalProperties": False,
    },
    "input": _FREE,
    "depends_on": {"type": "array", "items": _TEXT},
    "reproducible": {"type": "boolean"},
    "outputs": {"type": "array", "items": _OUTPUT},
    "receipt": {"type": ["object", "null"], "additionalProperties": True},
    "error": {"anyOf": [_object({"code": _TEXT, "message": _TEXT}), {"type": "null"}]},
    "metadata": _FREE,
    "urls": _object({"get": _TEXT, "cancel": _TEXT, "events": _TEXT, "preview": _TEXT}, optional=("preview",)),
    "text": _GENERATED_TEXT,
}

_MODEL = {
    "id": _TEXT,
    "object": {"const": "model"},
    "owned_by": _TEXT,
    "url": _TEXT,
    "owner": _TEXT,
    "name": _TEXT,
    "visibility": {"const": "private"},
    "run_count": _WHOLE,
    "created": _WHOLE,
    "kind": {"enum": ["image", "text"]},
    "revision": _TEXT,
    "description": _TEXT,
    "aliases": {"type": "array", "items": _TEXT},
    "defaults": _FREE,
    "limits": _FREE,
    "input_schema": _FREE,
    "batching": {
        "enum": [*(mode.value for mode in Batching), None],
        "description": "How its jobs share forwards: joining at any `step`, in `static` batches of equal parameters, "
        "or, texts, in `continuous` ones. Null until a worker has loaded the model.",
    },
    "adapters": {"type": "array", "items": _TEXT, "description": "Names that `loras` of the input may give."},
    "controlnets": {"type": "array", "items": _TEXT, "description": "Names that `control` of the input may give."},
    "curves": {
        "type": "array",
        "description": "What a forward takes on the fleet's devices, as the workers measure it.",
        "items": _object({"device": _TEXT, "shape": _TEXT, "ms": _FREE, "knee_rows": {"type": ["integer", "null"]}}),
    },
}

_FILE = {
    "id": _TEXT,
    "object": {"const": "file"},
    "name": _TEXT,
    "filename": _TEXT,
    "content_type": _TEXT,
    "size": _WHOLE,
    "bytes": _WHOLE,
    "etag": _TEXT,
    "checksums": _FREE,
    "metadata": _FREE,
    "purpose": _TEXT,
    "status": _TEXT,
    "created_at": {"type": ["string", "integer"]},
    "expires_at": {"type": ["string", "integer"]},
    "urls": _object({"get": _TEXT}),
}

_COUNTS = ("total", "waiting", "running", "succeeded", "failed", "canceled", "skipped")
_BATCH_TIME = {"type": ["string", "integer", "null"], "description": "Unix seconds in a batch of OpenAI's client."}
_BATCH = {
    "id": _TEXT,
    "object": {"const": "batch"},
    "status": {"enum": [*(state.value for state in BatchState), "finalizing"]},
    "counts": _object(dict.fromkeys(_COUNTS, _WHOLE)),
    "results": {"type": "integer", "description": "Lines whose result can be read."},
    "rate_per_s": {"type": "number", "description": "Lines that end a second, lately."},
    "eta_s": {"type": ["number", "null"], "description": "Seconds until the last line, at that rate."},
    "created_at": _BATCH_TIME,
    "expires_at": _BATCH_TIME,
    "cancelling_at": _BATCH_TIME,
    "ended_at": _MAYBE_TEXT,
    "resume_of": _MAYBE_TEXT,
    "metadata": _FREE,
    "urls": _object({"get": _TEXT, "cancel": _TEXT, "results": _TEXT}),
}
_OPENAI_BATCH = {
    "endpoint": _TEXT,
    "input_file_id": _TEXT,
    "completion_window": _TEXT,
    "request_counts": _object({"total": _WHOLE, "completed": _WHOLE, "failed": _WHOLE}),
    "output_file_id": _MAYBE_TEXT,
    "error_file_id": _MAYBE_TEXT,
    "errors": {"type": "null"},
    **dict.fromkeys(("in_progress_at", "completed_at", "cancelled_at", "expired_at"), _WHOLE),
}
"""What only batches of OpenAI's client have."""
_BATCH_RESULT = {
    "seq": {"type": "integer", "description": "Its place in the results, from 1; give it as `after` to go on."},
    "custom_id": _TEXT,
    "job_id": _TEXT,
    "state": {"enum": [state.value for state in JobState if state.is_terminal]},
    "model": _TEXT,
    "outputs": {"type": "array", "items": _OUTPUT},
    "text": _GENERATED_TEXT,
    "receipt": {"type": "object", "additionalProperties": True},
    "error": {"anyOf": [_object({"code": _TEXT, "message": _TEXT}), {"type": "null"}]},
}

_DELIVERY = {
    "id": {"type": "string", "description": "The `webhook-id` of all its attempts."},
    "object": {"const": "delivery"},
    "event": {"type": "string", "description": "What it tells of, such as `succeeded`."},
    "state": {"enum": [state.value for state in DeliveryState]},
    "attempts": {
        "type": "array",
        "description": "The latest 50 of all deliveries, oldest first; `status` is 0 where no answer came.",
        "items": _object({"attempt": _WHOLE, "status": _WHOLE, "detail": _TEXT, "at": _TEXT}),
    },
    "next_attempt_at": _MAYBE_TEXT,
}
_REDELIVERY = {
    "enum": ["queued", "pending", "replayed"],
    "description": "`pending`: it waits for a worker or is sent now anyway; `replayed`: the Idempotency-Key is known.",
}

_CANCEL = {"enum": ["dequeued", "interrupting", "too_late", "unknown"]}

_WORKER = {
    "name": _TEXT,
    "state": _MAYBE_TEXT,
    "queues": _MAYBE_TEXT,
    "last_heartbeat": _MAYBE_TEXT,
    "successful_job_count": _MAYBE_TEXT,
    "failed_job_count": _MAYBE_TEXT,
    "genmill": _MAYBE_TEXT,
}

SCHEMAS: dict[str, Any] = {
    "Problem": _object(
        {
            "type": _TEXT, "title": _TEXT, "status": _WHOLE, "detail": _TEXT, "instance": _TEXT,
            "errors": {"type": "array", "items": _FAULT}, "error": _ERROR,
            "violated-policies": {"type": "array", "items": _TEXT},
        },
        optional=("violated-policies",),
        example=_PROBLEM_EXAMPLE,
    ),
    "Job": _object(_JOB, optional=("text",)),
    "CanceledJob": _object({**_JOB, "cancel": _CANCEL}, optional=("text",)),
    "JobList": _list("Job"),
    "Delivery": _object(_DELIVERY),
    "DeliveryList": _list("Delivery"),
    "Redelivery": _object({**_DELIVERY, "redelivery": _REDELIVERY}),
    "JobEvent": _object(_EVENT, optional=tuple(name for name in _EVENT if name != "attempt")),
    "Batch": _object(_BATCH | _OPENAI_BATCH, optional=tuple(_OPENAI_BATCH)),
    "CanceledBatch": _object(
        {**_BATCH, **_OPENAI_BATCH, "cancel": {"enum": ["cancelling", "too_late", "unknown"]}},
        optional=tuple(_OPENAI_BATCH),
    ),
    "BatchList": _list("Batch"),
    "BatchResult": _object(_BATCH_RESULT, optional=("model", "text", "receipt")),
    "Model": _object(_MODEL),
    "ModelList": _list("Model"),
    "File": _object(_FILE, optional=("expires_at",)),
    "FileList": _list("File", more=("first_id", "last_id")),
    "DeletedFile": _object({"id": _TEXT, "object": {"const": "file"}, "deleted": {"const": True}}),
    "Secret": _object({"key": _TEXT}, example={"key": "whsec_bm90IGEgcmVhbCBzZWNyZXQsIDMyIGJ5dGVzIGxvbmc="}),
    "Health": _object({"status": _TEXT, "redis": _TEXT, "storage": _TEXT}, optional=("redis", "storage")),
    "Status": _object(
        {
            "queues": {"type": "object", "additionalProperties": _WHOLE}, "running": _WHOLE,
            "is_suspended": {"type": "boolean"}, "workers": {"type": "array", "items": _object(_WORKER)},
        }
    ),
}  # fmt: skip
