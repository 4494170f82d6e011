"""The batch, and the result of one of its lines, as clients see them."""

from __future__ import annotations

import json
from typing import Any

from genmill.batches import BatchRecord
from genmill.links import Links
from genmill.views import iso, output_view


def batch_view(record: BatchRecord, running: int, now_ms: float, links: Links) -> dict[str, Any]:
    """JSON of a batch. `running`: its jobs that a worker has on board now."""
    left = max(0, record.total - record.done)
    canceled = record.canceled + (left if record.state.is_terminal else 0)  # lines that never got a job
    eta_s = record.eta_s(now_ms)
    url = links.batch_url(record.batch_id)
    return {
        "id": record.batch_id,
        "object": "batch",
        "status": record.state.value,
        "counts": {
            "total": record.total,
            "waiting": 0 if record.state.is_terminal else max(0, left - running),
            "running": min(running, left),
            "succeeded": record.succeeded,
            "failed": record.failed,
            "canceled": canceled,
            "skipped": record.skipped,
        },
        "results": record.done,
        "rate_per_s": round(record.rate(now_ms), 3),
        "eta_s": None if eta_s is None else round(eta_s, 1),
        "created_at": iso(record.created_ms),
        "expires_at": iso(record.expires_ms),
        "cancelling_at": iso(record.cancelling_ms),
        "ended_at": iso(record.ended_ms),
        "resume_of": record.resume_of,
        "metadata": dict(record.metadata),
        "urls": {"get": url, "cancel": f"{url}/cancel", "results": f"{url}/results"},
    }


def result_view(row: bytes, links: Links) -> bytes:
    """One line of the results, links in it signed afresh."""
    result = json.loads(row)
    result["outputs"] = [output_view(output, links) for output in result["outputs"]]
    return json.dumps(result, separators=(",", ":")).encode() + b"\n"
