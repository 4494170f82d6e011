"""The service curve: learnt from what it sees, silent until it can know."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engines.curve import ServiceCurve


def learnt(per_row: float, fixed: float, least: float, noise: float = 0.0) -> ServiceCurve:
    curve, dice = ServiceCurve(), random.Random(1)
    for _ in range(300):
        rows = dice.choice((2, 4, 8, 16, 32))
        curve.saw(rows, max(least, per_row * rows + fixed) * (1 + noise * dice.uniform(-1, 1)))
    return curve


@given(per_row=st.floats(0.1, 10), fixed=st.floats(0, 100))
def test_between_and_beyond_what_was_seen_it_goes_straight(per_row: float, fixed: float) -> None:
    curve = learnt(per_row, fixed, 0.0)
    assert curve.expected_ms(10) == pytest.approx(10 * per_row + fixed)
    assert curve.expected_ms(40) == pytest.approx(40 * per_row + fixed)
    assert curve.most_rows(10 * per_row + fixed + 1e-6, 64) == 10
    assert curve.most_rows(50 * per_row + fixed + 1e-6, 64) == 50
    assert curve.most_rows(50 * per_row + fixed + 1e-6, 40) == 40


def test_noise_does_not_lead_it_astray() -> None:
    assert learnt(2.0, 20.0, 0.0, noise=0.2).expected_ms(16) == pytest.approx(52, rel=0.15)


def test_below_the_knee_a_row_more_costs_nothing() -> None:
    curve = learnt(2.0, -4.0, 20.0)
    assert curve.knee == 10
    assert curve.expected_ms(1) == pytest.approx(20)


def test_it_is_silent_until_it_has_seen_two_sizes() -> None:
    curve = ServiceCurve()
    for _ in range(500):
        curve.saw(16, 30.0)
    assert (curve.expected_ms(8), curve.most_rows(100, 64), curve.knee) == (None, None, None)
    assert curve.expected_ms(16) == 30.0, "but of a size that it has seen"
    curve.saw(2, 16.0)
    assert (curve.expected_ms(1), curve.expected_ms(9), curve.expected_ms(16)) == (16, 23, 30)
    assert (curve.most_rows(1, 64), curve.most_rows(20, 64), curve.most_rows(1000, 64)) == (0, 6, 64)


def test_it_follows_a_machine_that_becomes_slower() -> None:
    curve = learnt(1.0, 10.0, 0.0)
    dice = random.Random(2)
    for _ in range(200):
        rows = dice.choice((2, 8, 32))
        curve.saw(rows, 2 * (rows + 10.0))
    assert curve.expected_ms(32) == pytest.approx(84, rel=0.02)
