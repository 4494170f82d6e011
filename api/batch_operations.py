"""The operations of batches."""

from __future__ import annotations

from api.operation import ABSENT, BODY, INVALID, LIMITED, RATE, READ, Operation, json_answer, parameter

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
    "application/json": {
        "schema": {"anyOf": [{"$ref": f"#/components/schemas/{name}"} for name in ("BatchBody", "OpenAIBatchBody")]}
    },
}
_BATCH_QUERY = (
    parameter("query", "priority", {"$ref": "#/components/schemas/JobClass"}, "With lines: class of those without."),
    parameter("query", "expires_in_s", {"type": "integer", "minimum": 60}, "With lines: seconds that the batch has."),
    parameter("query", "rerun", {"type": "boolean"}, "With lines: run them although an earlier batch has."),
    parameter(
        "query", "webhook", {"type": "string"},
        "With lines: called once the batch has ended, signed. Where its address holds a secret, use the header.",
    ),
    parameter("header", "Genmill-Webhook", {"type": "string"}, "With lines: their webhook; as the query has it."),
)  # fmt: skip
_BATCH_PAGE = (
    parameter("query", "limit", {"type": "integer", "minimum": 1, "maximum": 100}, "Most batches on the page."),
    parameter("query", "after", {"type": "string"}, "`after` of the page before."),
)
_RESULTS_QUERY = (
    parameter("query", "after", {"type": "integer", "minimum": 0}, "`seq` of the last line that is known already."),
    parameter("query", "limit", {"type": "integer", "minimum": 1}, "Most lines."),
)
_RESULTS = {
    "description": "Lines that have ended and are not known yet, each once, in a lasting order, one a line",
    "content": {
        "application/x-ndjson": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/BatchResult"}}}
    },
}

BATCH_OPERATIONS = (
    Operation(
        "post", "/v1/batches", "createBatch", "Submit many jobs as the lines of one body or file",
        {
            202: json_answer("Accepted", "Batch", {"Location": "The batch", **RATE}),
            200: json_answer("Known already", "Batch"),
        },
        READ | INVALID | BODY | LIMITED | ABSENT, _BATCH_QUERY, _BATCH_BODY,
    ),
    Operation(
        "get", "/v1/batches", "listBatches", "List your batches, newest first",
        {200: json_answer("A page", "BatchList")}, READ | INVALID, _BATCH_PAGE,
    ),
    Operation(
        "get", "/v1/batches/{batch_id}", "readBatch", "Read how far a batch is",
        {200: json_answer("The batch", "Batch")}, READ | ABSENT,
    ),
    Operation(
        "post", "/v1/batches/{batch_id}/cancel", "cancelBatch",
        "Cancel a batch: what waits is canceled, what runs may end",
        {200: json_answer("What it did", "CanceledBatch")}, READ | ABSENT,
    ),
    Operation(
        "get", "/v1/batches/{batch_id}/results", "readBatchResults", "Read a batch's results, while it runs and after",
        {200: _RESULTS}, READ | ABSENT | INVALID, _RESULTS_QUERY,
    ),
)  # fmt: skip
