"""Loads a model's engine. Torch and its libraries are imported by the first load, not by this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from genmill.errors import ModelUnavailable
from genmill.model_sources import NO_FILES
from genmill.registry import ModelKind

if TYPE_CHECKING:
    from genmill.registry import ModelSpec
    from worker.engines.base import Device, Engine


def find_device(device: str | None = None) -> Device:
    """Where models run here, and what there is for them. Raises RuntimeError where there is no such device."""
    from worker.engines import devices  # noqa: PLC0415  # heavy

    return devices.find_device(device)


def load_engine(spec: ModelSpec, *, device: str | None = None) -> Engine:
    """The engine for the model, weights in memory. Raises ModelUnavailable."""
    if spec.source == NO_FILES:
        raise ModelUnavailable(f"model {spec.name}: source is {NO_FILES!r}, and this worker's engines load files")
    match spec.kind:
        case ModelKind.IMAGE:
            from worker.engines.images import load_image_engine  # noqa: PLC0415  # heavy

            return load_image_engine(spec, device)
        case ModelKind.TEXT:
            from worker.engines.text import TextEngine  # noqa: PLC0415  # heavy

            return TextEngine(spec, device=device)
        case _:
            assert_never(spec.kind)
