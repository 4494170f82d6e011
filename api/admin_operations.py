"""The operations of `/v1/admin`, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

from api.operation import Operation
from genmill.api_keys import Scope
from genmill.audit import ENTRY_ID
from genmill.tenants import TENANT


def _json(text: str, schema: str) -> dict[str, Any]:
    return {"description": text, "content": _content(schema)}


def _content(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _query(name: str, schema: dict[str, Any], why: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": why}


_READ = {401: "No valid API key", 503: "Redis is away; see Retry-After"}
_ABSENT = {404: "There is no such thing"}
_WRITE = {
    400: "Not a JSON object", 413: "Body too large", 415: "Wrong content type",
    422: "A field is not valid; `errors` names field, limit and value",
}  # fmt: skip
_INVALID = {422: _WRITE[422]}
_TENANT = {"type": "string", "pattern": rf"^({TENANT}|\*)$"}
_DAY = {"type": "string", "format": "date"}
DAYS = (
    _query("from", _DAY, "First day, UTC; else 29 days before the last."),
    _query("to", _DAY, "Last day, UTC; else today."),
    _query("format", {"enum": ["json", "csv"]}, "Goes before Accept."),
)
USAGE_ANSWER = {
    "description": "By day and tenant",
    "content": {**_content("Usage"), "text/csv": {"schema": {"type": "string"}}},
}
_PAGE = (
    _query("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "Most entries on the page."),
    _query("after", {"type": "string", "pattern": f"^{ENTRY_ID}$"}, "`after` of the page before."),
)

USAGE_OPERATIONS = (
    Operation(
        "get", "/v1/usage", "readUsage", "Read what you have used, by day", {200: USAGE_ANSWER}, _READ | _INVALID,
        (*DAYS, _query("tenant", _TENANT, "Another tenant, or `*` for all; needs the scope admin.")),
    ),
)  # fmt: skip

ADMIN_OPERATIONS = tuple(
    Operation(
        method, f"/v1/admin{path}", name, summary, answers, problems, parameters, body, scope=Scope.ADMIN,
        is_body_needed=name != "rotateKey",
    )
    for method, path, name, summary, answers, problems, parameters, body in (
        ("get", "/keys", "listKeys", "List API keys", {200: _json("All", "KeyList")}, _READ, (), None),
        (
            "post", "/keys", "createKey", "Make an API key; it is shown this once",
            {201: _json("Made", "NewKey")}, _READ | _WRITE, (), _content("KeyBody"),
        ),
        (
            "post", "/keys/{key_id}/rotate", "rotateKey", "Make a key in the place of another",
            {201: _json("Made", "NewKey")}, _READ | _WRITE | _ABSENT, (), _content("RotationBody"),
        ),
        (
            "delete", "/keys/{key_id}", "revokeKey", "Take back a key at once",
            {200: _json("What it was", "Key")}, _READ | _ABSENT, (), None,
        ),
        ("get", "/tenants", "listTenants", "List tenants", {200: _json("All", "TenantList")}, _READ, (), None),
        (
            "get", "/tenants/{tenant}", "readTenant", "Read what holds for a tenant",
            {200: _json("The tenant", "Tenant")}, _READ | _ABSENT, (), None,
        ),
        (
            "put", "/tenants/{tenant}", "putTenant", "Set all facts of a tenant; what is left out is taken back",
            {200: _json("What holds now", "Tenant")}, _READ | _WRITE, (), _content("TenantFacts"),
        ),
        ("get", "/limits", "listLimits", "List limits in force", {200: _json("All", "LimitList")}, _READ, (), None),
        (
            "put", "/limits/{scope}", "putLimit", "Set a limit",
            {200: _json("Set", "SetLimit")}, _READ | _WRITE, (), _content("LimitBody"),
        ),
        (
            "delete", "/limits/{scope}", "unsetLimit", "Take back a limit; the fleet's own setting holds again",
            {200: _json("What holds now", "SetLimit")}, _READ | _ABSENT, (), None,
        ),
        (
            "get", "/usage", "readAllUsage", "Read what tenants have used, by day", {200: USAGE_ANSWER},
            _READ | _INVALID, (*DAYS, _query("tenant", _TENANT, "Only this one.")), None,
        ),
        (
            "get", "/audit", "readAudit", "Read who changed keys, tenants and limits, newest first",
            {200: _json("A page", "AuditList")}, _READ | _INVALID, _PAGE, None,
        ),
    )
)  # fmt: skip
