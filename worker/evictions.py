"""Which models go so that another has room. Pure: no clock, no devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from genmill.store import Room


class Lodger(NamedTuple):
    """A loaded model. `has_paid`: it has served as long as it took to load."""

    batch_key: str
    model_bytes: int
    is_idle: bool
    has_paid: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many models may be loaded, and how much they may take in all; None where nothing bounds that."""

    most: int
    budget_bytes: int | None = None

    def fit(self, lodgers: Sequence[Lodger], more_bytes: int) -> bool:
        """Whether there is room for one more, of this size, beside these."""
        taken = sum(lodger.model_bytes for lodger in lodgers) + more_bytes
        return len(lodgers) < self.most and (self.budget_bytes is None or taken <= self.budget_bytes)


def who_goes(
    lodgers: Sequence[Lodger], may_go: Sequence[Lodger], more_bytes: int, bounds: Bounds
) -> list[Lodger] | None:
    """The first of `may_go`, in their order, that make room for one more of this size, without those that need not go
    after all. None where all of them would not be enough."""
    going: list[Lodger] = []
    for lodger in [*may_go, None]:
        if bounds.fit(_without(lodgers, going), more_bytes):
            break
        if lodger is None:
            return None
        going.append(lodger)
    for spared in going[-2::-1]:  # the last one was needed
        others = [lodger for lodger in going if lodger is not spared]
        going = others if bounds.fit(_without(lodgers, others), more_bytes) else going
    return going


def room_for(lodgers: Sequence[Lodger], more_bytes: int, bounds: Bounds) -> Room | None:
    """Of the `lodgers`, least recently used first, who would go: those that have nothing to do and have paid, failing
    that all that have nothing to do, failing that the others that have paid, once they are idle. None where even that
    is not enough."""
    idle = [lodger for lodger in lodgers if lodger.is_idle]
    if who_goes(lodgers, [lodger for lodger in idle if lodger.has_paid], more_bytes, bounds) is not None:
        return Room.FREE
    if who_goes(lodgers, idle, more_bytes, bounds) is not None:
        return Room.UNPAID
    is_possible = who_goes(lodgers, movable(lodgers), more_bytes, bounds) is not None
    return Room.CROWDED if is_possible else None


def movable(lodgers: Sequence[Lodger]) -> list[Lodger]:
    """Who may be told to end its jobs and go."""
    return [lodger for lodger in lodgers if lodger.is_idle or lodger.has_paid]


def goers_first(lodgers: Sequence[Lodger], leaving: Sequence[str]) -> list[Lodger]:
    """Those that have nothing to do, in the order in which they go: who was told to leave, who has paid, the rest."""
    idle = [lodger for lodger in lodgers if lodger.is_idle]
    return sorted(idle, key=lambda lodger: (lodger.batch_key not in leaving, not lodger.has_paid))


def _without(lodgers: Sequence[Lodger], going: Sequence[Lodger]) -> list[Lodger]:
    return [lodger for lodger in lodgers if lodger not in going]
