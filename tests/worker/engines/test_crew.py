"""A crew of several threads: the same results, errors and modes as one, and each batch still one forward."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.worker.engines.meeting import Meeting, value
from worker.engines.batches import Part
from worker.engines.crew import CUT_FROM_MS, Crew


class CountingCrew(Crew):
    """Notes how many parts it was given at once."""

    def __init__(self, size: int, cut_from_ms: float = 0.0) -> None:
        super().__init__(size, cut_from_ms)
        self.given: list[int] = []

    def compute(self, parts: Sequence[Part]) -> list[Exception | None]:
        self.given.append(len(parts))
        return super().compute(parts)


@pytest.fixture
def crew() -> Iterator[Crew]:
    """Of three, while torch grants other threads two: numbers that cannot be mistaken for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    crew = Crew(3)
    yield crew
    crew.close()
    torch.set_num_threads(before)


def test_a_batch_is_cut_over_its_rows_and_counts_as_one_forward(crew: Crew) -> None:
    meeting = Meeting(crew=crew)
    tasks = [meeting.doublings(1.0 + index, times=2) for index in range(7)]
    meeting.run()

    assert [value(task) for task in tasks] == [4.0 * (1 + index) for index in range(7)]
    assert sorted(meeting.module.sizes) == [2, 2, 2, 2, 3, 3]
    assert {(len(task.meter.steps), share.images) for task in tasks for share in task.meter.steps} == {(2, 7)}


def test_groups_of_one_turn_are_computed_together() -> None:
    crew = CountingCrew(3)
    meeting = Meeting(crew=crew)
    for width in (3, 3, 3, 5):
        meeting.hub.start(lambda width=width: meeting.call(torch.ones(1, width)))
    meeting.run()
    crew.close()

    assert crew.given == [4]


def test_a_batch_that_is_soon_done_stays_whole() -> None:
    crew = CountingCrew(3, cut_from_ms=10.0)
    meeting = Meeting(crew=crew)
    meeting.site.curve((3,)).means.update({1: 2.0, 4: 8.0, 6: 12.0})
    results = []
    for count in (4, 6):
        for number in range(count):
            meeting.hub.start(lambda number=number: results.append(meeting.call(torch.full((1, 3), float(number)))))
        meeting.run()
    for width in (3, 3, 5):  # two groups are computed at once, each by a thread of the crew
        meeting.hub.start(lambda width=width: meeting.call(torch.ones(1, width)))
    meeting.run()
    crew.close()

    assert crew.given == [1, 3, 3]
    assert [result[0, 0].item() for result in results] == [2.0 * n for n in (0, 1, 2, 3, 0, 1, 2, 3, 4, 5)]


def test_on_a_cpu_small_forwards_stay_whole_and_elsewhere_nothing_is_cut() -> None:
    on_cpu, elsewhere = Crew.of(torch.device("cpu")), Crew.of(torch.device("meta"))
    assert (on_cpu.size, on_cpu.cut_from_ms) == (torch.get_num_threads(), CUT_FROM_MS)
    assert elsewhere.size == 1
    on_cpu.close()


def test_a_single_call_is_the_callers_own_work(crew: Crew) -> None:
    seen: list[tuple[bool, int]] = []
    meeting = Meeting(crew=crew)
    meeting.module.fault = lambda _: seen.append((threading.get_ident() == caller, torch.get_num_threads()))
    caller = threading.get_ident()
    meeting.doublings(1.0, times=1)
    meeting.run()
    for _ in range(3):
        meeting.doublings(1.0, times=1)
    meeting.run()

    assert seen == [(True, 2), (False, 1), (False, 1), (False, 1)]


def test_threads_outside_the_crew_keep_what_torch_grants_them(crew: Crew) -> None:
    meeting = Meeting(crew=crew)
    for _ in range(3):
        meeting.doublings(1.0, times=1)
    meeting.run()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 2
    assert torch.get_num_threads() == 2


def test_an_error_fails_the_culprit_alone(crew: Crew) -> None:
    meeting = Meeting(crew=crew)
    meeting.module.fault = lambda sample: ValueError("13 is bad") if bool((sample == 26).any()) else None
    tasks = [meeting.doublings(float(index), times=3) for index in range(10, 26)]
    meeting.run()

    assert [task for task in tasks if task.error is not None] == [tasks[3]]
    assert [value(task) for task in tasks if task is not tasks[3]] == [8.0 * i for i in range(10, 26) if i != 13]


def test_out_of_memory_halves_the_whole_batch(crew: Crew) -> None:
    meeting = Meeting(cap=24, crew=crew)
    meeting.module.fault = lambda sample: torch.OutOfMemoryError("no room") if len(sample) > 5 else None
    tasks = [meeting.doublings(1.0, times=3) for _ in range(24)]
    meeting.run()

    assert [value(task) for task in tasks] == [8.0] * 24
    assert meeting.caps.of((3,)) == 12


def test_who_runs_out_of_memory_beside_others_is_tried_alone_before_it_fails(crew: Crew) -> None:
    meeting = Meeting(crew=crew)
    tried: list[float] = []

    def no_room_at_first(sample: torch.Tensor) -> Exception | None:
        tried.append(float(sample[0, 0]))
        return torch.OutOfMemoryError("no room") if tried.count(tried[-1]) == 1 else None

    meeting.module.fault = no_room_at_first
    tasks = [meeting.doublings(float(number), times=1) for number in range(3)]
    meeting.run()

    assert [value(task) for task in tasks] == [0.0, 2.0, 4.0]


def test_a_forward_runs_in_the_modes_of_its_tasks(crew: Crew) -> None:
    meeting = Meeting(crew=crew)

    def under_autocast() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            meeting.call(torch.ones(1, 3))

    for _ in range(3):
        meeting.hub.start(under_autocast)
    meeting.run()
    for _ in range(3):
        meeting.doublings(1.0, times=1)
    meeting.run()

    assert [has_autocast for _, has_autocast in meeting.module.states] == [True] * 3 + [False] * 3


def test_a_lost_device_ends_the_step_and_fails_no_job(crew: Crew) -> None:
    meeting = Meeting(crew=crew)
    meeting.module.fault = lambda _: torch.AcceleratorError("device-side assert")
    tasks = [meeting.doublings(1.0, times=1) for _ in range(3)]

    with pytest.raises(torch.AcceleratorError):
        meeting.hub.turn()
    assert [task.error for task in tasks] == [None] * 3


def test_a_call_is_charged_its_share_of_what_its_thread_took(crew: Crew) -> None:
    meeting = Meeting(crew=crew)
    tasks = [meeting.doublings(1.0, times=1) for _ in range(6)]
    meeting.run()

    shares = [share for task in tasks for share in task.meter.shares]
    assert len({id(share.watch) for share in shares}) == 3
    assert [share.part for share in shares] == [pytest.approx(1 / 3 / 2)] * 6
