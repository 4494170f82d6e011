"""What may go wrong with a fleet, done to real processes: each case runs jobs through it and tells what broke."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos import crowds, deaths, faults
from tests.chaos.judge import Outcome, judge, judge_webhooks
from tests.chaos.scene import DEFAULTS, Scene
from tests.receiver import receiving


@dataclass(frozen=True, slots=True)
class Case:
    """`settings` are the fleet's, beside the scene's own. `is_kill`: its moment matters, the long run tries many."""

    harm: Callable[[Scene], None]
    is_kill: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


_ALL = (
    Case(deaths.killed_workers, is_kill=True),
    Case(deaths.killed_at_points, is_kill=True, settings={"max_crashes": 10}),  # four deaths, one job in them all
    Case(deaths.chained_jobs, is_kill=True),
    Case(deaths.stopped_worker),
    Case(deaths.killed_redis, is_kill=True),
    Case(deaths.cut_file, is_kill=True, settings={"durability": "everysec"}),
    Case(deaths.two_schedulers, is_kill=True),
    Case(faults.deadly_jobs),
    Case(faults.failing_jobs),
    Case(faults.short_of_memory),
    Case(faults.canceled_jobs),
    Case(faults.storage_away, settings={"limits": DEFAULTS["limits"] | {"tenant:*": 100}}),
    Case(faults.storage_stalls),
    Case(
        faults.receiver_away,
        settings={
            "limits": DEFAULTS["limits"] | {"host:*": 8},  # what ships: one host never has all slots
            "callback_timeout_s": 1.0,
            "callback_delays_s": (0, *[2] * 60),
        },
    ),
    Case(faults.clock_off),
    Case(crowds.busy_fleet, settings={"class_delay_s": crowds.DELAYS_S}),
)
CASES: Mapping[str, Case] = {case.harm.__name__: case for case in _ALL}


@contextmanager
def _scene(case: Case, seed: int, jobs: int, folder: Path) -> Iterator[Scene]:
    with receiving() as receiver:
        scene = Scene(folder, seed, jobs, receiver, case.settings)
        try:
            yield scene
        finally:
            scene.close()


def run_case(name: str, seed: int, jobs: int, folder: Path) -> Outcome:
    """One case with one seed, from an empty server to the last promise looked at."""
    outcome, began = Outcome(name, seed), time.monotonic()
    with _scene(CASES[name], seed, jobs, folder) as scene:
        try:
            CASES[name].harm(scene)
            scene.wait_until_done()
            scene.wait_until_told()
        except AssertionError as err:
            outcome.broken.append(str(err)[:300])
        judge(scene, outcome)
    judge_webhooks(scene, outcome)
    outcome.wall_s = round(time.monotonic() - began, 1)
    return outcome
