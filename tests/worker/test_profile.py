"""The profile of a model: real measurements of the shipped ones, small enough for a test."""

from __future__ import annotations

import pytest

from genmill.registry import load_registry
from worker.profile import Row, profile, summary


@pytest.mark.parametrize(("model", "sizes"), [("shapes", [64]), ("captions", [9])])
def test_a_sweep_measures_every_batch_of_every_size(model: str, sizes: list[int]) -> None:
    asked = {"batches": [1, 4], "sizes": sizes, "optimizations": [[]], "device": "cpu", "quick": True}
    report = profile(asked, load_registry().get(model))
    assert [(row["size"], row["batch"]) for row in report["rows"]] == [(sizes[0], 1), (sizes[0], 4)]
    for row in report["rows"]:
        assert row["ms_per_step"] > 0
        assert row["per_s"] > 0
        assert 0 < row["utilisation"] <= 1
        assert row["memory_mb"] > 50
    assert report["refused"] == {}
    assert report["summary"][0]["recommended_batch"] in (1, 4)


def test_a_set_that_the_model_cannot_have_is_told() -> None:
    asked = {"batches": [1], "sizes": [64], "optimizations": [["compiled"]], "device": "cpu", "quick": True}
    spec = load_registry().get("shapes").model_copy(update={"source": "/nowhere"})
    report = profile(asked, spec)
    assert report["rows"] == []
    assert "/nowhere" in report["refused"]["compiled"]


def row(batch: int, ms: float, per_s: float) -> Row:
    return Row("none", 64, batch, ms, per_s, 0.5, 100.0)


def test_the_batch_to_take_is_the_smallest_that_is_about_as_good_as_the_best() -> None:
    (one,) = summary([row(1, 10, 5), row(2, 10.5, 9), row(4, 14, 14), row(8, 20, 19.5), row(16, 41, 20)])
    assert one == {"optimizations": "none", "size": 64, "best_per_s": 20, "knee": 2, "recommended_batch": 8}
