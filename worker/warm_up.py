"""The shapes that a model's entry names, run once when it is loaded: what is compiled, tuned or measured at the first
forward of a shape then makes no job wait."""

from __future__ import annotations

import logging
import time

from genmill.registry import ModelSpec
from worker.engines.base import Engine, EngineJob, Failed

log = logging.getLogger("genmill.worker")

BATCHES = (1, 2, 4)
"""Images at once: three sizes tell how the memory of a forward grows with its rows."""


def warm_up(engine: Engine, spec: ModelSpec) -> None:
    """Jobs of one step through the engine itself, nobody else being on board. What fails is logged: the first job of
    that shape then meets it too, and is told."""
    for size in spec.warmup:
        began_s = time.perf_counter()
        for batch in [batch for batch in BATCHES if batch <= spec.max_batch]:
            _run(engine, [_job(spec, size, number) for number in range(batch)])
        log.info("model %s: %s is warm, after %.1f s", spec.name, size, time.perf_counter() - began_s)


def _run(engine: Engine, jobs: list[EngineJob]) -> None:
    engine.admit(jobs)
    while not engine.is_idle():
        for event in engine.step():
            if isinstance(event, Failed):
                log.warning("%s: %s", event.job_id, event.error.detail)


def _job(spec: ModelSpec, size: str, number: int) -> EngineJob:
    width, height = map(int, size.split("x"))
    whole = {"width": width, "height": height, "num_images": 1, "loras": []}
    asked = {"prompt": "warm-up", **whole, "steps": 1, "seed": number}
    return EngineJob(f"warm-up of {spec.name} at {size} #{number}", spec.parse_input(asked), is_rehearsal=True)
