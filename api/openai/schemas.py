"""Schemas of the answers of OpenAI's dialect."""

from __future__ import annotations

from typing import Any

from api.schema import TEXT, WHOLE, json_object

_USAGE = json_object({"prompt_tokens": WHOLE, "completion_tokens": WHOLE, "total_tokens": WHOLE})
_NUMBER = {"type": "number"}
_BYTES = {"type": ["array", "null"], "items": WHOLE, "description": "Null of a token that is a part of a character."}
_CHANCE = {"token": TEXT, "logprob": _NUMBER, "bytes": _BYTES}
_TOKEN = json_object({**_CHANCE, "top_logprobs": {"type": "array", "items": json_object(_CHANCE)}})
_CHAT_LOGPROBS = json_object({"content": {"type": "array", "items": _TOKEN}, "refusal": {"type": "null"}})
_LOGPROBS = json_object(
    {
        "tokens": {"type": "array", "items": TEXT},
        "token_logprobs": {"type": "array", "items": _NUMBER},
        "top_logprobs": {"type": ["array", "null"], "items": {"type": "object", "additionalProperties": _NUMBER}},
        "text_offset": {"type": "array", "items": WHOLE},
    }
)
_REASONS = ["stop", "length"]
_MESSAGE = json_object({"role": {"const": "assistant"}, "content": TEXT, "refusal": {"type": "null"}})
_DELTA = json_object({"role": {"const": "assistant"}, "content": TEXT}, optional=("role", "content"))


def _completion(
    kind: str, said: dict[str, Any], logprobs: dict[str, Any], reasons: list[str | None]
) -> dict[str, Any]:
    choice = {"index": WHOLE, **said, "logprobs": _maybe(logprobs), "finish_reason": {"enum": reasons}}
    return {
        "id": TEXT, "object": {"const": kind}, "created": WHOLE, "model": TEXT,
        "choices": {"type": "array", "items": json_object(choice)}, "job_id": TEXT, "seed": WHOLE,
    }  # fmt: skip


def _whole(kind: str, said: dict[str, Any], logprobs: dict[str, Any]) -> dict[str, Any]:
    return json_object({**_completion(kind, said, logprobs, [*_REASONS]), "usage": _USAGE})


def _chunk(kind: str, more: dict[str, Any], logprobs: dict[str, Any]) -> dict[str, Any]:
    """Usage and logprobs come at the end; the last chunk with usage has no choices."""
    facts = _completion(kind, more, logprobs, [*_REASONS, None])
    return json_object({**facts, "usage": _maybe(_USAGE)}, optional=("usage",))


def _maybe(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_IMAGE = json_object({"url": TEXT, "b64_json": TEXT}, optional=("url", "b64_json"))

OPENAI_SCHEMAS: dict[str, Any] = {
    "ImagesAnswer": json_object(
        {
            "created": WHOLE,
            "data": {"type": "array", "items": _IMAGE},
            "output_format": {"const": "png"}, "job_id": TEXT, "seed": WHOLE,
        }
    ),
    "ChatCompletion": _whole("chat.completion", {"message": _MESSAGE}, _CHAT_LOGPROBS),
    "ChatCompletionChunk": _chunk("chat.completion.chunk", {"delta": _DELTA}, _CHAT_LOGPROBS),
    "Completion": _whole("text_completion", {"text": TEXT}, _LOGPROBS),
    "CompletionChunk": _chunk("text_completion", {"text": TEXT}, _LOGPROBS),
}  # fmt: skip
