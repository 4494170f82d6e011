"""The job as replicate's client and its webhooks see it: a prediction."""

from __future__ import annotations

import hashlib
from typing import Any, assert_never

from genmill.jobs import JobRecord, JobState
from genmill.links import Links
from genmill.registry import ModelSpec
from genmill.store import Waiting
from genmill.views import created_at, iso, shown_input, timings

OWNER = "genmill"
"""Whose all models are in answers; in requests any owner will do."""

BAR_CELLS = 10


def version_of(spec: ModelSpec) -> str:
    """64 hexadecimal digits for a model and its revision, as replicate's own versions are."""
    return _version(f"{spec.name}@{spec.revision}")


def prediction_view(
    record: JobRecord, links: Links, *, waiting: Waiting | None = None, is_starting: bool = False
) -> dict[str, Any]:
    """JSON of a prediction, with strings where the client insists on them.

    `is_starting`: the answer to a creation. Until the job has ended its status is then `starting`, because the
    client takes anything else for the end of what it waited for.
    """
    status = _status(record.state)
    return {
        "id": record.job_id,
        "model": f"{OWNER}/{record.model}",
        "version": _version(record.batch_key.split("/")[0]),
        "status": "starting" if is_starting and not record.state.is_terminal else status,
        "input": shown_input(record),
        "output": _output(record, links),
        "logs": _logs(record),
        "error": _error(record) if status == "failed" else None,
        "metrics": _metrics(record, waiting),
        "created_at": created_at(record),
        "started_at": iso(record.started_ms),
        "completed_at": iso(record.ended_ms),
        "source": "api",
        "data_removed": False,
        "urls": {
            "get": links.prediction_url(record.job_id),
            "cancel": links.prediction_url(record.job_id) + "/cancel",
            "stream": links.prediction_url(record.job_id) + "/stream",
            "web": links.job_url(record.job_id),
        },
    }


def _version(model: str) -> str:
    return hashlib.sha256(model.encode()).hexdigest()


def _status(state: JobState) -> str:
    """One of the five that the client knows."""
    match state:
        case JobState.QUEUED:
            return "starting"
        case JobState.RUNNING:
            return "processing"
        case JobState.SUCCEEDED | JobState.FAILED | JobState.CANCELED:
            return state.value
        case JobState.EXPIRED:
            return "failed"
        case _:
            assert_never(state)


def _output(record: JobRecord, links: Links) -> list[str] | None:
    """Links to images, or the text as the only chunk; None while there is none."""
    result = record.result if isinstance(record.result, dict) else {}
    if "text" in result:
        return [str(result["text"]["text"])]
    return [links.output_url(output["key"]) for output in result.get("outputs", ())] or None


def _error(record: JobRecord) -> str:
    return (record.error or {}).get("message") or "The job failed."


def _logs(record: JobRecord) -> str:
    return progress_line(**record.progress) if record.progress else ""


def progress_line(step: int, steps: int) -> str:
    """Such as tqdm draws, which the client reads its progress from."""
    steps = max(1, steps)
    cells = BAR_CELLS * step // steps
    return f"{100 * step // steps:3d}%|{'█' * cells}{' ' * (BAR_CELLS - cells)}| {step}/{steps}\n"


def _metrics(record: JobRecord, waiting: Waiting | None) -> dict[str, Any]:
    """Seconds, where the job stands while it waits, and what it waits for; only what is known."""
    spans = timings(record)
    known = {
        "predict_time": spans["run_s"],
        "total_time": spans["total_s"],
        "queue_time": spans["queued_s"],
        "gpu_time": round(record.gpu_ms / 1000, 6) if record.ended_ms else None,
        "queue_position": waiting.position if waiting else None,
        "waiting_for": waiting.reason if waiting else None,
    }
    return {name: value for name, value in known.items() if value is not None}
