"""Functions that a job may name. `generate` and `deliver` are run by stations, in batches, never called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def generate(request: Mapping[str, Any]) -> None:
    """`{"model": name, "input": {...}}`, as POST /v1/jobs takes it; a plain RQ push of it becomes a full job."""
    raise RuntimeError(f"run by `rq worker -w worker.BatchWorker`, not called (model {request.get('model')!r})")


def deliver(job_id: str, event: str) -> None:
    """Tell the webhook of `job_id` about `event` (succeeded, failed, canceled, expired)."""
    raise RuntimeError(f"run by `rq worker -w worker.BatchWorker`, not called ({event} of {job_id})")


def ping(value: object = "pong") -> object:
    """Returns what it is given: shows that a plain RQ job runs on the fleet."""
    return value
