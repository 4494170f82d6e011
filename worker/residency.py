"""Which models are loaded: resident stations, least recently used first out, and what to ask the queue for."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from genmill.registry import ModelSpec, Registry
from genmill.settings import Settings
from genmill.storage import Storage
from genmill.store import Room, Want
from worker.engines.base import Engine
from worker.stations import ModelStation

log = logging.getLogger("genmill.worker")

LOAD_RETRY_S = 60.0
"""A model that does not load here is left to other workers for so long."""

EngineLoader = Callable[[ModelSpec], Engine]


@dataclass(slots=True)
class Resident:
    """A loaded model: since when, and how long loading took."""

    station: ModelStation
    since_s: float
    load_s: float

    def has_paid(self, now_s: float) -> bool:
        """Whether it has served as long as it took to load, so that at most half of the time goes into loading."""
        return now_s - self.since_s >= self.load_s


class Residents:
    """The loaded models, at most `max_resident` of them.

    A model stays as long as it has work, unless another's jobs are overdue: then it takes no more, and goes once it is
    idle. `swaps` counts the models that went for others.
    """

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
        self._residents: OrderedDict[str, Resident] = OrderedDict()
        self._leaving: str | None = None
        self._offers = 0
        self.swaps = 0

    def stations(self) -> Sequence[ModelStation]:
        return tuple(resident.station for resident in self._residents.values())

    def wants(self) -> list[Want]:
        """What may join, for every model. For one that would have to wait for another to go only to tell of overdue
        jobs; see `make_way`."""
        self._look_after_leaving()
        wants = [
            Want(key, resident.station.free_slots(), True, resident.station.is_idle(), resident.station.urgent_slots())
            for key, resident in self._residents.items()
            if key != self._leaving
        ]
        if (room := self._room()) is not None:
            others = [spec for spec in self._registry.models if self._may_load(spec.batch_key)]
            wants += [Want(spec.batch_key, spec.max_batch, room=room) for spec in others]
        return wants

    def make_way(self) -> None:
        """Jobs of another model are overdue: the least recently used one takes no more."""
        self._leaving, self._offers = self._victim(), 0
        if self._leaving is not None:
            log.info("model %s takes no more: jobs of another are overdue", self._leaving)

    def station_for(self, batch_key: str) -> ModelStation | None:
        """The resident station, loading it if need be; None when no model has this key. Raises what loading raises."""
        if batch_key not in self._residents:
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
            took_s = self._clock() - started
            log.info("model %s loaded in %.1f s", spec.name, took_s)
            station = ModelStation(spec, engine, self._storage, self._inputs)
            self._residents[batch_key] = Resident(station, self._clock(), took_s)
        self._residents.move_to_end(batch_key)
        return self._residents[batch_key].station

    def close(self) -> None:
        self._inputs.shutdown(wait=False, cancel_futures=True)
        for station in self.stations():
            station.close()
        self._residents.clear()

    def _may_load(self, batch_key: str) -> bool:
        return batch_key not in self._residents and self._clock() >= self._aside_until.get(batch_key, 0.0)

    def _room(self) -> Room | None:
        """For one more model; None where nobody may go for it now."""
        idle = [resident for resident in self._residents.values() if resident.station.is_idle()]
        now_s = self._clock()
        if len(self._residents) < self._settings.max_resident or any(one.has_paid(now_s) for one in idle):
            return Room.FREE
        if idle:
            return Room.UNPAID
        return Room.CROWDED if self._leaving is None and self._victim() is not None else None

    def _victim(self) -> str | None:
        """Who would go next; None while nobody has served long enough."""
        now_s = self._clock()
        return next((key for key, resident in self._residents.items() if resident.has_paid(now_s)), None)

    def _look_after_leaving(self) -> None:
        """One that has become idle is offered in exchange once; when nobody comes, it takes jobs again."""
        if self._leaving is None:
            return
        resident = self._residents.get(self._leaving)
        self._offers += resident is not None and resident.station.is_idle()
        if resident is None or self._offers > 1:
            self._leaving = None

    def _make_room(self) -> None:
        while len(self._residents) >= self._settings.max_resident:
            idle = [key for key, resident in self._residents.items() if resident.station.is_idle()]
            key = self._leaving if self._leaving in idle else idle[0]
            log.info("model %s is unloaded to make room", key)
            self._residents.pop(key).station.close()
            self.swaps += 1
