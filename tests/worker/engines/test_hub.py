"""The hub alone, with a module of one weight: who shares forwards, what fails whom, what leaks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.worker.engines.meeting import Doubler, Meeting, value
from worker.engines.batches import Phase, Site
from worker.engines.caps import RowCaps
from worker.engines.rows import RowPlan


def picture(meeting: Meeting, coda: Site, steps: int) -> Tensor:
    """A pipeline call: so many steps, then the decoder."""
    sample = torch.ones(1, 3)
    for _ in range(steps):
        sample = meeting.call(sample)
    result: Tensor = meeting.hub.meet(coda, (sample, 0.0), {})
    return result


def test_calls_share_a_forward_and_tasks_leave_when_they_are_done() -> None:
    meeting = Meeting()
    tasks = [meeting.doublings(1.0 + index, times=1 + index) for index in range(3)]
    meeting.run()
    assert [value(task) for task in tasks] == [2.0, 8.0, 24.0]
    assert meeting.module.sizes == [3, 2, 1]


def test_a_call_outside_a_task_is_the_module_itself() -> None:
    meeting = Meeting()
    assert meeting.call(torch.ones(1, 3)).tolist() == [[2.0, 2.0, 2.0]]


def test_an_error_fails_the_culprit_alone_and_the_rest_go_on_from_the_same_step() -> None:
    meeting = Meeting()
    meeting.module.fault = lambda sample: ValueError("13 is bad") if bool((sample == 26).any()) else None
    tasks = [meeting.doublings(float(index), times=3) for index in range(10, 26)]
    meeting.run()
    (bad,) = [task for task in tasks if task.error is not None]
    assert bad is tasks[3]
    assert isinstance(bad.error, ValueError)
    assert [value(task) for task in tasks if task is not bad] == [8.0 * i for i in range(10, 26) if i != 13]


def test_out_of_memory_halves_the_forward_and_teaches_its_cap() -> None:
    meeting = Meeting(cap=16)
    meeting.module.fault = lambda sample: torch.OutOfMemoryError("no room") if len(sample) > 5 else None
    tasks = [meeting.doublings(1.0, times=3) for _ in range(16)]
    meeting.run()
    assert [value(task) for task in tasks] == [8.0] * 16
    assert meeting.caps.of((3,)) == 4
    assert list(meeting.caps.learnt) == [(3,)]


def test_a_job_that_alone_runs_out_of_memory_fails() -> None:
    meeting = Meeting()
    meeting.module.fault = lambda _: torch.OutOfMemoryError("no room")
    task = meeting.doublings(1.0, times=1)
    meeting.run()
    assert isinstance(task.error, torch.OutOfMemoryError)


def test_a_learnt_cap_rises_after_clean_full_batches() -> None:
    caps = RowCaps(8)
    caps.ran_out("shape", 8)
    for _ in range(19):
        caps.ran_clean("shape", 4)
    caps.ran_clean("shape", 2)
    assert caps.of("shape") == 4
    caps.ran_clean("shape", 4)
    assert caps.of("shape") == 5
    assert caps.of("another") == 8


def test_an_odd_cap_rises_although_calls_of_two_rows_never_fill_it() -> None:
    caps = RowCaps(8)
    caps.ran_out("shape", 6)
    for _ in range(20):
        caps.ran_clean("shape", 2, of_call=2)
    assert caps.of("shape") == 4


def test_who_does_not_fit_goes_first_in_the_next_turn() -> None:
    meeting = Meeting(cap=2)
    seen: list[list[int]] = [[] for _ in range(5)]
    tasks = [meeting.doublings(1.0, times=4, seen=seen[index]) for index in range(5)]
    while meeting.hub.tasks:
        meeting.hub.turn()
        steps = [len(one) for one, task in zip(seen, tasks, strict=True) if not task.is_over]
        assert max(steps, default=0) - min(steps, default=0) <= 1
    assert max(meeting.module.sizes) == 2


def test_eviction_runs_the_cleanup_of_the_call_and_reports_nothing() -> None:
    meeting = Meeting()
    cleaned: list[str] = []

    def work() -> None:
        try:
            meeting.call(torch.ones(1, 3))
            meeting.call(torch.ones(1, 3))
        finally:
            cleaned.append("yes")

    task, other = meeting.hub.start(work), meeting.doublings(1.0, times=3)
    unborn = meeting.hub.start(work)
    meeting.hub.evict(unborn)
    meeting.hub.turn()
    meeting.hub.evict(task)
    meeting.run()
    assert cleaned == ["yes"]
    assert (task.result, task.error) == (None, None)
    assert value(other) == 8.0


def test_a_call_that_swallows_its_eviction_is_ended_at_its_next_call() -> None:
    meeting = Meeting()

    def stubborn() -> None:
        for _ in range(3):
            try:
                meeting.call(torch.ones(1, 3))
            except BaseException:  # noqa: BLE001, S112  # as careless code does
                continue

    task = meeting.hub.start(stubborn)
    meeting.hub.turn()
    meeting.hub.evict(task)
    assert task.is_over


def test_calls_of_other_shapes_and_arguments_run_in_forwards_of_their_own() -> None:
    meeting = Meeting()
    for width in (3, 3, 4):
        meeting.hub.start(lambda width=width: meeting.call(torch.ones(1, width)))
    meeting.hub.turn()
    assert sorted(meeting.module.sizes) == [1, 2]


def test_modes_do_not_leak_between_tasks_nor_out_of_the_hub() -> None:
    meeting = Meeting()
    seen: dict[str, list[tuple[bool, bool]]] = {"grad": [], "autocast": [], "plain": []}

    def state() -> tuple[bool, bool]:
        return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    def work(name: str, mode: Any) -> None:
        for _ in range(2):
            with mode():
                for _ in range(2):
                    seen[name].append(state())
                    meeting.call(torch.ones(1, 3))
                    seen[name].append(state())

    meeting.hub.start(lambda: work("grad", torch.enable_grad))
    meeting.hub.start(lambda: work("autocast", lambda: torch.autocast("cpu", torch.bfloat16)))
    meeting.hub.start(lambda: work("plain", torch.no_grad))
    evicted = meeting.hub.start(lambda: work("grad", torch.enable_grad))
    for turn in range(20):
        if turn == 1:
            meeting.hub.evict(evicted)
        meeting.hub.turn()
        assert state() == (True, False)
        assert not torch.is_inference_mode_enabled()
    assert set(seen["grad"]) == {(True, False)}
    assert set(seen["autocast"]) == {(False, True)}
    assert set(seen["plain"]) == {(False, False)}
    assert (False, True) in meeting.module.states  # the forward itself ran under its callers' autocast


def test_a_lost_device_ends_the_step_and_fails_no_job() -> None:
    meeting = Meeting()
    meeting.module.fault = lambda _: torch.AcceleratorError("device-side assert")
    task = meeting.doublings(1.0, times=1)
    with pytest.raises(torch.AcceleratorError):
        meeting.hub.turn()
    assert task.error is None


def test_codas_wait_for_company_but_not_for_ever() -> None:
    meeting = Meeting(coda_patience=2)
    plan = RowPlan(("sample", "timestep"), ("sample", "timestep"))
    decoder = Doubler()
    coda = Site(decoder, "__call__", Phase.CODA, plan, RowCaps(8), torch.device("cpu"))

    for steps in (1, 2, 9):
        meeting.hub.start(lambda steps=steps: picture(meeting, coda, steps))
    meeting.run()
    assert decoder.sizes == [2, 1]


def test_an_urgent_picture_is_decoded_alone_in_the_turn_of_its_last_step() -> None:
    meeting = Meeting(coda_patience=9)
    plan = RowPlan(("sample", "timestep"), ("sample", "timestep"))
    decoder = Doubler()
    coda = Site(decoder, "__call__", Phase.CODA, plan, RowCaps(8), torch.device("cpu"))

    done = [meeting.hub.start(lambda: picture(meeting, coda, 0), is_yielding=True) for _ in range(2)]
    bulk = meeting.hub.start(lambda: picture(meeting, coda, 30), is_yielding=True)
    urgent = meeting.hub.start(lambda: picture(meeting, coda, 3), is_urgent=True)
    for _ in range(2):
        assert meeting.hub.turn() == []
    assert meeting.hub.turn() == [urgent]
    assert (decoder.sizes, list(meeting.hub.tasks)) == ([1], [*done, bulk])


def test_all_that_is_due_is_decoded_in_one_turn_however_little_fits_in_a_forward() -> None:
    meeting = Meeting()
    decoder = Doubler()
    plan = RowPlan(("sample", "timestep"), ("sample", "timestep"))
    coda = Site(decoder, "__call__", Phase.CODA, plan, RowCaps(4), torch.device("cpu"))
    long = meeting.doublings(1.0, times=9)
    for _ in range(11):
        meeting.hub.start(lambda: meeting.hub.meet(coda, (torch.ones(1, 3), 0.0), {}))
    meeting.hub.turn()

    assert decoder.sizes == [4, 4, 3]
    assert list(meeting.hub.tasks) == [long]
