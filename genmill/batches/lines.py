"""One line of a batch: as it is kept in the storage, and as the job that it becomes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from genmill.batches.records import job_id_of
from genmill.jobs import JobRequest
from genmill.keys import JobClass
from genmill.registry import Registry


@dataclass(frozen=True, slots=True)
class Line:
    """A checked line. `input` is the model's, with defaults and seed filled in, so that a line that is run again
    gives the same; its images are storage keys. The other fields are those of a job."""

    custom_id: str
    model: str
    input: Mapping[str, Any]
    job_class: str = JobClass.P3.value
    webhook: str | None = None
    ttl_s: int | None = None
    deadline_s: float | None = None
    is_best_effort: bool = False
    is_reproducible: bool = False
    is_streamed: bool = False
    has_preview: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> bytes:
        """One line of JSON; what has its default is left out."""
        given = {name: getattr(self, name) for name in _NAMES}
        kept = {name: value for name, value in given.items() if value not in (None, False, {})}
        return json.dumps(kept, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_json(cls, raw: bytes) -> Line:
        return cls(**json.loads(raw))

    def as_job(self, batch_id: str, number: int, tenant: str, registry: Registry) -> JobRequest:
        """Raises InvalidRequest where the fleet's models have changed since the line was checked."""
        spec = registry.get(self.model)
        return JobRequest(
            job_id=job_id_of(batch_id, number), tenant=tenant, model=spec, input=spec.parse_input(dict(self.input)),
            job_class=JobClass(self.job_class), webhook=self.webhook, ttl_s=self.ttl_s, deadline_s=self.deadline_s,
            is_best_effort=self.is_best_effort, is_reproducible=self.is_reproducible, is_streamed=self.is_streamed,
            has_preview=self.has_preview,
            metadata={**self.metadata, "batch_id": batch_id, "custom_id": self.custom_id},
        )  # fmt: skip


_NAMES = tuple(part.name for part in fields(Line))
