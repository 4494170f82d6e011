"""Which engine serves an image model: the rendezvous where its calls can be parked, else static batches."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from torch import nn

from genmill.registry import ModelSpec
from worker.engines.devices import pick_device
from worker.engines.diffusion import DiffusionEngine
from worker.engines.memory import meter_of
from worker.engines.optimizations import optimize
from worker.engines.pipelines import load_controlnets, load_pipeline
from worker.engines.sites import can_park
from worker.engines.static import StaticEngine

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

log = logging.getLogger(__name__)


def load_image_engine(spec: ModelSpec, device: str | None) -> DiffusionEngine | StaticEngine:
    """Raises ModelUnavailable when the weights cannot be loaded, or the pipeline lacks what the entry asks for."""
    where = pick_device(device)
    meter = meter_of(where)
    held = meter.held_bytes()
    pipe = load_pipeline(spec, where)
    optimize(pipe, spec.optimizations, spec.attention)
    engine = image_engine(spec, pipe, load_controlnets(spec, pipe) if can_park(pipe) else {})
    engine.model_bytes = max(engine.model_bytes, meter.held_bytes() - held)
    return engine


def image_engine(
    spec: ModelSpec, pipe: DiffusionPipeline, controlnets: Mapping[str, nn.Module] = MappingProxyType({})
) -> DiffusionEngine | StaticEngine:
    """Of a loaded pipeline. Static batches have no use for ControlNets."""
    if can_park(pipe):
        return DiffusionEngine.from_pipeline(spec, pipe, controlnets=controlnets)
    log.warning("model %s: %s cannot be parked, its jobs run in static batches", spec.name, type(pipe).__name__)
    return StaticEngine.from_pipeline(spec, pipe)
