"""Places of those who wait: so many in all, a quarter for one tenant."""

from __future__ import annotations

import pytest

from api import waiting
from api.seats import Seats
from genmill.errors import TooManyWaiting


def test_one_tenant_leaves_places_to_the_others() -> None:
    seats = Seats(8)
    assert [seats.take("alice") for _ in range(3)] == [None, None, "tenant"]
    assert [seats.take(name) for name in ("bob", "bob", "cleo", "cleo", "dora", "dora")] == [None] * 6
    assert seats.take("eve") == "all"
    seats.give_back("alice")
    assert seats.take("alice") is None


def test_a_tenant_hears_that_it_is_its_own_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_seats", Seats(8))
    with (
        waiting.seat("alice"),
        waiting.seat("alice"),
        pytest.raises(TooManyWaiting, match="2 answers are held for this tenant"),
        waiting.seat("alice"),
    ):
        pass
