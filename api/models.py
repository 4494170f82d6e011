"""`/v1/models`: what the fleet serves and what each model takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, jsonify
from pydantic.json_schema import DEFAULT_REF_TEMPLATE

from api.auth import authenticate
from api.services import services
from genmill.errors import NotFound, UnknownModel
from genmill.links import Links
from genmill.predictions import OWNER
from genmill.registry import ModelSpec

blueprint = Blueprint("models", __name__)


@blueprint.get("/v1/models")
def list_models() -> Response:
    authenticate()
    store, links = services().store, services().links
    curves, batching = store.forwards.curves(), store.forwards.batching()
    views = [model_view(spec, curves, batching, links) for spec in services().registry.models]
    return jsonify(object="list", data=views, results=views, has_more=False)


@blueprint.get("/v1/models/<name>")
def read_model(name: str) -> Response:
    authenticate()
    store = services().store
    try:
        spec = services().registry.get(name)
    except UnknownModel as err:
        raise NotFound(err.detail, faults=err.faults) from None
    return jsonify(model_view(spec, store.forwards.curves(), store.forwards.batching(), services().links))


def model_view(
    spec: ModelSpec, curves: Mapping[str, Any], batching: Mapping[str, str], links: Links
) -> dict[str, Any]:
    """Without the source: where weights lie is the operator's business. `curves` and `batching` are all that the fleet
    knows.

    With what openai's and replicate's clients read of a model, so that either accepts it.
    """
    return {
        "id": spec.name,
        "object": "model",
        "owned_by": OWNER,
        "created": 0,
        "url": links.model_url(OWNER, spec.name),
        "owner": OWNER,
        "name": spec.name,
        "visibility": "private",
        "run_count": 0,
        "kind": spec.kind.value,
        "revision": spec.revision,
        "description": spec.description,
        "aliases": list(spec.aliases),
        "defaults": dict(spec.defaults),
        "limits": spec.limits.model_dump(),
        "input_schema": input_schema(spec),
        "adapters": list(spec.adapters),
        "controlnets": list(spec.controlnets),
        "batching": batching.get(spec.batch_key),
        "curves": [
            _curve(name, curve) for name, curve in sorted(curves.items()) if name.startswith(spec.batch_key + " ")
        ],
    }


def input_schema(spec: ModelSpec, ref_template: str = DEFAULT_REF_TEMPLATE) -> dict[str, Any]:
    """JSON Schema of a job's input, with the model's own defaults, without what it does not make or has none of. Its
    parts are in `$defs`; `ref_template` tells where they are found, such as `#/$defs/{model}`."""
    schema = spec.input_class.model_json_schema(ref_template=ref_template)
    hidden = {"kind"} if spec.limits.max_frames > 1 else {"kind", "num_frames", "fps"}
    hidden |= {field for field, names in _EXTRAS.items() if not getattr(spec, names)}
    schema["properties"] = {name: field for name, field in schema["properties"].items() if name not in hidden}
    used = json.dumps(schema["properties"])
    parts = schema.pop("$defs", {}).items()
    schema["$defs"] = {name: part for name, part in parts if f'"{ref_template.format(model=name)}"' in used}
    for name, default in spec.defaults.items():
        schema["properties"][name]["default"] = default
    return schema


_EXTRAS = {"loras": "adapters", "control": "controlnets"}
"""Fields of an image's input that only models take which have some of these."""


def _curve(name: str, curve: Mapping[str, Any]) -> dict[str, Any]:
    device, shape = name.split(" ", 1)[1].rsplit(" ", 1)
    return {"device": device, "shape": shape, **curve}
