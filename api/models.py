"""`/v1/models`: what the fleet serves and what each model takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, jsonify

from api.auth import authenticate
from api.services import services
from genmill.errors import NotFound, UnknownModel
from genmill.registry import ModelSpec

blueprint = Blueprint("models", __name__)


@blueprint.get("/v1/models")
def list_models() -> Response:
    authenticate()
    store = services().store
    curves, batching = store.curves(), store.batching()
    views = [model_view(spec, curves, batching) for spec in services().registry.models]
    return jsonify(object="list", data=views, results=views, has_more=False)


@blueprint.get("/v1/models/<name>")
def read_model(name: str) -> Response:
    authenticate()
    store = services().store
    try:
        return jsonify(model_view(services().registry.get(name), store.curves(), store.batching()))
    except UnknownModel as err:
        raise NotFound(err.detail, faults=err.faults) from None


def model_view(spec: ModelSpec, curves: Mapping[str, Any], batching: Mapping[str, str]) -> dict[str, Any]:
    """Without the source: where weights lie is the operator's business. `curves` and `batching` are all that the fleet
    knows."""
    schema = spec.input_class.model_json_schema()
    hidden = {"kind"} if spec.limits.max_frames > 1 else {"kind", "num_frames", "fps"}
    schema["properties"] = {name: field for name, field in schema["properties"].items() if name not in hidden}
    for name, default in spec.defaults.items():
        schema["properties"][name]["default"] = default
    return {
        "id": spec.name,
        "object": "model",
        "owned_by": "genmill",
        "created": 0,
        "kind": spec.kind.value,
        "revision": spec.revision,
        "description": spec.description,
        "aliases": list(spec.aliases),
        "defaults": dict(spec.defaults),
        "limits": spec.limits.model_dump(),
        "input_schema": schema,
        "batching": batching.get(spec.batch_key),
        "curves": [
            _curve(name, curve) for name, curve in sorted(curves.items()) if name.startswith(spec.batch_key + " ")
        ],
    }


def _curve(name: str, curve: Mapping[str, Any]) -> dict[str, Any]:
    device, shape = name.split(" ", 1)[1].rsplit(" ", 1)
    return {"device": device, "shape": shape, **curve}
