"""What the tables of operations are written with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from genmill.api_keys import Scope

UNAUTHORIZED = {401: "No valid API key"}
AWAY = {503: "Redis or the storage is away, or too much is worked on; see Retry-After"}
LIMITED = {429: "A quota of the tenant is used up; `errors` names it, see Retry-After"}
BARRED = {403: "The tenant may not use this priority, or the key does not have the scope `submit`"}
STREAMS = {503: "Redis is away, or too many streams are open; see Retry-After"}
INVALID = {422: "A field is not valid; `errors` names field, limit and value"}
ABSENT = {404: "There is nothing here for this tenant"}
BODY = {400: "Not a JSON object", 413: "Body too large", 415: "Wrong content type"}
READ = UNAUTHORIZED | AWAY
RATE = {
    "RateLimit-Policy": "Of a tenant with a limit of submissions: how many (`q`) in how many seconds (`w`)",
    "RateLimit": "How many are left (`r`), and seconds until all are again (`t`)",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `is_open`: no API key is asked for; else one with `needed_scope`."""

    method: str
    path: str
    name: str
    summary: str
    answers: Mapping[int, dict[str, Any]]
    problems: Mapping[int, str] = field(default_factory=dict)
    parameters: tuple[dict[str, Any], ...] = ()
    body: dict[str, Any] | None = None
    is_open: bool = False
    scope: Scope | None = None
    is_body_needed: bool = True

    @property
    def needed_scope(self) -> Scope:
        """The one given, else that of the method, as in api/auth.py."""
        return self.scope or (Scope.READ if self.method == "get" else Scope.SUBMIT)


def json_answer(text: str, schema: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
    }
    if headers:
        answer["headers"] = {name: {"description": why, "schema": {"type": "string"}} for name, why in headers.items()}
    return answer


def event_stream(text: str, schema: Mapping[str, Any] | None = None, kinds: Sequence[str] = ()) -> dict[str, Any]:
    """The schema is that of each event. `schema`: of its `data`, where that is JSON. `kinds`: what `event` may be."""
    told: dict[str, Any] = {"type": "string"}
    if schema is not None:
        told |= {"contentMediaType": "application/json", "contentSchema": schema}
    kind: dict[str, Any] = {"enum": list(kinds)} if kinds else {"type": "string"}
    event = {"id": {"type": "string"}, "event": kind, "data": told}
    content = {"type": "object", "properties": event, "required": ["data"]}
    return {"description": text, "content": {"text/event-stream": {"schema": content}}}


def json_body(schema: str, example: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}, "example": dict(example)}}


def parameter(where: str, name: str, schema: dict[str, Any], why: str, *, is_needed: bool = False) -> dict[str, Any]:
    return {"name": name, "in": where, "required": is_needed, "schema": schema, "description": why}


IDEMPOTENCY = parameter(
    "header", "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]*[!-~][ -~]*$"},
    "The same key and body give the same job for 24 hours; another body is refused with 422.",
)  # fmt: skip
