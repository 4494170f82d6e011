"""Which models are loaded: resident stations, least recently used first out, and what to ask the queue for."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from genmill.registry import ModelSpec, Registry
from genmill.settings import Settings
from genmill.storage import Storage
from genmill.store import Want
from worker.engines.base import Engine
from worker.stations import ModelStation

log = logging.getLogger("genmill.worker")

LOAD_RETRY_S = 60.0
"""A model that does not load here is left to other workers for so long."""

EngineLoader = Callable[[ModelSpec], Engine]


class Residents:
    """The loaded models, at most `max_resident` of them."""

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        storage: Storage,
        load: EngineLoader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._settings, self._storage, self._load = registry, settings, storage, load
        self._clock = clock
        self._aside_until: dict[str, float] = {}
        self._inputs = ThreadPoolExecutor(settings.upload_threads, thread_name_prefix="input")
        self._stations: OrderedDict[str, ModelStation] = OrderedDict()

    def stations(self) -> Sequence[ModelStation]:
        return tuple(self._stations.values())

    def wants(self) -> list[Want]:
        """What may join, for every model; for those that are not resident only while one could be loaded."""
        wants = [
            Want(key, station.free_slots(), True, station.is_idle(), station.urgent_slots())
            for key, station in self._stations.items()
        ]
        if self._has_room():
            others = [spec for spec in self._registry.models if self._may_load(spec.batch_key)]
            wants += [Want(spec.batch_key, spec.max_batch) for spec in others]
        return wants

    def station_for(self, batch_key: str) -> ModelStation | None:
        """The resident station, loading it if need be; None when no model has this key. Raises what loading raises."""
        if batch_key not in self._stations:
            spec = self._registry.by_batch_key(batch_key)
            if spec is None:
                return None
            self._make_room()
            started = self._clock()
            try:
                engine = self._load(spec)
            except Exception:
                self._aside_until[batch_key] = self._clock() + LOAD_RETRY_S
                raise
            log.info("model %s loaded in %.1f s", spec.name, self._clock() - started)
            self._stations[batch_key] = ModelStation(spec, engine, self._storage, self._inputs)
        self._stations.move_to_end(batch_key)
        return self._stations[batch_key]

    def close(self) -> None:
        self._inputs.shutdown(wait=False, cancel_futures=True)
        for station in self._stations.values():
            station.close()
        self._stations.clear()

    def _may_load(self, batch_key: str) -> bool:
        return batch_key not in self._stations and self._clock() >= self._aside_until.get(batch_key, 0.0)

    def _has_room(self) -> bool:
        return len(self._stations) < self._settings.max_resident or any(s.is_idle() for s in self._stations.values())

    def _make_room(self) -> None:
        while len(self._stations) >= self._settings.max_resident:
            key = next(key for key, station in self._stations.items() if station.is_idle())
            log.info("model %s is unloaded to make room", key)
            self._stations.pop(key).close()
