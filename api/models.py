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
    curves = services().store.curves()
    views = [model_view(spec, curves) for spec in services().registry.models]
    return jsonify(object="list", data=views, results=views, has_more=False)


@blueprint.get("/v1/models/<name>")
def read_model(name: str) -> Response:
    authenticate()
    try:
        return jsonify(model_view(services().registry.get(name), services().store.curves()))
    except UnknownModel as err:
        raise NotFound(err.detail, faults=err.faults) from None


def model_view(spec: ModelSpec, curves: Mapping[str, Any]) -> dict[str, Any]:
    """Without the source: where weights lie is the operator's business. `curves` are all that the fleet knows."""
    schema = spec.input_class.model_json_schema()
    schema["properties"].pop("kind", None)
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
        "curves": [
            _curve(name, curve) for name, curve in sorted(curves.items()) if name.startswith(spec.batch_key + " ")
        ],
    }


def _curve(name: str, curve: Mapping[str, Any]) -> dict[str, Any]:
    device, shape = name.split(" ", 1)[1].rsplit(" ", 1)
    return {"device": device, "shape": shape, **curve}
