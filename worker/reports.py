"""What a worker tells the fleet now and then: how long forwards take, what models take of memory, their switches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from redis.exceptions import RedisError

from genmill.jobs import Claim
from genmill.registry import Batching
from genmill.store import Store
from worker.engines.base import Curve, write_memory
from worker.residency import Residents

log = logging.getLogger("genmill.worker")

EVERY_S = 10.0


class Reports:
    """Only what has changed since it was told."""

    def __init__(self, store: Store, residents: Residents) -> None:
        self._store, self._residents = store, residents
        self._due_s = 0.0
        self._curves: dict[str, Curve] = {}
        self._batching: dict[str, Batching] = {}
        self._memories: dict[tuple[str, str], str] = {}
        self._switches: Mapping[str, tuple[int, float]] = residents.switches.as_published()

    def publish(self) -> None:
        """Where it is time for it. Raises RedisError; what was not told is told the next time."""
        is_due = time.monotonic() >= self._due_s
        self._publish_batching(is_due=is_due)
        if not is_due:
            return
        self._due_s = time.monotonic() + EVERY_S
        self._publish_curves()
        self._publish_memory()
        self._publish_switches()

    @contextmanager
    def told_of_loading(self, claims: Sequence[Claim]) -> Iterator[None]:
        """Where their model is not here, who asks for these jobs meanwhile hears of it; nothing else depends on it."""
        if not self._residents.must_load(claims[0].batch_key):
            yield
            return
        log.info("model of %s is loading", claims[0].batch_key)
        self._tell_of_loading(claims, is_over=False)
        try:
            yield
        finally:
            self._tell_of_loading(claims, is_over=True)

    def _tell_of_loading(self, claims: Sequence[Claim], *, is_over: bool) -> None:
        try:
            self._store.events.note_loading(claims, is_over=is_over)
        except RedisError as err:
            log.warning("nobody hears of the loading of %s: %s", claims[0].batch_key, err)

    def _publish_batching(self, *, is_due: bool) -> None:
        """At once for a model that is new here, and now and then, because the fleet forgets it."""
        batching = {station.batch_key: station.batching for station in self._residents.stations()}
        if batching and (is_due or batching != self._batching):
            self._store.forwards.publish_batching(batching)
            self._batching = batching

    def _publish_curves(self) -> None:
        curves = {
            f"{station.batch_key} {name}": curve
            for station in self._residents.stations()
            for name, curve in station.curves().items()
        }
        if curves and curves != self._curves:
            self._store.forwards.publish_curves(curves)
            self._curves = curves

    def _publish_memory(self) -> None:
        for station in self._residents.stations():
            memory = station.memory()
            name, text = (station.batch_key, memory.device), write_memory(memory)
            if self._memories.get(name) != text:
                self._store.memory.note(memory.device, {station.batch_key: text})
                self._memories[name] = text

    def _publish_switches(self) -> None:
        made: dict[str, Any] = self._residents.switches.as_published()
        if made == self._switches:
            return
        before = self._switches
        self._store.memory.count_switches(
            {cause: (count - before[cause][0], took_s - before[cause][1]) for cause, (count, took_s) in made.items()}
        )
        self._switches = made
