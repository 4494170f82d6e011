"""Schemas of the answers of OpenAI's dialect."""

from __future__ import annotations

from typing import Any

from api.schema import TEXT, WHOLE, json_object

_USAGE = json_object({"prompt_tokens": WHOLE, "completion_tokens": WHOLE, "total_tokens": WHOLE})
_CHOICE = {"index": WHOLE, "logprobs": {"type": "null"}, "finish_reason": {"enum": ["stop", "length"]}}
_MESSAGE = json_object({"role": {"const": "assistant"}, "content": TEXT, "refusal": {"type": "null"}})


def _completion(kind: str, said: dict[str, Any]) -> dict[str, Any]:
    return json_object(
        {
            "id": TEXT, "object": {"const": kind}, "created": WHOLE, "model": TEXT,
            "choices": {"type": "array", "items": json_object({**_CHOICE, **said})},
            "usage": _USAGE, "job_id": TEXT, "seed": WHOLE,
        }
    )  # fmt: skip


_IMAGE = json_object({"url": TEXT, "b64_json": TEXT}, optional=("url", "b64_json"))

OPENAI_SCHEMAS: dict[str, Any] = {
    "ImagesAnswer": json_object(
        {
            "created": WHOLE,
            "data": {"type": "array", "items": _IMAGE},
            "output_format": {"const": "png"}, "job_id": TEXT, "seed": WHOLE,
        }
    ),
    "ChatCompletion": _completion("chat.completion", {"message": _MESSAGE}),
    "Completion": _completion("text_completion", {"text": TEXT}),
}  # fmt: skip
