"""How much models take of the device: as was measured here or by other workers, else as their files tell."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from genmill.registry import ModelKind, ModelSpec
from genmill.settings import Settings
from genmill.store import MemoryBook
from worker.engines.base import Device, ModelMemory, read_memory
from worker.engines.kv_cache import cache_bytes
from worker.engines.weights import dtype_of, weights_bytes

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
    if settings.host_memory_gib is not None:
        return int(settings.host_memory_gib * GIB)
    return device.host_bytes // (settings.workers_per_host or device.host_devices)


def circumstances(spec: ModelSpec, device: Device) -> dict[str, str]:
    """All that what a model takes depends on besides its key and the device's name. What was measured in others tells
    nothing here."""
    library = "transformers" if spec.kind is ModelKind.TEXT else "diffusers"
    return {
        "dtype": dtype_of(spec, device.dtype),
        "max_batch": str(spec.max_batch),
        "optimizations": " ".join(sorted(spec.optimizations)),
        "attention": spec.attention or "",
        "controlnets": " ".join(sorted(spec.controlnets)),
        **{name: _version_of(name) for name in ("torch", library)},
    }


@cache
def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class Sizes:
    """Of all models, on one device. Nothing is known before `look_at`, and nothing takes room then."""

    def __init__(self, book: MemoryBook) -> None:
        self._book = book
        self._device: Device | None = None
        self._records: dict[str, ModelMemory] = {}
        self._measured: dict[str, int] = {}
        self._refused: set[str] = set()
        self._by_files: dict[str, tuple[int, int]] = {}
        self._thought: dict[str, int] = {}  # asked for in each turn, so it is worked out once

    def look_at(self, device: Device) -> None:
        self._device = device

    def recall(self) -> None:
        """Read what workers with such a device have measured. Raises RedisError."""
        self._by_files.clear()
        self._thought.clear()
        if self._device is None:
            return
        for batch_key, raw in self._book.on(self._device.name).items():
            memory = read_memory(raw)
            if memory is None:
                log.warning("what is stored of the memory of %s cannot be read, and is left aside", batch_key)
            else:
                self._records[batch_key] = memory

    def measured_with(self, spec: ModelSpec) -> Mapping[str, str]:
        """To be kept with what is measured of it here."""
        return {} if self._device is None else circumstances(spec, self._device)

    def known(self, spec: ModelSpec) -> ModelMemory | None:
        """What another worker has measured as it would be measured here."""
        record = self._records.get(spec.batch_key)
        if record is None or self._device is None:
            return None
        is_same = record.device == self._device.name and record.measured_with == self.measured_with(spec)
        return record if is_same else None

    def learn(self, spec: ModelSpec, model_bytes: int) -> None:
        """It is loaded, and takes so much."""
        self._measured[spec.batch_key] = model_bytes
        self._refused.discard(spec.batch_key)

    def note_refusal(self, spec: ModelSpec) -> None:
        """The device had no room for it, although nobody else was there who could have gone."""
        self._refused.add(spec.batch_key)

    def was_refused(self, spec: ModelSpec) -> bool:
        return spec.batch_key in self._refused

    def of(self, spec: ModelSpec) -> int:
        """0 where nobody can tell before it is loaded."""
        if (measured := self._measured.get(spec.batch_key)) is not None:
            return measured
        if spec.batch_key not in self._thought:
            known = self.known(spec)
            self._thought[spec.batch_key] = known.model_bytes if known else sum(self._files(spec))
        return self._thought[spec.batch_key]

    def within(self, spec: ModelSpec, budget: int) -> int:
        """The same, for the room that is made. What is thought to be more than the `budget` and may be wrong counts as
        all of it: so the model is tried once, by itself. Its weights alone, in its files, are never wrong."""
        size = self.of(spec)
        is_certain = spec.batch_key in self._measured or self.was_refused(spec)
        return size if is_certain or self._files(spec)[0] > budget else min(size, budget)

    def told(self, spec: ModelSpec) -> str:
        """For people: how much, and who says so."""
        if spec.batch_key in self._measured:
            source = "as measured here"
        else:
            source = "as another worker has measured" if self.known(spec) else "as its files tell"
        return f"{self.of(spec) / GIB:.2f} GiB, {source}"

    def _files(self, spec: ModelSpec) -> tuple[int, int]:
        """(its weights, its cache), 0 where the files do not tell."""
        if self._device is None:
            return 0, 0
        if spec.batch_key not in self._by_files:
            sizes = weights_bytes(spec, self._device.dtype) or 0, cache_bytes(spec, self._device)
            self._by_files[spec.batch_key] = sizes
        return self._by_files[spec.batch_key]
