"""`/v1/admin`: keys, tenants, limits and the audit log, for keys with the scope admin."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from flask import Blueprint, Response, jsonify, request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api.auth import identify
from api.requests import has_body, read_json
from api.services import services
from genmill import api_keys, audit, tenants
from genmill.api_keys import Scope
from genmill.audit import Actor
from genmill.errors import FieldFault, InvalidRequest, NotFound
from genmill.limits import check_limit
from genmill.registry import invalid_request
from genmill.strict_json import NUMERIC
from genmill.tenants import TENANT, TenantFacts

blueprint = Blueprint("admin", __name__)

Number = Annotated[float, Field(allow_inf_nan=False), NUMERIC]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KeyBody(_Body):
    """Body of `POST /v1/admin/keys`."""

    tenant: Annotated[str, Field(json_schema_extra={"pattern": f"^{TENANT}$"})]
    name: str = ""
    scopes: tuple[Scope, ...] = Field(default=api_keys.DEFAULT_SCOPES, min_length=1)
    lifetime_s: Number | None = Field(default=None, description="The key expires after so long; null: never.")


class RotationBody(_Body):
    """Body of `POST /v1/admin/keys/{key_id}/rotate`; may be left out."""

    grace_s: Number = Field(default=api_keys.DEFAULT_GRACE_S, description="How long the old key still works.")


class LimitBody(_Body):
    """Body of `PUT /v1/admin/limits/{scope}`."""

    value: Number


class PageQuery(_Body):
    """Query of `GET /v1/admin/audit`."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    after: str | None = None


Model = TypeVar("Model", bound=BaseModel)


@blueprint.get("/v1/admin/keys")
def list_keys() -> Response:
    identify(Scope.ADMIN)
    found = [api_keys.as_json(key) for key in api_keys.list_keys(services().redis)]
    return _list(found)


@blueprint.post("/v1/admin/keys")
def create_key() -> Response:
    by, body = _actor(), _parsed(KeyBody, read_json())
    redis = services().redis
    key = api_keys.create(redis, body.tenant, body.name, scopes=body.scopes, lifetime_s=body.lifetime_s, by=by)
    return _shown_once(key)


@blueprint.post("/v1/admin/keys/<key_id>/rotate")
def rotate_key(key_id: str) -> Response:
    by, body = _actor(), _parsed(RotationBody, read_json() if has_body() else {})
    return _shown_once(api_keys.rotate(services().redis, _known_id(key_id), grace_s=body.grace_s, by=by))


@blueprint.delete("/v1/admin/keys/<key_id>")
def revoke_key(key_id: str) -> Response:
    by = _actor()
    return jsonify(api_keys.as_json(api_keys.revoke(services().redis, _known_id(key_id), by=by)))


@blueprint.get("/v1/admin/tenants")
def list_tenants() -> Response:
    identify(Scope.ADMIN)
    return _list(tenants.list_tenants(services().redis, services().store.limits))


@blueprint.get("/v1/admin/tenants/<tenant>")
def read_tenant(tenant: str) -> Response:
    identify(Scope.ADMIN)
    return jsonify(tenants.read(services().redis, services().store.limits, tenant))


@blueprint.put("/v1/admin/tenants/<tenant>")
def put_tenant(tenant: str) -> Response:
    """The whole of it: what the body leaves out is taken back."""
    by, given = _actor(), _parsed(TenantFacts, read_json())
    whole = TenantFacts.model_validate(dict.fromkeys(TenantFacts.model_fields) | given.model_dump())
    tenants.change(services().redis, tenant, whole, by=by)
    return jsonify(tenants.view(services().redis, services().store.limits, tenant))


@blueprint.get("/v1/admin/limits")
def list_limits() -> Response:
    identify(Scope.ADMIN)
    return _list([limit._asdict() for limit in services().store.limits.counted()])


@blueprint.put("/v1/admin/limits/<scope>")
def put_limit(scope: str) -> Response:
    by, value = _actor(), _parsed(LimitBody, read_json()).value
    try:
        check_limit(scope, value)
    except ValueError as err:
        detail = str(err)[:600]
        raise InvalidRequest(detail, faults=(FieldFault("/value", detail, "a limit", f"{value:g}"),)) from None
    services().store.limits.set({scope: value}, by=by)
    return jsonify(scope=scope, value=value, source="operator")


@blueprint.delete("/v1/admin/limits/<scope>")
def unset_limit(scope: str) -> Response:
    """The fleet's own setting holds again."""
    by = _actor()
    if not services().store.limits.unset([scope], by=by):
        raise NotFound(f"No operator has set a limit {scope[:80]!r}")
    return jsonify(scope=scope, value=services().store.limits.in_force().get(scope), source="settings")


@blueprint.get("/v1/admin/audit")
def read_audit() -> Response:
    identify(Scope.ADMIN)
    query = _parsed(PageQuery, request.args.to_dict())
    found = audit.entries(services().redis, query.limit, query.after)
    more = {"after": found[-1].entry_id} if len(found) == query.limit else {}
    return _list([entry._asdict() for entry in found], **more)


def _actor() -> Actor:
    """Who asks, with the scope admin."""
    return Actor(identify(Scope.ADMIN).key_id, request.remote_addr or "unknown")


def _parsed(model: type[Model], raw: dict[str, Any]) -> Model:
    try:
        return model.model_validate(raw)
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None


def _known_id(key_id: str) -> str:
    """A key itself is no name for it here: paths are logged. Raises NotFound."""
    return api_keys.find(services().redis, key_id).key_id


def _shown_once(key: str) -> Response:
    facts = api_keys.find(services().redis, api_keys.key_id_of(key))
    response = jsonify({**api_keys.as_json(facts), "key": key})
    response.status_code = 201
    return response


def _list(found: list[dict[str, Any]], **more: str) -> Response:
    return jsonify(object="list", data=found, results=found, has_more=bool(more), **more)
