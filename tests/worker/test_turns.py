"""Who steps when several models have work."""

from __future__ import annotations

from dataclasses import dataclass

from worker.turns import RIDE_ALONG_SHARE, whose_turn

NOW_MS = 0.5


@dataclass
class Fake:
    """A station as the choice sees it."""

    batch_key: str
    step_s: float = 0.1
    spent_s: float = 0.0
    has_batch: bool = True
    has_inputs: bool = False

    def is_idle(self) -> bool:
        return not (self.has_batch or self.has_inputs)

    def is_stepping(self) -> bool:
        return self.has_batch


def test_the_earliest_deadline_steps_and_an_equally_heavy_one_waits() -> None:
    images, videos = Fake("images"), Fake("videos")

    assert whose_turn([videos, images], {"images": 1.0, "videos": 2.0}, NOW_MS) == [images]


def test_steps_that_cost_next_to_nothing_ride_along() -> None:
    images, texts = Fake("images", 0.150), Fake("texts", 0.004)

    assert whose_turn([texts, images], {"images": 1.0, "texts": 2.0}, NOW_MS) == [images, texts]


def test_a_heavy_station_does_not_ride_on_a_light_one() -> None:
    images, texts = Fake("images", 0.150), Fake("texts", 0.004)

    assert whose_turn([images, texts], {"images": 2.0, "texts": 1.0}, NOW_MS) == [texts]


def test_all_riders_together_stay_within_the_share() -> None:
    images = Fake("images", 1.0)
    riders = [Fake(f"texts-{number}", 0.4 * RIDE_ALONG_SHARE) for number in range(5)]
    heads = {"images": 0.6} | {rider.batch_key: 1.0 + number for number, rider in enumerate(riders)}

    assert whose_turn([images, *riders], heads, NOW_MS) == [images, *riders[:2]]


def test_a_station_of_unknown_cost_is_tried_once() -> None:
    images, new = Fake("images", 0.15), Fake("new", 0.0)

    assert whose_turn([images, new], {"images": 1.0, "new": 2.0}, NOW_MS) == [images, new]


def test_who_only_waits_for_inputs_keeps_nobody_from_stepping() -> None:
    loading, images = Fake("loading", has_batch=False, has_inputs=True), Fake("images")

    assert whose_turn([loading, images], {"loading": 1.0, "images": 2.0}, NOW_MS) == [images, loading]
    assert whose_turn([loading], {"loading": 1.0}, NOW_MS) == [loading]


def test_idle_stations_do_not_step() -> None:
    assert whose_turn([Fake("idle", has_batch=False)], {}, NOW_MS) == []


def test_overdue_stations_share_the_time_instead_of_the_oldest_backlog_taking_all() -> None:
    old, new = Fake("old"), Fake("new")
    for _ in range(10):
        (first,) = whose_turn([old, new], {"old": 0.1, "new": 0.4}, NOW_MS)
        first.spent_s += first.step_s
    assert abs(old.spent_s - new.spent_s) < 0.11


def test_an_overdue_station_goes_before_one_that_is_in_time() -> None:
    late, early = Fake("late", spent_s=100.0), Fake("early")

    assert whose_turn([early, late], {"late": 0.4, "early": 0.6}, NOW_MS) == [late]
