"""The batch as clients and webhook receivers see it: one shape for both."""

from __future__ import annotations

from typing import Any

from genmill.batches.records import BatchRecord
from genmill.links import Links
from genmill.views import iso


def batch_view(record: BatchRecord, running: int, now_ms: float, links: Links) -> dict[str, Any]:
    """JSON of a batch, without its webhook. `running`: its jobs that a worker has on board now."""
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
