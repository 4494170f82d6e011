"""`/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify
from pydantic import ValidationError

from api.auth import authenticate
from api.openai.bodies import CHAT_RULES, COMPLETION_RULES, ChatBody, CompletionBody, TextBody
from api.openai.holding import finished_job
from api.openai.rules import NAMES, Rules, model_for
from api.requests import read_json
from api.services import services
from genmill.jobs import JobRecord
from genmill.registry import ModelKind, invalid_request

blueprint = Blueprint("openai_texts", __name__)


@blueprint.post("/v1/chat/completions")
def complete_chat() -> Response:
    tenant = authenticate()
    record = _finished(ChatBody, CHAT_RULES, tenant)
    text = record.result["text"]
    message = {"role": "assistant", "content": text["text"], "refusal": None}
    return jsonify(_answer(record, "chatcmpl", "chat.completion", {"message": message}))


@blueprint.post("/v1/completions")
def complete_prompt() -> Response:
    tenant = authenticate()
    record = _finished(CompletionBody, COMPLETION_RULES, tenant)
    return jsonify(_answer(record, "cmpl", "text_completion", {"text": record.result["text"]["text"]}))


def _finished(kind: type[TextBody], rules: Rules, tenant: str) -> JobRecord:
    try:
        body = kind.model_validate(read_json())
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None
    spec = model_for(body.model, ModelKind.TEXT, services().registry)
    of_input, of_job = rules.sort(body.model_extra or {}, spec)
    native = {**of_job, "model": spec.name, "input": {**of_input, **body.native_input()}}
    return finished_job(native, NAMES | body.names(), tenant)


def _answer(record: JobRecord, prefix: str, kind: str, said: dict[str, Any]) -> dict[str, Any]:
    text = record.result["text"]
    read, written = int(text["prompt_tokens"]), int(text["completion_tokens"])
    return {
        "id": f"{prefix}-{record.job_id}",
        "object": kind,
        "created": int((record.ended_ms or 0) / 1000),
        "model": record.model,
        "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": text["finish_reason"]}],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
        "job_id": record.job_id,
        "seed": record.request["input"]["seed"],
    }
