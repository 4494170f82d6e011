"""From a prediction's body to the native body of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.submission import Manner
from genmill.errors import FieldFault, InvalidRequest
from genmill.jobs import Dialect
from genmill.registry import ModelKind, ModelSpec, invalid_request
from genmill.strict_json import Flag

ALIASES: Mapping[ModelKind, Mapping[str, str]] = {
    ModelKind.IMAGE: {
        "num_outputs": "num_images", "num_inference_steps": "steps", "guidance_scale": "guidance",
        "image": "init_image", "mask": "mask_image", "prompt_strength": "strength",
    },
    ModelKind.TEXT: {"max_new_tokens": "max_tokens", "stop_sequences": "stop"},
}  # fmt: skip
"""Names that inputs have in many of replicate's models, for those that they have here."""

Event = Literal["start", "output", "logs", "completed"]


class PredictionBody(BaseModel):
    """Body of `POST /v1/predictions` and `POST /v1/models/{owner}/{name}/predictions`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str | None = Field(
        default=None, max_length=300, description="A version's id, owner/name or owner/name:version."
    )
    input: dict[str, Any] = Field(default_factory=dict, description="As the version's openapi_schema tells.")
    webhook: str | None = Field(default=None, description="Gets the whole prediction, signed.")
    webhook_completed: str | None = Field(default=None, description="Older form: only the event completed.")
    webhook_events_filter: tuple[Event, ...] = Field(
        default=("start", "output", "logs", "completed"), description="Which events the webhook gets."
    )
    stream: Flag = Field(
        default=False,
        description="Tell a text's tokens at urls.stream as they come. Of pictures it tells progress and outputs, "
        "asked or not.",
    )


def read_body(raw: Mapping[str, Any]) -> PredictionBody:
    """Raises InvalidRequest."""
    try:
        body = PredictionBody.model_validate(raw)
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None
    if body.webhook and body.webhook_completed:
        raise _fault("/webhook_completed", "give either webhook or webhook_completed", "one of them", "both")
    return body


def native_body(body: PredictionBody, spec: ModelSpec) -> dict[str, Any]:
    """The native body of the same job. Raises InvalidRequest for an input given under both of its names."""
    aliases, given = ALIASES[spec.kind], dict(body.input)
    for alias, name in aliases.items():
        if alias in given:
            if name in given:
                raise _fault(f"/input/{alias}", f"give either {alias} or {name}", "one of them", "both")
            given[name] = given.pop(alias)
    native: dict[str, Any] = {"model": spec.name, "input": given}
    if body.stream:
        native["stream"] = True
    if webhook := body.webhook or body.webhook_completed:
        native["webhook"] = webhook
    return native


def names_of(body: PredictionBody, spec: ModelSpec) -> dict[str, str]:
    """For `renamed`: the aliases that this body uses."""
    names = {f"/input/{name}": f"/input/{alias}" for alias, name in ALIASES[spec.kind].items() if alias in body.input}
    return names | ({"/webhook": "/webhook_completed"} if body.webhook_completed else {})


def manner_of(body: PredictionBody) -> Manner:
    """An output is there with the end and not before, so `output` and `completed` are one message; logs are not
    told of by themselves."""
    asked = {"completed"} if body.webhook_completed else set(body.webhook_events_filter)
    events = {"start"} if "start" in asked else set()
    return Manner(Dialect.REPLICATE, frozenset(events | ({"end"} if asked & {"output", "completed"} else set())))


def _fault(pointer: str, detail: str, limit: str, value: str) -> InvalidRequest:
    return InvalidRequest(detail, faults=(FieldFault(pointer, detail, limit, value),))
