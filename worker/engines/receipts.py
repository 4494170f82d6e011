"""What both engines tell about a job: its receipt, and its failure in the client's terms."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import diffusers
import torch
import transformers

from genmill.errors import GenerationFailed, JobFailure
from genmill.extras import LoraSet
from genmill.registry import ModelSpec
from worker.engines.base import Failed, Receipt
from worker.engines.meter import Meter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model runs, as receipts say it. Asked once: for each of them, a module would walk over its parts."""

    dtype: str
    device: str

    @classmethod
    def of(cls, module: Any) -> Self:
        return cls(str(module.dtype).removeprefix("torch."), str(module.device))


def make_receipt(spec: ModelSpec, place: Place, seed: int, meter: Meter, loras: LoraSet = ()) -> Receipt:
    """The receipt of a job whose forwards `meter` saw."""
    sizes = [share.images for share in meter.steps]
    return Receipt(
        model=spec.name,
        revision=spec.revision,
        dtype=place.dtype,
        device=place.device,
        seed=seed,
        forwards=len(sizes),
        batch_min=min(sizes, default=0),
        batch_mean=sum(sizes) / len(sizes) if sizes else 0.0,
        batch_max=max(sizes, default=0),
        forwards_share=sum(1 / size for size in sizes),
        gpu_ms=meter.gpu_ms,
        step_ms=meter.step_ms,
        versions=dict(_versions()),
        loras=tuple(lora.model_dump() for lora in loras),
    )


def failed(job_id: str, error: Exception, gpu_ms: float = 0.0) -> Failed:
    """The end of a job in its client's terms. What a model's libraries raise may name files and hosts: it is logged,
    and shown by RQ's tools; the client hears of which kind it was."""
    if isinstance(error, JobFailure):
        return Failed(job_id, error, gpu_ms)
    log.warning("job %s failed", job_id, exc_info=error)
    failure = GenerationFailed(f"the model raised {type(error).__name__} while it worked on this job; it is logged")
    failure.__cause__ = error
    return Failed(job_id, failure, gpu_ms)


@cache
def _versions() -> dict[str, str]:
    return {library.__name__: library.__version__ for library in (torch, diffusers, transformers)}
