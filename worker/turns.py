"""Which stations take a step now, when several have work. Pure: no clock, no Redis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Protocol, TypeVar

RIDE_ALONG_SHARE = 0.1
"""By how much of its own step the most urgent station may be delayed for the sake of others."""


class Stepping(Protocol):
    """What is known of a station with work. `step_s` is what one of its steps takes, 0 while that is unknown;
    `spent_s` what all have taken."""

    batch_key: str
    step_s: float
    spent_s: float

    def is_idle(self) -> bool: ...
    def is_stepping(self) -> bool: ...


S = TypeVar("S", bound=Stepping)


def whose_turn(stations: Sequence[S], heads: Mapping[str, float], now_ms: float) -> list[S]:
    """The station with the earliest virtual deadline on board (`heads`, by batch key) and, beside it, those whose
    steps cost next to nothing compared to its own: twelve short texts need not wait for a batch of images.

    Where several are overdue the worker cannot keep up, and to go on by deadlines would serve whoever has the oldest
    backlog alone: those share the time. Stations that only wait for their inputs come in any case, since to look after
    them takes no time.
    """

    def order(station: S) -> tuple[bool, float]:
        head = heads.get(station.batch_key, inf)
        return (head >= now_ms, head if head >= now_ms else station.spent_s)

    at_work = sorted((s for s in stations if s.is_stepping()), key=order)
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
