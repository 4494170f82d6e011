"""The batch as everybody reads it: its counts, its pace."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from genmill.batches.states import BatchState
from genmill.jobs import new_job_id

BATCH_ID = re.compile(r"batch_[0-9a-z]{26}")
_JOB_ID = re.compile(r"(batch_[0-9a-z]{26})-([1-9][0-9]{0,8})")

PLAIN_FIELDS = (
    "state", "tenant", "total", "fed", "done", "succeeded", "failed", "canceled", "created_ms", "expires_ms",
    "cancelling_ms", "ended_ms", "pace_ms", "pace_done", "body", "kind", "resume_of", "skipped",
)  # fmt: skip
"""Of a record, all that is short."""


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A stored batch. Times in Unix milliseconds.

    `fed`: lines that have a job, or a fault instead of one; `done`: those whose result is collected, `succeeded`,
    `failed` and `canceled` ones together. Lines after `fed` never got a job; a batch that was called off keeps some.
    `skipped`: lines of the batch `resume_of`, or of one that it resumed, that had succeeded there, and are no lines of
    this one. `kind` names the dialect, `about` is whatever it wants to keep. `webhook` is called at its end.
    """

    batch_id: str
    tenant: str
    state: BatchState
    total: int
    fed: int
    done: int
    succeeded: int
    failed: int
    canceled: int
    created_ms: float
    expires_ms: float
    cancelling_ms: float | None
    ended_ms: float | None
    pace_ms: float
    pace_done: int
    body: str
    kind: str = "native"
    resume_of: str | None = None
    skipped: int = 0
    webhook: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def rate(self, now_ms: float) -> float:
        """Lines collected a second, over the last 30 to 60 seconds; of an ended batch, over all its time."""
        if self.ended_ms is not None:
            return _a_second(self.done, self.ended_ms - self.created_ms)
        return _a_second(self.done - self.pace_done, now_ms - self.pace_ms)

    def eta_s(self, now_ms: float) -> float | None:
        """Seconds until its last line, at that rate; None where it stands still or has ended."""
        rate = self.rate(now_ms)
        return None if self.state.is_terminal or rate <= 0 else (self.total - self.done) / rate


def _a_second(lines: int, ms: float) -> float:
    return lines / ms * 1000 if ms > 0 else 0.0


def new_batch_id() -> str:
    return f"batch_{new_job_id()}"


def job_id_of(batch_id: str, number: int) -> str:
    """The job of a line, counted from 1: the same whoever feeds it, so that it is stored once."""
    return f"{batch_id}-{number}"


def line_of(job_id: str) -> tuple[str, int] | None:
    """(batch id, line) of a job that is one."""
    found = _JOB_ID.fullmatch(job_id)
    return (found[1], int(found[2])) if found else None


def record_from_hash(batch_id: str, fields: Mapping[bytes, bytes]) -> BatchRecord | None:
    """None for a hash that is gone."""
    texts = {name.decode(): value.decode() for name, value in fields.items()}
    if "state" not in texts:
        return None

    def ms(name: str) -> float | None:
        return float(texts[name]) if texts.get(name) else None

    counts = ("total", "fed", "done", "succeeded", "failed", "canceled", "pace_done")
    return BatchRecord(
        batch_id=batch_id, tenant=texts["tenant"], state=BatchState(texts["state"]),
        **{name: int(texts[name]) for name in counts}, created_ms=float(texts["created_ms"]),
        expires_ms=float(texts["expires_ms"]), cancelling_ms=ms("cancelling_ms"), ended_ms=ms("ended_ms"),
        pace_ms=float(texts["pace_ms"]), body=texts["body"], kind=texts.get("kind", "native"),
        resume_of=texts.get("resume_of") or None, skipped=int(texts.get("skipped", 0)),
        webhook=texts.get("hook") or None,
        metadata=json.loads(texts.get("metadata", "{}")), about=json.loads(texts.get("about", "{}")),
    )  # fmt: skip
