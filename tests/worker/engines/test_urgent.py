"""Urgent jobs: who rests for them, who rides along, and that nobody's picture changes for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from genmill.inputs import SchedulerName
from tests.worker.engines import tiny
from tests.worker.engines.runs import end_of, image_job, recorded_step, worst_difference
from worker.engines.base import EngineJob, Event, Failed, Finished
from worker.engines.crew import Crew
from worker.engines.curve import ServiceCurve
from worker.engines.diffusion import DiffusionEngine
from worker.engines.rendezvous import STEP_PATIENCE

SAMPLERS = tuple(SchedulerName)


def bulk(count: int, **asked: Any) -> list[EngineJob]:
    jobs = []
    for n in range(count):
        own = {"seed": n, "scheduler": SAMPLERS[n % len(SAMPLERS)], "steps": 6 + n % 4}
        jobs.append(dataclasses.replace(image_job(f"bulk{n}", **{**own, **asked}), job_class="p3", vd_ms=1000.0 + n))
    return jobs


def urgent(number: int = 0, **asked: Any) -> EngineJob:
    return dataclasses.replace(image_job(f"urgent{number}", seed=100 + number, steps=5, **asked), job_class="p0")


def on_board(engine: DiffusionEngine) -> dict[str, bool]:
    """Who is there, and whether it rests."""
    return {job_id: berth.is_resting for job_id, berth in engine._berths.items()}


def step(engine: DiffusionEngine, events: dict[str, list[Event]]) -> None:
    for event in recorded_step(engine):
        events.setdefault(event.job_id, []).append(event)


def run_out(engine: DiffusionEngine, events: dict[str, list[Event]]) -> None:
    while not engine.is_idle():
        step(engine, events)


@pytest.mark.parametrize("build", [tiny.stable_diffusion, tiny.stable_diffusion_xl, tiny.stable_diffusion_3])
@pytest.mark.parametrize("threads", [1, 2])
def test_who_rests_goes_on_as_if_nothing_had_been(build: Any, threads: int) -> None:
    pipe, jobs = build(), bulk(4, scheduler=SchedulerName.DEFAULT)
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=4), pipe, Crew(threads))
    events: dict[str, list[Event]] = {}
    engine.admit(jobs)
    for _ in range(3):
        step(engine, events)
    assert (engine.free_slots(), engine.urgent_slots()) == (0, 4)
    first, second = urgent(0), urgent(1, width=48)
    engine.admit([first])
    assert on_board(engine) == {"bulk0": False, "bulk1": False, "bulk2": False, "bulk3": True, "urgent0": False}
    step(engine, events)
    engine.admit([second])
    assert on_board(engine)["bulk2"]
    run_out(engine, events)
    engine.close()
    assert worst_difference(pipe, [*jobs, first, second], events) < 1e-4


def test_nobody_rests_twice_and_only_the_yielding_rest() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=2), tiny.stable_diffusion())
    events: dict[str, list[Event]] = {}
    normal = dataclasses.replace(image_job("normal", steps=30), job_class="p1")
    engine.admit([normal, *bulk(1, steps=30)])
    assert engine.urgent_slots() == 1
    engine.admit([urgent(0)])
    assert on_board(engine) == {"normal": False, "bulk0": True, "urgent0": False}
    assert (engine.free_slots(), engine.urgent_slots()) == (0, 0)
    while "urgent0" in on_board(engine):
        step(engine, events)
    step(engine, events)
    assert on_board(engine) == {"normal": False, "bulk0": False}
    assert engine.urgent_slots() == 0
    engine.close()


def test_slots_that_get_free_belong_to_those_who_rest() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=2), tiny.stable_diffusion())
    events: dict[str, list[Event]] = {}
    engine.admit(bulk(2, steps=30))
    engine.admit([urgent(0)])
    while "urgent0" in on_board(engine):
        assert engine.free_slots() == 0
        step(engine, events)
    assert engine.free_slots() == 0
    engine.close()


def test_a_job_of_more_images_than_slots_rests_and_goes_on_too() -> None:
    pipe = tiny.stable_diffusion()
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=2), pipe, Crew(1))
    events: dict[str, list[Event]] = {}
    large = bulk(1, num_images=4, steps=5)
    engine.admit(large)
    step(engine, events)
    engine.admit([urgent(0)])
    assert on_board(engine)["bulk0"]
    run_out(engine, events)
    engine.close()
    assert worst_difference(pipe, [*large, urgent(0)], events) < 1e-4


def test_nobody_rests_for_a_job_that_cannot_begin() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=1), tiny.stable_diffusion_3(), Crew(1))
    events: dict[str, list[Event]] = {}
    engine.admit(bulk(1, scheduler=SchedulerName.DEFAULT))
    step(engine, events)
    engine.admit([urgent(0, scheduler=SchedulerName.DDIM)])
    assert on_board(engine) == {"bulk0": False}
    step(engine, events)
    assert isinstance(end_of(events["urgent0"]), Failed)
    assert engine.urgent_slots() == 1
    engine.close()


def test_an_urgent_picture_is_decoded_while_other_urgent_jobs_take_steps() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(), tiny.stable_diffusion(), Crew(1))
    events: dict[str, list[Event]] = {}
    long = dataclasses.replace(image_job("long", steps=45), job_class="p0")
    engine.admit([urgent(0), long])
    turns = 0
    while "urgent0" in on_board(engine):
        step(engine, events)
        turns += 1
    assert turns <= 7
    assert "long" in on_board(engine)
    engine.close()


def test_a_resting_job_can_be_evicted() -> None:
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=1), tiny.stable_diffusion())
    events: dict[str, list[Event]] = {}
    engine.admit(bulk(1, steps=9))
    step(engine, events)
    step(engine, events)
    engine.admit([urgent(0)])
    left = engine.evict("bulk0")
    assert left is not None
    assert left.step == 2
    run_out(engine, events)
    assert isinstance(end_of(events["urgent0"]), Finished)
    engine.close()


def test_while_an_urgent_job_steps_a_forward_takes_only_the_company_that_it_bears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe, jobs = tiny.stable_diffusion(), bulk(15, steps=40, scheduler=SchedulerName.DDIM)
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=16), pipe, Crew(1))
    rows: list[int] = []
    hook = pipe.unet.register_forward_pre_hook(lambda _, __, kw: rows.append(len(kw["sample"])), with_kwargs=True)
    events: dict[str, list[Event]] = {}
    engine.admit(jobs)
    step(engine, events)
    rows.clear()
    engine.admit([urgent(0)])
    monkeypatch.setattr(ServiceCurve, "saw", lambda *_: None)  # what this machine takes is not the point
    curve_of(engine).means.clear()
    step(engine, events)
    assert rows == [2], "how long a forward takes is not known yet: alone"
    curve_of(engine).means.update({2: 12.0, 32: 42.0})
    rows.clear()
    step(engine, events)
    assert rows == [4], "12 ms alone, so 15 ms with company: 5 rows, and others bring two each"
    hook.remove()
    run_out(engine, events)
    engine.close()


def curve_of(engine: DiffusionEngine) -> ServiceCurve:
    (call,) = [task.call for task in engine.hub.tasks if task.call is not None][:1]
    assert call is not None
    return call.site.curve(call.shape)


@pytest.mark.parametrize("width", [32, 48])
def test_others_are_not_starved_by_urgent_jobs_that_never_end(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(ServiceCurve, "saw", lambda *_: None)  # never known, so that nobody may ride along
    pipe, jobs = tiny.stable_diffusion(), bulk(3, steps=8, width=width)
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=8), pipe, Crew(1))
    events: dict[str, list[Event]] = {}
    engine.admit(jobs)
    turns, sent = 0, 0

    def endless(number: int) -> EngineJob:
        return dataclasses.replace(image_job(f"urgent{number}", seed=number, steps=45), job_class="p0")

    while any(job.job_id in on_board(engine) for job in jobs):
        if f"urgent{sent - 1}" not in on_board(engine):
            engine.admit([endless(sent)])
            sent += 1
        step(engine, events)
        turns += 1
        assert turns < 12 * STEP_PATIENCE
    run_out(engine, events)
    engine.close()
    assert turns > 4 * STEP_PATIENCE, "urgent jobs go first"
    assert worst_difference(pipe, [*jobs, *map(endless, range(sent))], events) < 1e-4


def test_jobs_that_do_not_yield_share_the_forwards_of_urgent_ones() -> None:
    pipe = tiny.stable_diffusion()
    engine = DiffusionEngine.from_pipeline(tiny.spec(max_batch=16), pipe, Crew(1))
    rows: list[int] = []
    hook = pipe.unet.register_forward_pre_hook(lambda _, __, kw: rows.append(len(kw["sample"])), with_kwargs=True)
    normal = [dataclasses.replace(image_job(f"normal{n}", steps=9, seed=n), job_class="p1") for n in range(5)]
    engine.admit([*normal, urgent(0), *bulk(6, steps=9, scheduler=SchedulerName.DEFAULT)])
    step(engine, {})
    hook.remove()
    engine.close()
    assert rows == [12], "five normal ones and the urgent one, two rows each; what bulk would cost is not known"
