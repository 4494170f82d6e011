"""Other families at the rendezvous, from SD 2.x to videos: each held against itself alone, whoever comes and goes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from genmill.errors import ModelUnavailable
from genmill.inputs import SchedulerName
from genmill.keys import JobClass
from tests.worker.engines import tiny, tiny_more, tiny_video
from tests.worker.engines.runs import end_of, finish, image_job, together, worst_difference
from worker.engines.base import EngineJob, Failed, Finished, Left, Video
from worker.engines.crew import Crew
from worker.engines.diffusion import DiffusionEngine
from worker.engines.sites import can_park

TOLERANCE = 1e-4
NOISE = tuple(SchedulerName)
FLOW = (SchedulerName.DEFAULT, SchedulerName.EULER, SchedulerName.HEUN, SchedulerName.DPM, SchedulerName.UNIPC)
DYNAMIC = (SchedulerName.DEFAULT, SchedulerName.EULER)
EXACT = {"use_resolution_binning": False}


@dataclass(frozen=True)
class Family:
    """How a family is asked: schedulers that it bears, arguments of the model's entry, what jobs differ in."""

    build: Any
    schedulers: tuple[SchedulerName, ...]
    steps: tuple[int, ...] = (3, 5, 8)
    guidance: tuple[float, ...] = (1.0, 3.0, 7.5)
    frames: tuple[int, ...] = (1,)
    wide: int = 48
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def job(self, index: int, **changes: Any) -> EngineJob:
        frames = self.frames[index % len(self.frames)]
        asked = {
            "prompt": "a red circle " * (index % 3 + 1),
            "negative_prompt": "dark" if index % 2 else "",
            "width": self.wide if index % 4 == 3 else 32,
            "steps": self.steps[index % len(self.steps)],
            "guidance": self.guidance[index // 2 % len(self.guidance)],
            "scheduler": self.schedulers[index % len(self.schedulers)],
            "seed": index,
            "num_images": 2 if index % 5 == 0 else 1,
            **({"num_frames": frames, "fps": 24} if frames > 1 else {}),
        }
        return image_job(f"job{index}", **{**asked, **changes})

    def engine(self, pipe: Any, crew: Crew | None = None, max_batch: int = 16) -> DiffusionEngine:
        spec = tiny.spec(max_batch).model_copy(update={"arguments": self.arguments})
        return DiffusionEngine.from_pipeline(spec, pipe, crew)


FAMILIES = {
    "sd2": Family(tiny_more.stable_diffusion_2, NOISE),
    "turbo": Family(tiny_more.sdxl_turbo, NOISE, steps=(1, 2, 3, 4), guidance=(0.0, 1.0)),
    "pixart": Family(tiny_more.pixart_sigma, NOISE, arguments=EXACT),
    "sana": Family(tiny_more.sana, FLOW, arguments={**EXACT, "max_sequence_length": 24}, wide=64),
    "ltx": Family(tiny_video.ltx, DYNAMIC, frames=(9, 9, 17), wide=64),
    "wan": Family(tiny_video.wan, FLOW, frames=(5, 5, 9, 1)),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_mixed_batch_gives_each_what_it_has_alone(family: Family, threads: int) -> None:
    pipe, jobs = family.build(), [family.job(index) for index in range(12)]
    assert can_park(pipe)
    engine = family.engine(pipe, Crew(threads))
    events = together(engine, jobs)
    engine.close()
    assert worst_difference(pipe, jobs, events, **family.arguments) < TOLERANCE
    ends = [end_of(events[job.job_id]) for job in jobs]
    assert max(end.receipt.batch_max for end in ends if isinstance(end, Finished)) >= 3


def test_some_join_in_mid_run_one_is_canceled_and_bulk_rests(family: Family) -> None:
    pipe = family.build()
    engine = family.engine(pipe, max_batch=3)
    bulk = [
        replace(family.job(index, num_images=1, steps=6), job_class=JobClass.P3, vd_ms=float(index))
        for index in range(3)
    ]
    late, urgent = family.job(7, num_images=1), replace(family.job(8, num_images=1), job_class=JobClass.P0)
    left: list[Left | None] = []
    rested: list[str] = []

    def play(turn: int) -> None:
        match turn:
            case 2:
                assert engine.free_slots() == 0
                engine.admit([urgent])
                rested.extend(berth.job.job_id for berth in engine._berths.values() if berth.is_resting)
            case 4:
                left.append(engine.evict("job1"))
            case 5:
                engine.admit([late])

    engine.admit(bulk)
    events = finish(engine, play)
    assert rested == ["job2"]
    assert left[0] is not None
    assert left[0].gpu_ms > 0
    staying = [job for job in (*bulk, late, urgent) if job.job_id != "job1"]
    assert worst_difference(pipe, staying, events, **family.arguments) < TOLERANCE


@pytest.mark.parametrize("name", ["ltx", "wan"])
def test_a_video_has_its_frames_and_its_speed(name: str) -> None:
    family = FAMILIES[name]
    end = end_of(together(family.engine(family.build()), [family.job(0, num_images=2)])["job0"])
    assert isinstance(end, Finished)
    for video in end.images:
        assert isinstance(video, Video)
        assert (len(video.frames), video.fps) == (family.frames[0], 24)
        assert {frame.size for frame in video.frames} == {(32, 32)}


def test_a_single_frame_of_a_video_model_is_a_picture() -> None:
    family = FAMILIES["wan"]
    end = end_of(together(family.engine(family.build()), [family.job(3)])["job3"])
    assert isinstance(end, Finished)
    assert end.images[0].size == (48, 32)


def test_the_second_transformer_of_a_video_model_takes_its_share_of_the_steps() -> None:
    pipe = tiny_video.wan_with_two()
    alike = {"scheduler": SchedulerName.DEFAULT, "width": 32, "num_frames": 5, "guidance": 1.0}
    jobs = [FAMILIES["wan"].job(index, steps=4 + index, **alike) for index in range(4)]
    sizes: list[int] = []
    pipe.transformer_2.register_forward_hook(lambda *call: sizes.append(len(call[-1][0])))
    events = together(FAMILIES["wan"].engine(pipe), jobs)
    assert max(sizes) >= 4
    assert worst_difference(pipe, jobs, events) < TOLERANCE


def test_arguments_of_the_models_entry_must_be_those_of_its_pipeline() -> None:
    with pytest.raises(ModelUnavailable, match="StableDiffusionPipeline takes no argument use_resolution_binning"):
        replace(FAMILIES["sd2"], arguments=EXACT).engine(tiny_more.stable_diffusion_2())


@pytest.mark.parametrize(("name", "scheduler"), [("wan", SchedulerName.PNDM), ("ltx", SchedulerName.DDIM)])
def test_a_scheduler_for_noise_is_refused_by_flow_models(name: str, scheduler: SchedulerName) -> None:
    family = FAMILIES[name]
    end = end_of(together(family.engine(family.build()), [family.job(0, scheduler=scheduler)])["job0"])
    assert isinstance(end, Failed)
    assert f"scheduler {scheduler} cannot drive a flow-matching model" in end.error.detail
