"""`/v1/usage`: what a tenant has used, by day."""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Literal

from flask import Blueprint, Response, jsonify, request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from api.auth import identify
from api.services import services
from genmill.api_keys import Scope
from genmill.registry import invalid_request
from genmill.tenants import check_name
from genmill.usage import period, usage_csv, usage_view

EVERYBODY = "*"

blueprint = Blueprint("usage", __name__)


def _day(text: object) -> object:
    """Raises ValueError for what pydantic would read as seconds since 1970."""
    if isinstance(text, str) and not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
        raise ValueError("must be a day, YYYY-MM-DD")
    return text


Day = Annotated[date, BeforeValidator(_day)]


class UsageQuery(BaseModel):
    """Query of `GET /v1/usage`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first: Annotated[Day | None, Field(alias="from")] = None
    last: Annotated[Day | None, Field(alias="to")] = None
    tenant: str | None = None
    format: Literal["json", "csv"] | None = None


@blueprint.get("/v1/usage")
def read_usage() -> Response:
    """Of the key's own tenant; of another, or of all (`*`), for a key with the scope admin."""
    query = _query()
    if query.tenant is None:
        return answer(query, identify().tenant)
    identify(Scope.ADMIN)
    return answer(query, query.tenant)


@blueprint.get("/v1/admin/usage")
def read_all_usage() -> Response:
    """Of all tenants, or of one."""
    identify(Scope.ADMIN)
    query = _query()
    return answer(query, EVERYBODY if query.tenant is None else query.tenant)


def answer(query: UsageQuery, tenant: str) -> Response:
    """CSV where the query or Accept asks for it, else JSON."""
    first, last = period(query.first, query.last)
    if tenant != EVERYBODY:
        check_name(tenant)
    uses = services().store.usage.days(first, last, None if tenant == EVERYBODY else tenant)
    if (query.format or _accepted()) == "csv":
        return Response(usage_csv(uses), mimetype="text/csv")
    return jsonify(usage_view(uses, first, last))


def _query() -> UsageQuery:
    try:
        return UsageQuery.model_validate(request.args.to_dict())
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None


def _accepted() -> str:
    best = request.accept_mimetypes.best_match(["application/json", "text/csv"], "application/json")
    return "csv" if best == "text/csv" else "json"
