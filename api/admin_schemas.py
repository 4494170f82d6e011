"""Schemas of the answers of `/v1/usage` and `/v1/admin`."""

from __future__ import annotations

from typing import Any

from genmill.api_keys import Scope
from genmill.keys import JobClass
from genmill.usage import COLUMNS

_TEXT = {"type": "string"}
_MAYBE_TEXT = {"type": ["string", "null"]}
_NUMBER = {"type": "number"}
_MAYBE_NUMBER = {"type": ["number", "null"]}
_ANY: dict[str, Any] = {}


def _object(properties: dict[str, Any], *, optional: tuple[str, ...] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _list(name: str) -> dict[str, Any]:
    items = {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}}
    facts = {"object": {"const": "list"}, "data": items, "results": items, "has_more": {"type": "boolean"}}
    return _object({**facts, "after": _TEXT}, optional=("after",))


_COUNTS = dict.fromkeys(COLUMNS[2:], _NUMBER)
_KEY = {
    "key_id": _TEXT,
    "tenant": _TEXT,
    "name": _TEXT,
    "created_at": _TEXT,
    "scopes": {"type": "array", "items": {"enum": [scope.value for scope in Scope]}},
    "expires_at": _MAYBE_TEXT,
    "rotated_to": _MAYBE_TEXT,
    "last_used_at": _MAYBE_TEXT,
}

SCHEMAS: dict[str, Any] = {
    "Usage": _object(
        {
            "object": {"const": "usage"},
            "from": _TEXT,
            "to": _TEXT,
            "data": {"type": "array", "items": _object({"day": _TEXT, "tenant": _TEXT, **_COUNTS})},
            "total": _object(_COUNTS),
        }
    ),
    "Key": _object(_KEY),
    "NewKey": _object({**_KEY, "key": _TEXT}),
    "KeyList": _list("Key"),
    "Tenant": _object(
        {
            "tenant": _TEXT,
            "weight": _NUMBER,
            "classes": {"type": "array", "items": {"enum": [one.value for one in JobClass]}},
            "max_running": _MAYBE_NUMBER,
            "max_queued": _MAYBE_NUMBER,
            "rate_per_minute": _MAYBE_NUMBER,
            "gpu_seconds_per_day": _MAYBE_NUMBER,
            "max_running_by_class": {"type": "object", "additionalProperties": _NUMBER},
        }
    ),
    "TenantList": _list("Tenant"),
    "Limit": _object({"scope": _TEXT, "value": _NUMBER, "source": _TEXT, "live": {"type": ["integer", "null"]}}),
    "LimitList": _list("Limit"),
    "SetLimit": _object({"scope": _TEXT, "value": _MAYBE_NUMBER, "source": _MAYBE_TEXT}),
    "AuditEntry": _object(
        {
            "entry_id": _TEXT,
            "at": _TEXT,
            "who": {**_TEXT, "description": "Id of an API key, or `cli`."},
            "where": _TEXT,
            "action": _TEXT,
            "target": _TEXT,
            "before": _ANY,
            "after": _ANY,
        }
    ),
    "AuditList": _list("AuditEntry"),
}
