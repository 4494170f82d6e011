"""Lines of OpenAI's batches: `{custom_id, method, url, body}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from api.batch_lines import CustomId, NativeLines
from api.openai.images import NAMES_OF_IMAGES, image_body
from api.openai.texts import chat_body, completion_body
from api.renaming import renamed
from genmill.batches import Line, Place
from genmill.errors import FieldFault, InvalidRequest
from genmill.registry import invalid_request

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/images/generations"]


class Envelope(BaseModel):
    """One line of a file with the purpose `batch`; `url` is the batch's endpoint, `body` what goes there."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    custom_id: CustomId
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


class OpenAILines:
    """The parser of one batch's lines."""

    def __init__(self, endpoint: Endpoint, lines: NativeLines) -> None:
        self._endpoint: Endpoint = endpoint
        self._lines = lines

    def __call__(self, raw: Mapping[str, Any], place: Place) -> Line:
        """Raises InvalidRequest of many kinds, StorageUnavailable."""
        line = self._read(raw)
        with renamed({"": "/body"}):
            native, names = self._native(line.body)
            with renamed(names):
                return self._lines({**native, "custom_id": line.custom_id}, place)

    def _read(self, raw: Mapping[str, Any]) -> Envelope:
        try:
            line = Envelope.model_validate(raw)
        except ValidationError as err:
            raise invalid_request(err, prefix="") from None
        if line.url != self._endpoint:
            raise _fault(
                "/url", f"url must be the batch's endpoint, got {line.url[:80]}", self._endpoint, line.url[:80]
            )
        return line

    def _native(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, str]]:
        """The native body of the same job, and the names of its fields, as for `renamed`."""
        if self._endpoint == "/v1/images/generations":
            if body.get("response_format") == "b64_json":
                detail = "response_format must be url in a batch: a line of its results would hold the whole image"
                raise _fault("/response_format", detail, "url", "b64_json")
            return image_body(body), NAMES_OF_IMAGES
        text = chat_body(body) if self._endpoint == "/v1/chat/completions" else completion_body(body)
        if text.body.stream:
            raise _fault("/stream", "stream is of no use in a batch: leave it out", "false", "true")
        return text.native, text.names


def _fault(pointer: str, detail: str, limit: str, value: str) -> InvalidRequest:
    return InvalidRequest(detail, faults=(FieldFault(pointer, detail, limit, value),))
