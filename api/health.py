"""Liveness, readiness, the fleet's state and the API's own description."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, jsonify

from api.auth import authenticate
from api.openapi import document
from api.services import services
from genmill import keys

blueprint = Blueprint("health", __name__)

_WORKER_FIELDS = ("state", "queues", "last_heartbeat", "successful_job_count", "failed_job_count", "genmill")


@blueprint.get("/healthz")
def healthz() -> Response:
    """The process answers; says nothing about what it depends on, so that Redis's fall restarts no API."""
    return jsonify(status="ok")


@blueprint.get("/readyz")
def readyz() -> Response:
    """Redis takes writes and the storage answers; 503 when one does not."""
    services().redis.set(keys.PREFIXES["probe"], 1, ex=keys.PROBE_TTL_S)
    services().storage.check()
    return jsonify(status="ok", redis="ok", storage="ok")


@blueprint.get("/v1/status")
def status() -> Response:
    authenticate()
    redis, store = services().redis, services().store
    return jsonify(
        queues=store.queue_depths(),
        running=int(redis.zcard(keys.run_scope("global"))),
        is_suspended=bool(redis.exists(keys.PREFIXES["suspended"])),
        workers=_workers(),
    )


@blueprint.get("/openapi.json")
def openapi() -> Response:
    return jsonify(document(services().registry, services().links.base_url))


def _workers() -> list[dict[str, Any]]:
    """As RQ's own tools see them."""
    redis = services().redis
    names = sorted(_text(raw) for raw in redis.smembers(keys.PREFIXES["workers"]))
    with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.hmget(name, _WORKER_FIELDS)
        rows = pipe.execute()
    return [
        {"name": name.removeprefix(keys.PREFIXES["worker"]), **_texts(row)}
        for name, row in zip(names, rows, strict=True)
        if row[0] is not None
    ]


def _texts(row: list[bytes | None]) -> dict[str, str | None]:
    return {field: None if raw is None else _text(raw) for field, raw in zip(_WORKER_FIELDS, row, strict=True)}


def _text(raw: bytes | str) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
