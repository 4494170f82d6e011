"""Each case once with few jobs; `make chaos` runs them with many and with many seeds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chaos.cases import CASES, run_case

TIMED = {"receiver_away", "busy_fleet"}
"""Cases that promise how long something takes."""
PAGE = Path(__file__).parent.parent.parent / "docs" / "queue.md"


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.alone] if case in TIMED else []) for case in CASES]
)
def test_nothing_is_lost_and_nothing_done_twice(case: str, tmp_path: Path) -> None:
    outcome = run_case(case, seed=1, jobs=64, folder=tmp_path)

    assert (outcome.lost, outcome.double_commits, outcome.broken) == (0, 0, [])


def test_the_docs_list_every_case() -> None:
    (faults,) = re.findall(r"^## Faults$(.*?)^<!--", PAGE.read_text(), re.MULTILINE | re.DOTALL)

    assert re.findall(r"^\| `(\w+)` \|", faults, re.MULTILINE) == list(CASES)
