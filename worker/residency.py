"""Which models are loaded: resident stations, least recently used first out, and what to ask the queue for."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from redis.exceptions import RedisError

from genmill.errors import InvalidJob, ModelUnavailable
from genmill.extras import SEPARATOR, names_in
from genmill.registry import ModelSpec, Registry
from genmill.settings import Settings
from genmill.storage import Storage
from genmill.store import Room, Store, Want
from worker.engines.base import Device, Engine
from worker.engines.faults import lacks_memory
from worker.evictions import Bounds, Lodger, goers_first, movable, room_for, who_goes
from worker.host_shelf import HostShelf, woken
from worker.sizes import GIB, Sizes, budget_bytes, host_budget_bytes
from worker.stations import ModelStation
from worker.switches import Cause, Switches
from worker.warm_up import warm_up

log = logging.getLogger("genmill.worker")

LOAD_RETRY_S = 60.0
"""A model that does not load here is left to other workers for so long."""

EngineLoader = Callable[[ModelSpec], Engine]


@dataclass(slots=True)
class Resident:
    """A loaded model: since when, how long loading took, and how much it takes."""

    station: ModelStation
    since_s: float
    load_s: float
    model_bytes: int

    def load_adapter(self, name: str) -> None:
        """From then on it counts to what the model takes here, not to what others expect of it. Raises
        ModelUnavailable, InvalidJob."""
        self.model_bytes += self.station.load_adapter(name)

    def has_paid(self, now_s: float) -> bool:
        """Whether it has served as long as it took to load, so that at most half of the time goes into loading; see
        docs/adr for why not longer."""
        return now_s - self.since_s >= self.load_s


class Residents:
    """The loaded models, at most `max_resident` of them, and no more than fit in the memory that is for models.

    A model stays as long as it has work, unless another's jobs are overdue: then it takes no more, and goes once it is
    idle, to the host's memory while there is room. `switches` counts the models that went for others.
    """

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        storage: Storage,
        store: Store,
        load: EngineLoader,
        find_device: Callable[[], Device],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._settings, self._storage, self._load = registry, settings, storage, load
        self._clock, self._find_device, self._sources = clock, find_device, store.sources
        self._aside_until: dict[str, float] = {}
        self._inputs = ThreadPoolExecutor(settings.upload_threads, thread_name_prefix="input")
        self._residents: OrderedDict[str, Resident] = OrderedDict()
        self._shelf: HostShelf | None = None
        self._sizes = Sizes(store.memory)
        self._bounds = Bounds(settings.max_resident)
        self._leaving: tuple[str, ...] = ()
        self._offers = 0
        self.switches = Switches()

    def stations(self) -> Sequence[ModelStation]:
        return tuple(resident.station for resident in self._residents.values())

    def wants(self) -> list[Want]:
        """What may join, for every model. For one that would have to wait for another to go only to tell of overdue
        jobs; see `make_way`."""
        self._look_after_leaving()
        wants = [resident.station.want() for key, resident in self._residents.items() if key not in self._leaving]
        others = [spec for spec in self._registry.models if self._may_load(spec.batch_key)]
        rooms = [(spec, self._room(spec)) for spec in others]
        wants += [Want(spec.batch_key, spec.max_batch, room=room) for spec, room in rooms if room is not None]
        return [*wants, *(self._with_adapters(want) for want in wants if self._has_adapters(want.batch_key))]

    def make_way(self, batch_key: str) -> None:
        """Jobs of this model, which is not loaded, are overdue: the least recently used ones take no more."""
        spec = self._registry.by_batch_key(batch_key)
        lodgers = self._lodgers()
        going = [] if spec is None else who_goes(lodgers, movable(lodgers), self._needed(spec), self._bounds) or []
        self._leaving, self._offers = tuple(lodger.batch_key for lodger in going), 0
        for key in self._leaving:
            log.info("model %s takes no more: jobs of %s are overdue", key, batch_key)

    def must_load(self, batch_key: str) -> bool:
        """Whether it is a model's, which is not here yet."""
        spec = self._registry.by_batch_key(batch_key)
        return spec is not None and spec.batch_key not in self._residents

    def station_for(self, batch_key: str) -> ModelStation | None:
        """The resident station, with what the key names in memory, loading it if need be; None when no model has this
        key. Raises what loading raises, ModelUnavailable where it does not fit, InvalidJob where the model's engine
        takes no adapters, and RedisError."""
        spec = self._registry.by_batch_key(batch_key)
        if spec is None:
            return None
        if spec.batch_key not in self._residents:
            with self._aside_if_it_fails(spec.batch_key):
                self._move_in(spec)
        self._residents.move_to_end(spec.batch_key)
        resident = self._residents[spec.batch_key]
        for name in names_in(batch_key):
            with self._aside_if_it_fails(spec.batch_key + SEPARATOR + name):
                resident.load_adapter(name)
        return resident.station

    @contextmanager
    def _aside_if_it_fails(self, batch_key: str) -> Iterator[None]:
        """Left to others for a while, unless it is not this worker that has failed."""
        try:
            yield
        except (RedisError, InvalidJob):
            raise
        except Exception:
            self._aside_until[batch_key] = self._clock() + LOAD_RETRY_S
            raise

    def _has_adapters(self, batch_key: str) -> bool:
        spec = self._registry.by_batch_key(batch_key)
        return spec is not None and bool(spec.adapters)

    def _with_adapters(self, want: Want) -> Want:
        """The same for jobs with any of the model's adapters, but for those that did not load lately."""
        now_s, prefix = self._clock(), want.batch_key + SEPARATOR
        aside = [key for key, until_s in self._aside_until.items() if key.startswith(prefix) and until_s > now_s]
        return want._replace(batch_key=prefix, but=tuple(key.removeprefix(prefix) for key in aside))

    def close(self) -> None:
        self._inputs.shutdown(wait=False, cancel_futures=True)
        for station in self.stations():
            station.close()
        if self._shelf is not None:
            self._shelf.close()
        self._residents.clear()

    def _may_load(self, batch_key: str) -> bool:
        return batch_key not in self._residents and self._clock() >= self._aside_until.get(batch_key, 0.0)

    def _lodgers(self) -> list[Lodger]:
        now_s = self._clock()
        return [
            Lodger(key, resident.model_bytes, resident.station.is_idle(), resident.has_paid(now_s))
            for key, resident in self._residents.items()
        ]

    def _room(self, spec: ModelSpec) -> Room | None:
        """For one more model; None where nobody may go for it now. One that never fits may come, to be told so."""
        lodgers, needed = self._lodgers(), self._needed(spec)
        if self._bounds.fit(lodgers, needed) or not self._bounds.fit([], needed):
            return Room.FREE
        if self._clock() - self.switches.last_s < self._settings.min_switch_interval_s:
            return None
        room = room_for(lodgers, needed, self._bounds)
        return None if room is Room.CROWDED and self._leaving else room

    def _look_after_leaving(self) -> None:
        """Those that have become idle are offered in exchange once; when nobody comes, they take jobs again."""
        leaving = [self._residents.get(key) for key in self._leaving]
        self._offers += all(resident is not None and resident.station.is_idle() for resident in leaving)
        if None in leaving or self._offers > 1:
            self._leaving = ()

    def _move_in(self, spec: ModelSpec) -> None:
        shelf, began_s = self._look_around(), self._clock()
        parked = shelf.take(spec.batch_key)  # before others come there, for whom it might have to go
        try:
            gone = self._make_room(spec, self._needed(spec), shelf)
        except ModelUnavailable:
            if parked is not None:
                parked.station.close()
            raise
        loading_s = self._clock()
        station = parked and woken(parked.station)
        if station is None:
            station, more = self._loaded_in_room(spec, shelf)
            gone |= more
        now_s, model_bytes = self._clock(), station.memory().model_bytes
        log.info("model %s loaded in %.1f s, it takes %.2f GiB", spec.name, now_s - loading_s, model_bytes / GIB)
        self._sizes.learn(spec, model_bytes)
        if parked is not None and parked.station is station:
            model_bytes = parked.model_bytes  # with its adapters
        try:
            gone |= self._make_room(spec, model_bytes, shelf)  # where it takes more than was thought
        except ModelUnavailable:
            station.close()
            raise
        self.switches.note(gone, now_s - began_s, now_s)
        self._residents[spec.batch_key] = Resident(station, now_s, now_s - began_s, model_bytes)

    def _look_around(self) -> HostShelf:
        """Before each load: what is known of sizes here. The device is found at the first, which brings torch."""
        if self._shelf is None:
            device = self._find_device()
            self._bounds = Bounds(self._settings.max_resident, budget_bytes(self._settings, device))
            self._sizes.look_at(device)
            self._shelf = HostShelf(host_budget_bytes(self._settings, device))
        self._sizes.recall()
        return self._shelf

    def _loaded_in_room(self, spec: ModelSpec, shelf: HostShelf) -> tuple[ModelStation, dict[str, Cause]]:
        """Where the device refuses, whatever was thought of sizes, all that have nothing to do make room, and it is
        tried once more. They do not for one that was refused although they were gone."""
        gone: dict[str, Cause] = {}
        while True:
            try:
                return self._loaded(spec), gone
            except (ModelUnavailable, RuntimeError) as error:
                idle = goers_first(self._lodgers(), self._leaving)
                if not lacks_memory(error) or self._sizes.was_refused(spec):
                    raise
                if not idle:
                    self._sizes.note_refusal(spec)
                    raise
                log.warning("model %s takes more than there is room for: %s", spec.name, error)
            gone |= self._put_away(idle, spec, shelf)

    def _loaded(self, spec: ModelSpec) -> ModelStation:
        engine = self._load(spec)
        try:
            if (known := self._sizes.known(spec)) is not None:
                engine.recall(known)
            warm_up(engine, spec)
        except Exception:
            engine.close()
            raise
        measured_with = self._sizes.measured_with(spec)
        return ModelStation(
            spec, engine, self._storage, self._inputs, self._sources, measured_with=measured_with
        )  # fmt: skip

    def _make_room(self, spec: ModelSpec, needed: int, shelf: HostShelf) -> dict[str, Cause]:
        """Put those away that make room. Raises ModelUnavailable where it never fits, or not beside those at work."""
        lodgers = self._lodgers()
        going = who_goes(lodgers, goers_first(lodgers, self._leaving), needed, self._bounds)
        if going is None:
            raise self._no_room(spec, needed)
        return self._put_away(going, spec, shelf)

    def _put_away(self, going: Sequence[Lodger], spec: ModelSpec, shelf: HostShelf) -> dict[str, Cause]:
        """To the host's memory, or for good."""
        causes = {lodger.batch_key: self._cause(lodger.batch_key) for lodger in going}
        for lodger in going:
            log.info("model %s makes room for %s: %s", lodger.batch_key, spec.name, causes[lodger.batch_key])
            resident = self._residents.pop(lodger.batch_key)
            shelf.put(resident.station, resident.model_bytes)
        return causes

    def _cause(self, batch_key: str) -> Cause:
        if batch_key in self._leaving:
            return Cause.OVERDUE
        return Cause.IDLE if len(self._residents) >= self._bounds.most else Cause.BUDGET

    def _no_room(self, spec: ModelSpec, needed: int) -> ModelUnavailable:
        budget, at_work = self._bounds.budget_bytes or 0, sum(not lodger.is_idle for lodger in self._lodgers())
        beside = "" if not self._bounds.fit([], needed) else f" and {at_work} others at work"
        return ModelUnavailable(
            f"model {spec.name} takes {self._sizes.told(spec)}; this worker has {budget / GIB:.2f} GiB for models"
            f" (GENMILL_MEMORY_GIB){beside}"
        )

    def _needed(self, spec: ModelSpec) -> int:
        """What it will take; where nothing bounds that, nobody looks."""
        return 0 if self._bounds.budget_bytes is None else self._sizes.within(spec, self._bounds.budget_bytes)
