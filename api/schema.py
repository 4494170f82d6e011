"""What schemas of answers are written with."""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
MAYBE_TEXT = {"type": ["string", "null"]}
WHOLE = {"type": "integer"}
MAYBE_NUMBER = {"type": ["number", "null"]}
FREE = {"type": "object", "additionalProperties": True}


def json_object(properties: dict[str, Any], *, optional: tuple[str, ...] = (), example: Any = None) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }
    return schema if example is None else schema | {"examples": [example]}


def json_list(name: str, *, more: tuple[str, ...] = ("after",)) -> dict[str, Any]:
    """A page of these; `more`: what it may tell for the next one."""
    items = {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}}
    facts = {"object": {"const": "list"}, "data": items, "results": items, "has_more": {"type": "boolean"}}
    return json_object({**facts, **dict.fromkeys(more, TEXT)}, optional=more)
