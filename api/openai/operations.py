"""The operations of OpenAI's dialect."""

from __future__ import annotations

from typing import Any

from api.operation import (
    BARRED,
    BODY,
    IDEMPOTENCY,
    INVALID,
    LIMITED,
    READ,
    Operation,
    event_stream,
    json_answer,
    json_body,
    parameter,
)

_HELD = READ | BARRED | INVALID | BODY | LIMITED | {
    409: "The job was canceled",
    424: "A job that it depends on did not succeed",
    500: "The job failed",
    503: "Redis or the storage is away, or too many answers are held; see Retry-After",
    504: "The job still runs or waits, and the same request again waits for it; or it expired",
}  # fmt: skip
_HEADERS = (
    IDEMPOTENCY,
    parameter("header", "x-stainless-retry-count", {"type": "string"}, "Above 0: wait for the job of the try before."),
    parameter("header", "x-stainless-read-timeout", {"type": "string"}, "Seconds that the client reads for."),
)
_EDIT = {
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {
                "image": {"type": "string", "format": "binary"},
                "mask": {
                    "type": "string", "format": "binary",
                    "description": "As large as the image; where its alpha is below 128, the image is painted anew.",
                },
                "prompt": {"type": "string"},
                "model": {"type": "string"}, "n": {"type": "integer"}, "size": {"type": "string"},
                "response_format": {"enum": ["url", "b64_json"]}, "strength": {"type": "number"},
            },
            "required": ["image", "prompt"],
            "additionalProperties": True,
        }
    }
}  # fmt: skip
_TEXT_ERRORS = _HELD | {
    503: "Redis or the storage is away, or too many answers are held or streams are open; see Retry-After"
}


def _text(text: str, whole: str, chunk: str) -> dict[int, dict[str, Any]]:
    """Whole, or with `stream` in chunks."""
    told = (
        "; with `stream` in chunks, the last of which is `[DONE]`, a comment every 15 seconds in between. "
        "A failure is told by `data` with an `error`, and ends the stream."
    )
    answer, chunks = json_answer(text + told, whole), event_stream(text, {"$ref": f"#/components/schemas/{chunk}"})
    return {200: {**answer, "content": answer["content"] | chunks["content"]}}


_MESSAGES = [{"role": "user", "content": "a red"}]

OPENAI_OPERATIONS = (
    Operation(
        "post", "/v1/images/generations", "generateImages", "Make images; the answer is held until they are done",
        {200: json_answer("The images", "ImagesAnswer")}, _HELD, _HEADERS,
        json_body("ImageBody", {"model": "shapes", "prompt": "a red circle on a blue background", "size": "64x64"}),
    ),
    Operation(
        "post", "/v1/images/edits", "editImage", "Make images from an image; the answer is held until they are done",
        {200: json_answer("The images", "ImagesAnswer")}, _HELD, _HEADERS, _EDIT,
    ),
    Operation(
        "post", "/v1/chat/completions", "completeChat", "Continue a chat; the answer is held until it is done",
        _text("The reply", "ChatCompletion", "ChatCompletionChunk"), _TEXT_ERRORS, _HEADERS,
        json_body("ChatBody", {"model": "captions", "messages": _MESSAGES}),
    ),
    Operation(
        "post", "/v1/completions", "completePrompt", "Continue a prompt; the answer is held until it is done",
        _text("The continuation", "Completion", "CompletionChunk"), _TEXT_ERRORS, _HEADERS,
        json_body("CompletionBody", {"model": "captions", "prompt": "a red", "max_tokens": 8}),
    ),
)  # fmt: skip
