"""Jobs with adapters: each image is that of the plain pipeline with these adapters alone, whoever is on board."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from genmill.errors import ModelUnavailable
from genmill.extras import AdapterSpec
from genmill.inputs import Lora
from genmill.registry import ModelSpec
from tests.worker.engines import tiny, tiny_video
from tests.worker.engines.runs import alone, end_of, image_job, pictures, together
from tests.worker.engines.test_memory import SmallDevice
from tests.worker.engines.test_pipelines import TOLERANCE, picture
from tests.worker.engines.tiny_loras import write_lora
from worker.engines import components
from worker.engines.base import EngineJob, Failed, Finished
from worker.engines.crew import Crew
from worker.engines.diffusion import DiffusionEngine
from worker.engines.memory import bytes_of
from worker.engines.shelf import modules_of

pytestmark = pytest.mark.filterwarnings("ignore:Already found a `peft_config`")  # of the pipelines to compare with

Loras = tuple[tuple[str, float], ...]


def with_adapters(build: Callable[[], Any], folder: Path, *, has_text: bool = False) -> ModelSpec:
    """A model of the adapters `ink`, for the text encoder too where it `has_text`, and `neon`."""
    ink = write_lora(build, folder / "ink", seed=11, has_text=has_text)
    neon = write_lora(build, folder / "neon", seed=12, rank=2)
    adapters = {"ink": AdapterSpec(source=str(ink)), "neon": AdapterSpec(source=str(neon.parent))}
    return tiny.spec().model_copy(update={"adapters": adapters})


def lora_job(job_id: str, loras: Loras, **changes: Any) -> EngineJob:
    return image_job(job_id, loras=tuple(Lora(name=name, weight=weight) for name, weight in loras), **changes)


def engine_of(spec: ModelSpec, pipe: Any, threads: int = 1) -> DiffusionEngine:
    engine = DiffusionEngine.from_pipeline(spec, pipe, Crew(threads))
    for name in spec.adapters:
        engine.load_adapter(name)
    return engine


def alone_with(build: Callable[[], Any], spec: ModelSpec, job: EngineJob) -> list[torch.Tensor]:
    """By a pipeline of its own, with the job's adapters and nothing else."""
    pipe, loras = build(), job.input.loras
    for lora in loras:
        path = Path(spec.adapters[lora.name].source)
        pipe.load_lora_weights(path.parent if path.is_file() else path, adapter_name=lora.name)
    if loras:
        pipe.set_adapters([lora.name for lora in loras], [lora.weight for lora in loras])
    return alone(pipe, job)


