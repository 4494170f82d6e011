"""`/v1/models/{owner}/{name}`: the models as replicate's client reads them, and their versions."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify

from api.auth import authenticate
from api.models import input_schema, model_view
from api.replicate.names import check_version, model_of
from api.services import services
from genmill.predictions import version_of
from genmill.registry import ModelKind, ModelSpec

UNKNOWN_TIME = "1970-01-01T00:00:00Z"
"""When a version was made is not known; the client wants a time."""

COG_VERSION = "0.9.0"
"""The client reads from it how schemas tell iterators: since 0.3.9 they do."""

blueprint = Blueprint("replicate_models", __name__)


@blueprint.get("/v1/models/<owner>/<name>")
def read_owned_model(owner: str, name: str) -> Response:  # noqa: ARG001 - any owner will do
    authenticate()
    spec = model_of(name, services().registry)
    store = services().store
    view = model_view(spec, store.forwards.curves(), store.forwards.batching(), services().links)
    return jsonify({**view, "latest_version": version_view(spec)})


@blueprint.get("/v1/models/<owner>/<name>/versions")
def list_versions(owner: str, name: str) -> Response:  # noqa: ARG001 - any owner will do
    authenticate()
    return jsonify(previous=None, next=None, results=[version_view(model_of(name, services().registry))])


@blueprint.get("/v1/models/<owner>/<name>/versions/<version>")
def read_version(owner: str, name: str, version: str) -> Response:  # noqa: ARG001 - any owner will do
    authenticate()
    spec = model_of(name, services().registry)
    check_version(version, spec)
    return jsonify(version_view(spec))


def version_view(spec: ModelSpec) -> dict[str, Any]:
    """The model's only version: its revision."""
    schema = input_schema(spec, "#/components/schemas/{model}")
    parts = schema.pop("$defs")
    return {
        "id": version_of(spec),
        "created_at": UNKNOWN_TIME,
        "cog_version": COG_VERSION,
        "openapi_schema": {
            "openapi": "3.1.0",
            "info": {"title": spec.name, "version": spec.revision},
            "paths": {},
            "components": {"schemas": {**parts, "Input": schema, "Output": _output_schema(spec.kind)}},
        },
    }


def _output_schema(kind: ModelKind) -> dict[str, Any]:
    """A text is an iterator of chunks for the client, though it comes as one."""
    if kind is ModelKind.TEXT:
        iterator = {"x-cog-array-type": "iterator", "x-cog-array-display": "concatenate"}
        return {"type": "array", "items": {"type": "string"}, **iterator}
    return {"type": "array", "items": {"type": "string", "format": "uri"}}
