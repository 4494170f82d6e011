"""Which stations take a step now, when several have work. Pure: no clock, no Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Protocol, TypeVar

RIDE_ALONG_SHARE = 0.1
"""By how much of its own step the most urgent station may be delayed for the sake of others."""


class Stepping(Protocol):
    """What is known of a station with work. `step_s` is what one of its steps takes, 0 while that is unknown."""

    batch_key: str
    step_s: float

    def is_idle(self) -> bool: ...
    def is_stepping(self) -> bool: ...


S = TypeVar("S", bound=Stepping)


def whose_turn(stations: Sequence[S], heads: Mapping[str, float]) -> list[S]:
    """The station with the earliest virtual deadline on board (`heads`, by batch key) and, beside it, those whose
    steps cost next to nothing compared to its own: twelve short texts need not wait for a batch of images.

    Stations that only wait for their inputs come in any case, since to look after them takes no time.
    """
    at_work = sorted((s for s in stations if s.is_stepping()), key=lambda s: heads.get(s.batch_key, inf))
    waiting = [s for s in stations if not s.is_idle() and not s.is_stepping()]
    if not at_work:
        return waiting
    first, others = at_work[0], at_work[1:]
    riding, left_s = [], first.step_s * RIDE_ALONG_SHARE
    for station in others:
        if station.step_s <= left_s:
            riding.append(station)
            left_s -= station.step_s
    return [first, *riding, *waiting]
