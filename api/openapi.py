"""The OpenAPI 3.1 document, from the pydantic models and the table of operations."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from api import admin_schemas
from api.admin import KeyBody, LimitBody, RotationBody
from api.admin_operations import ADMIN_OPERATIONS, USAGE_OPERATIONS
from api.batch_lines import LineBody
from api.batch_operations import BATCH_OPERATIONS
from api.batches import BatchBody
from api.deliveries import RedeliverBody
from api.delivery_operations import DELIVERY_OPERATIONS
from api.openai.batches import OpenAIBatchBody
from api.openai.bodies import ChatBody, CompletionBody
from api.openai.images import ImageBody
from api.openai.operations import OPENAI_OPERATIONS
from api.openai.schemas import OPENAI_SCHEMAS
from api.operation import Operation
from api.operations import OPERATIONS
from api.replicate.bodies import PredictionBody
from api.replicate.operations import REPLICATE_OPERATIONS
from api.replicate.schemas import REPLICATE_SCHEMAS
from api.schemas import SCHEMAS
from api.submission import JobBody
from genmill import __version__
from genmill.inputs import ImageInput, TextInput
from genmill.references import Reference
from genmill.registry import Registry
from genmill.tenants import TenantFacts

ALL_OPERATIONS = (
    *OPERATIONS, *BATCH_OPERATIONS, *DELIVERY_OPERATIONS, *USAGE_OPERATIONS, *ADMIN_OPERATIONS,
    *REPLICATE_OPERATIONS, *OPENAI_OPERATIONS,
)  # fmt: skip
DIALECT_BODIES = (PredictionBody, ImageBody, ChatBody, CompletionBody, OpenAIBatchBody)
ADMIN_BODIES = (KeyBody, RotationBody, LimitBody, TenantFacts)

_REF = "#/components/schemas/{model}"
_REFERRING = {
    "ImageInput": ("prompt", "negative_prompt", "init_image", "mask_image"),
    "TextInput": ("prompt",),
    "Message": ("content",),
    "Control": ("image",),
}
"""Where an output of another job may stand; see genmill/references.py."""


def document(registry: Registry, base_url: str) -> dict[str, Any]:

    schemas: dict[str, Any] = SCHEMAS | REPLICATE_SCHEMAS | OPENAI_SCHEMAS | admin_schemas.SCHEMAS
    inputs = (ImageInput, TextInput, Reference)
    for model in (JobBody, LineBody, BatchBody, RedeliverBody, *inputs, *DIALECT_BODIES, *ADMIN_BODIES):
        schemas |= _schemas_of(model)
    schemas |= _chained(schemas)
    for name, prefix in {"JobBody": "Chained", "LineBody": ""}.items():
        given = {"anyOf": [_ref(f"{prefix}ImageInput"), _ref(f"{prefix}TextInput")]}
        schemas[name]["properties"]["input"] = given
        schemas[name]["properties"]["model"]["examples"] = [spec.name for spec in registry.models]
    paths: dict[str, dict[str, Any]] = {}
    for operation in ALL_OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "genmill",
            "version": __version__,
            "description": "Asynchronous generation jobs: submit, then poll or get a webhook.",
        },
        "servers": [{"url": base_url}],
        "security": [{"bearer": []}, {"apiKey": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation.path), *operation.parameters],
        "responses": {str(status): answer for status, answer in operation.answers.items()} | _problems(operation),
    }
    if operation.body is not None:
        shown["requestBody"] = {"required": operation.is_body_needed, "content": operation.body}
    scopes = [operation.needed_scope.value]
    shown["security"] = [] if operation.is_open else [{"bearer": scopes}, {"apiKey": scopes}]
    return shown


def _problems(operation: Operation) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": _ref("Problem")}}
    missing = {} if operation.is_open else {403: f"The key does not have the scope `{operation.needed_scope}`"}
    problems = missing | dict(operation.problems)
    return {str(status): {"description": text, "content": content} for status, text in problems.items()}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _schemas_of(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=_REF)
    parts: dict[str, Any] = schema.pop("$defs", {})
    schema["properties"].pop("kind", None)
    return {**parts, model.__name__: schema}


def _chained(schemas: dict[str, Any]) -> dict[str, Any]:
    """The inputs of jobs whose texts and images may be outputs of others, and their parts."""
    text = json.dumps({name: schemas[name] for name in _REFERRING})
    for name in _REFERRING:
        text = text.replace(json.dumps(_ref(name)), json.dumps(_ref(f"Chained{name}")))
    chained: dict[str, Any] = {f"Chained{name}": schema for name, schema in json.loads(text).items()}
    for name, fields in _REFERRING.items():
        properties = chained[f"Chained{name}"]["properties"]
        properties |= {field: {"anyOf": [properties[field], _ref("Reference")]} for field in fields}
    return chained


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(model=name)}
