"""Models that are out of use, in the host's memory: from there one is back much sooner than from its files."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import NamedTuple

from worker.engines.base import is_device_lost
from worker.stations import ModelStation

log = logging.getLogger("genmill.worker")


class Shelved(NamedTuple):
    """A model, what it takes of the device when it is back there, and of the host while it is here."""

    station: ModelStation
    model_bytes: int
    parked_bytes: int


class HostShelf:
    """The last that were used, in at most so many bytes. A shelf of none closes whatever it is given."""

    def __init__(self, budget_bytes: int = 0) -> None:
        self._budget_bytes = budget_bytes
        self._shelved: OrderedDict[str, Shelved] = OrderedDict()

    def put(self, station: ModelStation, model_bytes: int) -> None:
        """Take it out of the device's memory, here or for good."""
        parked_bytes = station.parked_bytes() if self._budget_bytes else 0
        if not self._budget_bytes or parked_bytes > self._budget_bytes:
            station.close()
            return
        while sum(one.parked_bytes for one in self._shelved.values()) + parked_bytes > self._budget_bytes:
            self._drop(next(iter(self._shelved)))
        try:
            station.park()
        except RuntimeError as error:  # the host refuses to pin so much, whatever the settings say
            if is_device_lost(error):
                raise
            log.warning("model %s cannot be kept in the host's memory: %s", station.batch_key, error)
            station.close()
        else:
            self._shelved[station.batch_key] = Shelved(station, model_bytes, parked_bytes)

    def take(self, batch_key: str) -> Shelved | None:
        """As it lies here, to be woken once the device has room; None where it is not here."""
        return self._shelved.pop(batch_key, None)

    def close(self) -> None:
        for batch_key in list(self._shelved):
            self._drop(batch_key)

    def _drop(self, batch_key: str) -> None:
        log.info("model %s is dropped from the host's memory", batch_key)
        self._shelved.pop(batch_key).station.close()


def woken(station: ModelStation) -> ModelStation | None:
    """Back on the device; None, and closed, where that refuses: then it is to be loaded."""
    try:
        station.unpark()
    except RuntimeError as error:
        if is_device_lost(error):
            raise
        log.warning("model %s does not come back from the host's memory: %s", station.batch_key, error)
        station.close()
        return None
    return station
