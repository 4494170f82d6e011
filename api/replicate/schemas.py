"""Schemas of the answers of replicate's dialect."""

from __future__ import annotations

from typing import Any

from api.schema import FREE, MAYBE_TEXT, TEXT, WHOLE, json_object

_PREDICTION = json_object(
    {
        "id": TEXT, "model": TEXT, "version": TEXT,
        "status": {"enum": ["starting", "processing", "succeeded", "failed", "canceled"]},
        "input": FREE, "output": {"type": ["array", "null"], "items": TEXT}, "logs": TEXT, "error": MAYBE_TEXT,
        "metrics": FREE, "created_at": MAYBE_TEXT, "started_at": MAYBE_TEXT, "completed_at": MAYBE_TEXT,
        "source": TEXT, "data_removed": {"type": "boolean"},
        "urls": json_object({"get": TEXT, "cancel": TEXT, "stream": TEXT, "web": TEXT}),
    }
)  # fmt: skip


def _page(name: str) -> dict[str, Any]:
    items = {"type": "array", "items": {"$ref": f"#/components/schemas/{name}"}}
    return json_object({"previous": MAYBE_TEXT, "next": MAYBE_TEXT, "results": items})


REPLICATE_SCHEMAS: dict[str, Any] = {
    "Prediction": _PREDICTION,
    "PredictionPage": _page("Prediction"),
    "Version": json_object({"id": TEXT, "created_at": TEXT, "cog_version": TEXT, "openapi_schema": FREE}),
    "VersionPage": _page("Version"),
    "OwnedModel": {
        "type": "object",
        "description": "A Model with its latest_version.",
        "properties": {
            "owner": TEXT, "name": TEXT, "url": TEXT, "visibility": TEXT, "run_count": WHOLE,
            "latest_version": {"$ref": "#/components/schemas/Version"},
        },
        "required": ["owner", "name", "url", "visibility", "run_count", "latest_version"],
        "additionalProperties": True,
    },
}  # fmt: skip
