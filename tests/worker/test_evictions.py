"""Who goes so that another model has room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from genmill.store import Room
from worker.evictions import Bounds, Lodger, goers_first, room_for, who_goes


def lodger(name: str, size: int = 1, *, idle: bool = True, paid: bool = True) -> Lodger:
    return Lodger(name, size, idle, paid)


def names(lodgers: list[Lodger] | None) -> list[str] | None:
    return None if lodgers is None else [one.batch_key for one in lodgers]


def test_the_least_recently_used_go_until_it_fits() -> None:
    lodgers = [lodger("a", 4), lodger("b", 4), lodger("c", 4)]
    bounds = Bounds(8, budget_bytes=13)
    assert names(who_goes(lodgers, lodgers, 1, bounds)) == []
    assert names(who_goes(lodgers, lodgers, 5, bounds)) == ["a"]
    assert names(who_goes(lodgers, lodgers, 9, bounds)) == ["a", "b"]
    assert who_goes(lodgers, lodgers[:1], 9, bounds) is None
    assert who_goes(lodgers, lodgers, 14, bounds) is None


def test_one_whose_going_helps_nobody_stays() -> None:
    lodgers = [lodger("small", 1), lodger("large", 9)]
    assert names(who_goes(lodgers, lodgers, 8, Bounds(8, budget_bytes=10))) == ["large"]


def test_the_number_of_models_is_a_bound_of_its_own() -> None:
    lodgers = [lodger("a"), lodger("b")]
    assert names(who_goes(lodgers, lodgers, 0, Bounds(2))) == ["a"]
    assert names(who_goes(lodgers, lodgers, 0, Bounds(3))) == []


def test_room_is_free_unpaid_or_crowded_by_who_would_have_to_go() -> None:
    bounds = Bounds(8, budget_bytes=10)
    paid, unpaid, busy = lodger("a", 5), lodger("b", 5, paid=False), lodger("c", 5, idle=False)
    new = lodger("d", 5, idle=False, paid=False)
    assert room_for([paid], 5, bounds) is Room.FREE
    assert room_for([paid, new], 5, bounds) is Room.FREE
    assert room_for([unpaid, new], 5, bounds) is Room.UNPAID
    assert room_for([busy, new], 5, bounds) is Room.CROWDED
    assert room_for([busy, unpaid], 10, bounds) is Room.CROWDED
    assert room_for([new], 10, bounds) is None


def test_who_was_told_to_leave_goes_first_then_who_has_paid() -> None:
    lodgers = [lodger("new", paid=False), lodger("old"), lodger("told"), lodger("busy", idle=False)]
    assert names(goers_first(lodgers, ["told"])) == ["told", "old", "new"]


SIZES = st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=6)


@given(SIZES, st.integers(0, 12), st.integers(1, 6), st.none() | st.integers(1, 20))
def test_who_goes_makes_room_and_nobody_goes_in_vain(
    models: list[tuple[int, bool, bool]], more: int, most: int, budget: int | None
) -> None:
    lodgers = [Lodger(f"m{n}", *one) for n, one in enumerate(models)]
    may_go, bounds = [one for one in lodgers if one.is_idle], Bounds(most, budget)
    going = who_goes(lodgers, may_go, more, bounds)
    rest = [one for one in lodgers if one not in may_go]
    assert (going is None) == (not bounds.fit(rest, more))
    if going is not None:
        stay = [one for one in lodgers if one not in going]
        assert bounds.fit(stay, more)
        assert not any(bounds.fit([*stay, one], more) for one in going)