def difference(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("build", "has_text"),
    [
        (tiny.stable_diffusion, True),
        (tiny.stable_diffusion_xl, True),
        (tiny.stable_diffusion_3, False),
        (tiny.flux, False),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_job_with_adapters_is_the_plain_pipeline_with_them_alone(
    build: Callable[[], Any], has_text: bool, threads: int, tmp_path: Path
) -> None:
    spec = with_adapters(build, tmp_path, has_text=has_text)
    sets: list[Loras] = [(), (("ink", 1.0),), (("neon", -0.5),), (("neon", 0.7), ("ink", 0.4))]
    jobs = [lora_job(f"job{n}", sets[n % 4], seed=n // 4, steps=2 + n % 3) for n in range(8)]
    pipe = build()
    events = together(engine_of(spec, pipe, threads), jobs)
    assert has_text == ("text_encoder" in pipe.get_list_adapters())
    for job in jobs:
        made = pictures(events[job.job_id])
        assert difference(made, alone_with(build, spec, job)) < TOLERANCE, job.job_id
        if job.input.loras:
            bare = image_job("bare", seed=job.input.seed, steps=job.input.steps)
            assert difference(made, alone(build(), bare)) > 0.003, job.job_id


@pytest.mark.parametrize("build", [tiny_video.wan, tiny_video.wan_with_two, tiny_video.ltx])
def test_videos_with_adapters_too(build: Callable[[], Any], tmp_path: Path) -> None:
    spec = with_adapters(build, tmp_path)
    film = {"num_frames": 9, "fps": 8, "steps": 3}
    jobs = [lora_job("inked", (("ink", 1.0),), **film), lora_job("bare", (), **film)]
    events = together(engine_of(spec, build()), jobs)
    made = {job.job_id: pictures(events[job.job_id]) for job in jobs}
    for job in jobs:
        assert difference(made[job.job_id], alone_with(build, spec, job)) < TOLERANCE
    assert difference(made["inked"], made["bare"]) > 0.001


def test_only_jobs_of_one_set_share_forwards(tmp_path: Path) -> None:
    spec = with_adapters(tiny.stable_diffusion, tmp_path)
    pairs: list[Loras] = [
        (("ink", 1.0), ("neon", 0.5)),
        (("neon", 0.5), ("ink", 1.0)),
        (("ink", 1.0),),
        (("ink", 0.9),),
        (),
        (("ink", 0.0),),
    ]
    jobs = [lora_job(f"job{n}", loras, seed=n) for n, loras in enumerate(pairs)]
    events = together(engine_of(spec, tiny.stable_diffusion()), jobs)
    ends = [end_of(events[job.job_id]) for job in jobs]
    receipts = [end.receipt for end in ends if isinstance(end, Finished)]
    assert [receipt.batch_max for receipt in receipts] == [2, 2, 1, 1, 2, 2]
    assert receipts[1].loras == ({"name": "ink", "weight": 1.0}, {"name": "neon", "weight": 0.5})
    assert receipts[5].loras == ()


def test_adapters_work_from_an_image_too(tmp_path: Path) -> None:
    build = tiny.stable_diffusion
    spec = with_adapters(build, tmp_path)
    base = image_job("a", picture(), steps=5, strength=0.6, loras=(Lora(name="ink"),))
    made = pictures(together(engine_of(spec, build()), [base, lora_job("b", ())])["a"])
    assert difference(made, alone_with(build, spec, base)) < TOLERANCE


def test_an_adapter_that_comes_while_others_run_changes_nothing_for_them(tmp_path: Path) -> None:
    build = tiny.stable_diffusion
    spec = with_adapters(build, tmp_path, has_text=True)
    engine = DiffusionEngine.from_pipeline(spec, build())
    first = image_job("first", steps=6)
    engine.admit([first])
    engine.step()
    engine.load_adapter("ink")
    second = lora_job("second", (("ink", 1.0),))
    events = together(engine, [second])
    assert difference(pictures(events["first"]), alone(build(), first)) < TOLERANCE
    assert difference(pictures(events["second"]), alone_with(build, spec, second)) < TOLERANCE


def test_a_job_never_runs_without_an_adapter_that_it_asks_for(tmp_path: Path) -> None:
    spec = with_adapters(tiny.stable_diffusion, tmp_path)
    engine = DiffusionEngine.from_pipeline(spec, tiny.stable_diffusion())
    engine.load_adapter("ink")
    events = together(engine, [lora_job("a", (("ink", 1.0), ("neon", 1.0))), lora_job("b", (("ink", 1.0),))])
    end = end_of(events["a"])
    assert isinstance(end, Failed)
    assert (end.error.code, end.error.detail) == ("model_unavailable", "adapter neon of model tiny is not loaded")
    assert isinstance(end_of(events["b"]), Finished)


def test_doubles_of_sets_that_nobody_has_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "MOST_DRESSED", 3)
    spec = with_adapters(tiny.stable_diffusion, tmp_path)
    engine = engine_of(spec, tiny.stable_diffusion())
    jobs = [lora_job(f"job{n}", (("ink", 0.1 * n),), seed=n, steps=2) for n in range(1, 5)]
    together(engine, jobs[:2])
    events = together(engine, jobs[2:])
    assert len(engine._components._dressed) <= 3
    for job in jobs[2:]:
        expected = alone_with(tiny.stable_diffusion, spec, job)
        assert difference(pictures(events[job.job_id]), expected) < TOLERANCE


def loras_of(loras: Loras) -> tuple[Lora, ...]:
    return tuple(Lora(name=name, weight=weight) for name, weight in loras)


def test_sets_have_doubles_of_what_they_change_and_share_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ink` changes the text encoder too, `neon` does not."""
    spec = with_adapters(tiny.stable_diffusion, tmp_path, has_text=True)
    parts = engine_of(spec, tiny.stable_diffusion())._components
    built: list[str] = []
    build = components.build_double
    monkeypatch.setattr(components, "build_double", lambda name, *rest: (built.append(name), build(name, *rest))[1])
    plain, inked, neon, both = (
        parts.of(loras_of(loras), None, ())
        for loras in ((), (("ink", 1.0),), (("neon", 0.5),), (("neon", 0.5), ("ink", 1.0)))
    )
    assert sorted(built) == ["text_encoder", "unet", "unet", "unet"]
    assert {id(one["vae"]) for one in (plain, inked, neon, both)} == {id(plain["vae"])}
    assert len({id(one["unet"]) for one in (plain, inked, neon, both)}) == 4
    assert neon["text_encoder"] is plain["text_encoder"]
    assert both["text_encoder"] is inked["text_encoder"] is not plain["text_encoder"]
    again = parts.of(loras_of((("neon", 0.5),)), None, ())
    assert all(again[name] is double for name, double in neon.items())


def test_prompts_of_sets_that_leave_the_text_encoder_alone_are_read_together(tmp_path: Path) -> None:
    spec, pipe, sizes = with_adapters(tiny.stable_diffusion, tmp_path), tiny.stable_diffusion(), list[int]()
    pipe.text_encoder.register_forward_pre_hook(
        lambda _module, args, given: sizes.append(len(given.get("input_ids", args[0] if args else ()))),
        with_kwargs=True,
    )
    together(engine_of(spec, pipe), [lora_job(f"job{n}", (("neon", 0.1 * n),), steps=1) for n in range(4)])
    assert set(sizes) == {4}


def test_what_one_set_has_learnt_of_memory_holds_for_the_others(tmp_path: Path) -> None:
    spec, pipe, sizes = with_adapters(tiny.stable_diffusion, tmp_path), tiny.stable_diffusion(), list[int]()

    def short(_module: Any, _args: Any, given: dict[str, Any]) -> None:
        sizes.append(len(given["sample"]))
        if sizes[-1] > 4:
            raise torch.OutOfMemoryError("no room")

    pipe.unet.register_forward_pre_hook(short, with_kwargs=True)
    engine = engine_of(spec, pipe)
    together(engine, [lora_job(f"job{n}", (("ink", 1.0),), steps=1) for n in range(8)])
    sizes.clear()
    together(engine, [lora_job(f"job{n}", (("neon", 1.0),), steps=1) for n in range(8)])
    assert max(sizes) <= 4


def test_adapters_count_and_move_with_their_model(tmp_path: Path) -> None:
    build = tiny.stable_diffusion
    spec, pipe = with_adapters(build, tmp_path, has_text=True), build()
    engine = DiffusionEngine.from_pipeline(spec, pipe)
    bare = engine.memory().model_bytes
    ink_bytes = engine.load_adapter("ink")
    assert bare + ink_bytes == bytes_of(*modules_of(pipe)) > bare
    assert engine.load_adapter("ink") == 0
    assert engine.load_adapter("neon") > 0
    assert engine.memory().model_bytes == bare  # what other workers expect of the model
    job = lora_job("a", (("ink", 1.0), ("neon", 0.5)))
    expected = pictures(together(engine, [job])["a"])[0]
    engine.park()
    engine.unpark()
    assert torch.equal(pictures(together(engine, [job])["a"])[0], expected)
    assert torch.equal(pictures(together(engine, [image_job("b")])["b"])[0], alone(build(), image_job("b"))[0])


def test_forwards_of_a_set_are_bounded_by_what_those_of_all_have_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SmallDevice(total=700)
    monkeypatch.setattr("worker.engines.diffusion.meter_of", lambda _: device)
    spec, pipe, sizes = with_adapters(tiny.stable_diffusion, tmp_path), tiny.stable_diffusion(), []

    def take(_: Any, args: Any, kwargs: Any) -> None:
        sizes.append(len(kwargs["sample"]))
        device.taken = 100 * sizes[-1]

    pipe.unet.register_forward_pre_hook(take, with_kwargs=True)
    engine = engine_of(spec, pipe)
    for count in (1, 2):
        together(engine, [image_job(f"job{n}", steps=2) for n in range(count)])
    sizes.clear()
    together(engine, [lora_job(f"job{n}", (("ink", 1.0),), steps=2) for n in range(8)])
    assert max(sizes) == 6  # 700 * 0.95 / 100 rows


def broken(folder: Path) -> str:
    path = folder / "broken.safetensors"
    path.write_bytes(b"not weights")
    return str(path)


def of_another_model(folder: Path) -> str:
    return str(write_lora(tiny.stable_diffusion_xl, folder / "xl", seed=1))


def of_no_model(folder: Path) -> str:
    from safetensors.torch import save_file

    path = folder / "odd.safetensors"
    save_file({"something.else": torch.zeros(2)}, path)
    return str(path)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (lambda folder: str(folder / "nowhere.safetensors"), "there is no file or folder"),
        (broken, "adapter bad of model tiny"),
        (of_another_model, "adapter bad of model tiny"),
        (of_no_model, "adapter bad of model tiny"),
    ],
)
def test_an_adapter_that_does_not_load_says_why_and_harms_nobody(
    place: Callable[[Path], str], why: str, tmp_path: Path
) -> None:
    build = tiny.stable_diffusion
    spec = with_adapters(build, tmp_path)
    adapters = {**spec.adapters, "bad": AdapterSpec(source=place(tmp_path))}
    spec = spec.model_copy(update={"adapters": adapters})
    engine = DiffusionEngine.from_pipeline(spec, build())
    engine.load_adapter("ink")
    for _ in range(2):
        with pytest.raises(ModelUnavailable, match=why):
            engine.load_adapter("bad")
    jobs = [lora_job("ink", (("ink", 1.0),)), lora_job("none", ())]
    events = together(engine, jobs)
    for job in jobs:
        assert difference(pictures(events[job.job_id]), alone_with(build, spec, job)) < TOLERANCE
