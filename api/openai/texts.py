"""`/v1/chat/completions` and `/v1/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flask import Blueprint, Response, jsonify
from pydantic import ValidationError

from api.auth import authenticate
from api.openai.bodies import CHAT_RULES, COMPLETION_RULES, ChatBody, CompletionBody, TextBody
from api.openai.forms import CHAT, COMPLETION, Form, whole_answer
from api.openai.holding import finished_job
from api.openai.rules import NAMES, Rules, model_for
from api.openai.streaming import streamed_job
from api.requests import read_json
from api.services import services
from genmill.registry import ModelKind, invalid_request

blueprint = Blueprint("openai_texts", __name__)


class TextNative(NamedTuple):
    """A body as it was given, the native body of the same job, and the names of its fields, as for `renamed`."""

    body: TextBody
    native: dict[str, Any]
    names: dict[str, str]


@blueprint.post("/v1/chat/completions")
def complete_chat() -> Response:
    tenant = authenticate()
    return _complete(chat_body(read_json()), CHAT, tenant)


@blueprint.post("/v1/completions")
def complete_prompt() -> Response:
    tenant = authenticate()
    return _complete(completion_body(read_json()), COMPLETION, tenant)


def chat_body(raw: Mapping[str, Any]) -> TextNative:
    """Raises InvalidRequest."""
    return _native(raw, ChatBody, CHAT_RULES)


def completion_body(raw: Mapping[str, Any]) -> TextNative:
    """Raises InvalidRequest."""
    return _native(raw, CompletionBody, COMPLETION_RULES)


def _complete(made: TextNative, form: Form, tenant: str) -> Response:
    body, native, names = made
    if body.stream:
        return streamed_job({**native, "stream": True}, names, tenant, form, has_usage=body.has_usage_chunk)
    record = finished_job(native, names, tenant)
    return jsonify(
        whole_answer(
            form, record.result["text"], job_id=record.job_id, model=record.model, ended_ms=record.ended_ms or 0,
            seed=record.request["input"]["seed"],
        )
    )  # fmt: skip


def _native(raw: Mapping[str, Any], kind: type[TextBody], rules: Rules) -> TextNative:
    try:
        body = kind.model_validate(raw)
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None
    spec = model_for(body.model, ModelKind.TEXT, services().registry)
    of_input, of_job = rules.sort(body.model_extra or {}, spec)
    native = {**of_job, "model": spec.name, "input": {**of_input, **body.native_input()}}
    return TextNative(body, native, NAMES | body.names())
