"""What both engines tell about a job: its receipt, and its failure in the client's terms."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import diffusers
import torch
import transformers

from genmill.errors import GenerationFailed, JobFailure
from genmill.registry import ModelSpec
from worker.engines.base import Failed, Receipt
from worker.engines.meter import Meter

log = logging.getLogger(__name__)


def make_receipt(spec: ModelSpec, module: Any, seed: int, meter: Meter) -> Receipt:
    """The receipt of a job whose forwards `meter` saw; dtype and device are those of `module`."""
    sizes = [share.images for share in meter.steps]
    return Receipt(
        model=spec.name,
        revision=spec.revision,
        dtype=str(module.dtype).removeprefix("torch."),
        device=str(module.device),
        seed=seed,
        forwards=len(sizes),
        batch_min=min(sizes, default=0),
        batch_mean=sum(sizes) / len(sizes) if sizes else 0.0,
        batch_max=max(sizes, default=0),
        gpu_ms=meter.gpu_ms,
        step_ms=meter.step_ms,
        versions=dict(_versions()),
    )


def failed(job_id: str, error: Exception) -> Failed:
    """The end of a job in its client's terms; what a model raises is logged whole and told in short."""
    if isinstance(error, JobFailure):
        return Failed(job_id, error)
    log.warning("job %s failed", job_id, exc_info=error)
    return Failed(job_id, GenerationFailed(f"{type(error).__name__}: {str(error)[:500]}"))


@cache
def _versions() -> dict[str, str]:
    return {library.__name__: library.__version__ for library in (torch, diffusers, transformers)}
