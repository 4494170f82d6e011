"""How much models take of the device: as was measured here or by other workers, else as their files tell."""

from __future__ import annotations

import logging

from genmill.registry import ModelSpec
from genmill.settings import Settings
from genmill.store import MemoryBook
from worker.engines.base import Device, ModelMemory, read_memory
from worker.engines.weights import weights_bytes

log = logging.getLogger("genmill.worker")

GIB = 2**30
RESERVE = 0.25
"""Of a device's memory: what is not for models by default, but for their forwards."""


def budget_bytes(settings: Settings, device: Device) -> int | None:
    """For all loaded models together; None where nothing bounds them."""
    if settings.memory_gib is not None:
        return int(settings.memory_gib * GIB)
    return None if device.memory_bytes is None else int(device.memory_bytes * (1 - RESERVE))


def host_budget_bytes(settings: Settings, device: Device) -> int:
    """For models that are out of use. None on a device whose memory is the host's: there is no other place to go."""
    if device.memory_bytes is None:
        return 0
    return device.host_bytes if settings.host_memory_gib is None else int(settings.host_memory_gib * GIB)


class Sizes:
    """Of all models, on one device. Nothing is known before `look_at`, and nothing takes room then."""

    def __init__(self, book: MemoryBook) -> None:
        self._book = book
        self._device: Device | None = None
        self._known: dict[str, ModelMemory] = {}
        self._measured: dict[str, int] = {}
        self._expected: dict[str, int] = {}

    def look_at(self, device: Device) -> None:
        self._device = device

    def recall(self) -> None:
        """Read what workers with such a device have measured. Raises RedisError."""
        self._expected.clear()
        if self._device is None:
            return
        for batch_key, raw in self._book.on(self._device.name).items():
            memory = read_memory(raw)
            if memory is None:
                log.warning("what is stored of the memory of %s cannot be read, and is left aside", batch_key)
            else:
                self._known[batch_key] = memory

    def known(self, spec: ModelSpec) -> ModelMemory | None:
        return self._known.get(spec.batch_key)

    def learn(self, spec: ModelSpec, model_bytes: int) -> None:
        """It is loaded, and takes so much."""
        self._measured[spec.batch_key] = model_bytes

    def of(self, spec: ModelSpec) -> int:
        """0 where nobody can tell before it is loaded."""
        key = spec.batch_key
        if self._device is None:
            return 0
        if key in self._measured:
            return self._measured[key]
        if key not in self._expected:
            known = self._known.get(key)
            self._expected[key] = known.model_bytes if known else weights_bytes(spec, self._device.dtype) or 0
        return self._expected[key]
