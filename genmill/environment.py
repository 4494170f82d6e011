"""The variables by which processes of one fleet find each other: genmill's own and those of RQ's commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from genmill.settings import Settings

SHARED = ("redis_url", "storage_url", "secret_key")
"""Settings that every process of a fleet must have alike."""


WORKER_THREADS: Mapping[str, str] = {"GOMP_SPINCOUNT": "1000"}
"""How torch's threads wait for each other in whatever runs models; the Procfile tells why."""


def rq_environment(redis_url: str) -> Mapping[str, str]:
    """So that `rq` finds the same Redis, and starts genmill's worker over genmill's queues."""
    return {
        "RQ_REDIS_URL": redis_url,
        "RQ_WORKER_CLASS": "worker.BatchWorker",
        "RQ_QUEUE_CLASS": "genmill.queues.PriorityQueue",
    }


def as_environment(settings: Settings, names: tuple[str, ...]) -> dict[str, str]:
    """These settings as `GENMILL_*` variables; those that are None are left out."""
    values = {name: getattr(settings, name) for name in names}
    return {f"GENMILL_{name.upper()}": _text(value) for name, value in values.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
