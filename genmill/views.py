"""The job as clients and webhook receivers see it: one shape for both."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from genmill.jobs import JobRecord, JobState
from genmill.links import Links
from genmill.references import put
from genmill.store import Waiting

STORED = "stored"
"""Stands where the job's client gave an image."""


def job_view(record: JobRecord, links: Links, *, waiting: Waiting | None = None) -> dict[str, Any]:
    """JSON of a job. Links in it are signed afresh; the webhook's URL and the places of input images stay inside.

    `text` is there for text jobs that succeeded, `outputs` is empty until the job has some.
    """
    result = record.result or {}
    view: dict[str, Any] = {
        "id": record.job_id,
        "object": "job",
        "state": record.state.value,
        "model": record.model,
        "priority": record.job_class,
        "created_at": created_at(record),
        "queued_at": iso(record.enqueued_ms),
        "started_at": iso(record.started_ms),
        "ended_at": iso(record.ended_ms),
        "deadline_at": iso(record.deadline_ms),
        "timings": timings(record),
        "progress": dict(record.progress) if record.progress else None,
        "position": waiting.position if waiting else None,
        "waiting_for": _waiting_for(record, waiting),
        "input": shown_input(record),
        "depends_on": list(record.depends_on),
        "reproducible": record.request.get("reproducible", False) is True,
        "outputs": [output_view(output, links) for output in result.get("outputs", ())],
        "receipt": result.get("receipt"),
        "error": dict(record.error) if record.error else None,
        "metadata": dict(record.metadata),
        "urls": _urls(record, links),
    }
    if "text" in result:
        view["text"] = dict(result["text"])
    return view


def _urls(record: JobRecord, links: Links) -> dict[str, str]:
    url = links.job_url(record.job_id)
    urls = {"get": url, "cancel": f"{url}/cancel", "events": f"{url}/events"}
    return urls | {"preview": f"{url}/preview"} if record.has_preview else urls


def _waiting_for(record: JobRecord, waiting: Waiting | None) -> dict[str, Any] | None:
    if record.is_loading and record.state is JobState.RUNNING:
        return {"reason": "loading"}
    if waiting is None:
        return None
    named: dict[str, Any] = {"scope": waiting.scope, "limit": waiting.limit, "running": waiting.running}
    if waiting.jobs:
        named["jobs"] = list(waiting.jobs)
    return {"reason": waiting.reason, **{name: value for name, value in named.items() if value is not None}}


def output_view(output: dict[str, Any], links: Links) -> dict[str, Any]:
    facts = {name: value for name, value in output.items() if name != "key"}
    return {"url": links.output_url(output["key"]), **facts}


def shown_input(record: JobRecord) -> dict[str, Any]:
    given = record.request.get("input")
    shown = dict(given) if isinstance(given, Mapping) else {}
    for name in ("init_image", "mask_image"):
        if shown.get(name) is not None:
            shown[name] = STORED
    if isinstance(shown.get("control"), dict):
        shown["control"] = {**shown["control"], "image": STORED}
    with suppress(ValueError, TypeError, LookupError, AttributeError):  # those of a plain call are its own
        for place, reference in (record.request.get("references") or {}).items():
            shown = put(shown, place, reference)
    return shown


def created_at(record: JobRecord) -> str | None:
    return record.created_at or iso(record.enqueued_ms)


def iso(ms: float | None) -> str | None:
    if not ms:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def timings(record: JobRecord) -> dict[str, float | None]:
    """Seconds waited and run, milliseconds of GPU charged; None while unknown."""
    queued, started, ended = record.enqueued_ms or None, record.started_ms, record.ended_ms
    return {
        "queued_s": _span(queued, started or ended),
        "run_s": _span(started, ended),
        "total_s": _span(queued, ended),
        "gpu_ms": record.gpu_ms,
    }


def _span(start_ms: float | None, end_ms: float | None) -> float | None:
    return None if start_ms is None or end_ms is None else round(max(0.0, end_ms - start_ms) / 1000, 3)
