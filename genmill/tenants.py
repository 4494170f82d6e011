"""Tenants: a name, and what an operator has said of it: weight, limits, budget, classes that it may use.

Numbers are limits (genmill/limits.py) under the tenant's name and are stored there only; of the tenant itself only
its classes are stored. A name that has neither, nor a key, is no tenant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from redis import Redis
from redis.client import Pipeline

from genmill import audit, keys
from genmill.audit import Actor
from genmill.errors import FieldFault, InvalidRequest, NotFound
from genmill.keys import JobClass
from genmill.limits import MOST
from genmill.store.limits import LimitBook
from genmill.strict_json import NUMERIC

DEFAULT_TENANT = "default"

SCOPES: Mapping[str, str] = {
    "weight": "weight",
    "max_running": "tenant",
    "max_queued": "queued",
    "rate_per_minute": "rate",
    "gpu_seconds_per_day": "budget",
}
"""The kind of limit in which each number of a tenant is stored."""

TENANT = r"[a-z0-9][a-z0-9_-]{0,63}"
"""What a tenant may be called."""
_TENANT = re.compile(TENANT)
_CLASSES = keys.PREFIXES["classes"]
_LIMITS = keys.PREFIXES["limset"]

Most = Annotated[int, Field(ge=0, le=int(MOST)), NUMERIC]


class TenantFacts(BaseModel):
    """What may be said of a tenant; null is what holds for all of them: no limit of its own, weight 1, all classes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    weight: Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False), NUMERIC] | None = Field(
        default=None, description="Share of GPU time among tenants that wait."
    )
    classes: tuple[JobClass, ...] | None = Field(default=None, min_length=1, description="Priorities that it may use.")
    max_running: Most | None = Field(default=None, description="Jobs that run at once.")
    max_queued: Most | None = Field(default=None, description="Jobs that wait.")
    rate_per_minute: Most | None = Field(default=None, description="Submissions a minute.")
    gpu_seconds_per_day: Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False), NUMERIC] | None = Field(
        default=None, description="GPU-seconds a day (UTC)."
    )

    @field_validator("classes")
    @classmethod
    def _in_order(cls, classes: tuple[JobClass, ...] | None) -> tuple[JobClass, ...] | None:
        return classes and tuple(one for one in JobClass if one in classes)


def check_name(tenant: str) -> None:
    """Raises InvalidRequest for what cannot be a tenant's name."""
    if not _TENANT.fullmatch(tenant):
        detail = f"tenant must match {_TENANT.pattern}, got {tenant[:80]!r}"
        raise InvalidRequest(detail, faults=(FieldFault("/tenant", detail, _TENANT.pattern, tenant[:80]),))


def change(redis: Redis, tenant: str, facts: TenantFacts, *, by: Actor | None = None) -> None:
    """Set the facts that are given (`model_fields_set`), of which those that are None are taken back; others stay.
    The fleet heeds them within a second. Raises InvalidRequest."""
    check_name(tenant)
    given = facts.model_dump(mode="json", include=facts.model_fields_set)
    numbers = {f"{SCOPES[name]}:{tenant}": value for name, value in given.items() if name in SCOPES}

    def apply(pipe: Pipeline) -> None:
        old = dict(zip(numbers, pipe.hmget(_LIMITS, list(numbers)) if numbers else (), strict=True))
        before: dict[str, Any] = {name: _number(old[f"{SCOPES[name]}:{tenant}"]) for name in given if name in SCOPES}
        if "classes" in given:
            before["classes"] = _classes(pipe.hget(_CLASSES, tenant))
        pipe.multi()
        _store(pipe, _LIMITS, numbers)
        if "classes" in given:
            _store(pipe, _CLASSES, {tenant: given["classes"] and " ".join(given["classes"])})
        audit.note(pipe, by, "tenant.change", tenant, before, given)

    redis.transaction(apply, _LIMITS, _CLASSES)


def read(redis: Redis, limits: LimitBook, tenant: str) -> dict[str, Any]:
    """What holds for a tenant, settings and defaults of all tenants among it. Raises NotFound."""
    if tenant not in names(redis, limits):
        raise NotFound(f"There is no tenant {tenant[:64]!r}: it has no key, no limit and no classes of its own")
    return view(redis, limits, tenant)


def view(redis: Redis, limits: LimitBook, tenant: str) -> dict[str, Any]:
    """The same, of any name."""
    (found,) = _views(redis, limits, [tenant])
    return found


def allowed_classes(redis: Redis, tenant: str) -> list[str] | None:
    """The priorities that the tenant may use; None for all."""
    return _classes(redis.hget(_CLASSES, tenant))


def list_tenants(redis: Redis, limits: LimitBook) -> list[dict[str, Any]]:
    """All, by name."""
    return _views(redis, limits, names(redis, limits))


def names(redis: Redis, limits: LimitBook) -> list[str]:
    """Whoever has a key, a limit or classes of its own, by name."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.hvals(keys.PREFIXES["apikeys"])
        pipe.hkeys(_CLASSES)
        raw_keys, with_classes = pipe.execute()
    found = {str(json.loads(raw)["tenant"]) for raw in raw_keys} | {name.decode() for name in with_classes}
    kinds = {*SCOPES.values(), "tc"}
    found |= {scope.split(":")[1] for scope in limits.in_force() if scope.split(":")[0] in kinds}
    return sorted(name for name in found if _TENANT.fullmatch(name))


def _views(redis: Redis, limits: LimitBook, tenants: Iterable[str]) -> list[dict[str, Any]]:
    in_force = limits.in_force()
    stored: Mapping[bytes, bytes] = redis.hgetall(_CLASSES)  # type: ignore[assignment]  # replies are not decoded
    return [_view(name, in_force, _classes(stored.get(name.encode()))) for name in tenants]


def _view(tenant: str, in_force: Mapping[str, float], classes: list[str] | None) -> dict[str, Any]:
    numbers = {
        name: in_force.get(f"{kind}:{tenant}", in_force.get(f"{kind}:*")) for name, kind in SCOPES.items()
    }  # fmt: skip
    by_class = {scope.split(":")[2]: most for scope, most in in_force.items() if scope.startswith(f"tc:{tenant}:")}
    allowed = classes or [one.value for one in JobClass]
    weight = numbers.pop("weight") or 1.0
    return {"tenant": tenant, "weight": weight, "classes": allowed, **numbers, "max_running_by_class": by_class}


def _store(pipe: Pipeline, key: str, values: Mapping[str, Any]) -> None:
    for field, value in values.items():
        _ = pipe.hdel(key, field) if value is None else pipe.hset(key, field, value)


def _number(raw: Any) -> float | None:
    return None if raw is None else float(raw)


def _classes(raw: Any) -> list[str] | None:
    return raw.decode().split() if raw else None
