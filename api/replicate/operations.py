"""The operations of replicate's dialect."""

from __future__ import annotations

from typing import Any

from api.operation import (
    ABSENT,
    BARRED,
    BODY,
    IDEMPOTENCY,
    INVALID,
    LIMITED,
    READ,
    STREAMS,
    UNAUTHORIZED,
    Operation,
    event_stream,
    json_answer,
    json_body,
    parameter,
)

_CURSOR = parameter(
    "query", "cursor", {"type": "string", "minLength": 1, "maxLength": 64}, "Part of `next` of the page before."
)
_PREFER = parameter("header", "Prefer", {"type": "string"}, "`wait` or `wait=N` holds the answer for up to N <= 60 s.")
_CREATED = {201: json_answer("Stored, or ended while the answer was held", "Prediction", {"Location": "It"})}
_INPUT: dict[str, Any] = {"prompt": "a red circle on a blue background"}
_ONE_MODEL = "/v1/models/{owner}/{name}"

REPLICATE_OPERATIONS = (
    Operation(
        "post", "/v1/predictions", "createPrediction", "Create a prediction of a version", _CREATED,
        READ | BARRED | INVALID | BODY | LIMITED, (_PREFER, IDEMPOTENCY),
        json_body("PredictionBody", {"version": "genmill/shapes", "input": _INPUT}),
    ),
    Operation(
        "get", "/v1/predictions", "listPredictions", "List your predictions, newest first",
        {200: json_answer("A page", "PredictionPage")}, READ | INVALID,
        (_CURSOR,),
    ),
    Operation(
        "get", "/v1/predictions/{prediction_id}", "readPrediction", "Read a prediction",
        {200: json_answer("It", "Prediction")}, READ | ABSENT,
    ),
    Operation(
        "get", "/v1/predictions/{prediction_id}/stream", "streamPrediction", "Follow a prediction to its end",
        {200: event_stream(
            "Events `output` (more of a text, or a link), `logs` (a line of progress), `error` and `done`, from the "
            "first on, each with an `id`; a comment every 15 seconds in between."
        )},
        UNAUTHORIZED | ABSENT | STREAMS,
    ),
    Operation(
        "post", "/v1/predictions/{prediction_id}/cancel", "cancelPrediction", "Cancel a prediction",
        {200: json_answer("It, as it is now", "Prediction")}, READ | ABSENT,
    ),
    Operation(
        "post", f"{_ONE_MODEL}/predictions", "createPredictionOfModel", "Create a prediction of a model", _CREATED,
        READ | ABSENT | BARRED | INVALID | BODY | LIMITED, (_PREFER, IDEMPOTENCY),
        json_body("PredictionBody", {"input": _INPUT}),
    ),
    Operation(
        "get", _ONE_MODEL, "readOwnedModel", "Read a model, under any owner",
        {200: json_answer("The model", "OwnedModel")}, READ | ABSENT,
    ),
    Operation(
        "get", f"{_ONE_MODEL}/versions", "listVersions", "List a model's versions: there is one",
        {200: json_answer("All", "VersionPage")}, READ | ABSENT,
    ),
    Operation(
        "get", f"{_ONE_MODEL}/versions/{{version}}", "readVersion", "Read a version, with the schema of its input",
        {200: json_answer("The version", "Version")}, READ | ABSENT,
    ),
)  # fmt: skip
