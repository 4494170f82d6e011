"""Shapes that run when a model is loaded."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from genmill.errors import SettingsInvalid
from genmill.extras import AdapterSpec
from genmill.inputs import ImageInput
from genmill.registry import load_registry
from genmill.store import Store
from tests.conftest import SettingsFactory
from tests.worker.doubles import FakeEngine
from tests.worker.engines import tiny
from tests.worker.loading import Loader, all_done, registry_of, run_until, submit_to
from worker.engines.crew import Crew
from worker.engines.diffusion import DiffusionEngine
from worker.warm_up import warm_up


def test_each_shape_runs_in_three_sizes_through_the_engine_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "genmill.worker")
    rows: list[tuple[int, ...]] = []
    pipe = tiny.stable_diffusion()
    pipe.unet.register_forward_pre_hook(
        lambda _m, _a, given: rows.append(tuple(given["sample"].shape)), with_kwargs=True
    )
    spec = tiny.spec().model_copy(update={"warmup": ("32x32", "48x32")})
    engine = DiffusionEngine.from_pipeline(spec, pipe, Crew(1))
    warm_up(engine, spec)
    assert rows == [(2 * batch, 4, 16, width) for width in (16, 24) for batch in (1, 2, 4)]
    assert engine.is_idle()
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "model tiny: 32x32 is warm",
        "model tiny: 48x32 is warm",
    ]


def test_no_more_than_may_be_on_board() -> None:
    engine = FakeEngine()
    spec = tiny.spec(max_batch=2).model_copy(update={"warmup": ("32x32",)})
    warm_up(engine, spec)
    assert list(engine.jobs) == [f"warm-up of tiny at 32x32 #{number}" for number in range(2)]


def test_a_model_whose_jobs_have_adapters_by_default_is_warmed_without() -> None:
    engine, ink = FakeEngine(), {"loras": [{"name": "ink"}]}
    fields = {"warmup": ("32x32",), "adapters": {"ink": AdapterSpec(source="none")}, "defaults": ink}
    spec = tiny.spec(max_batch=1).model_copy(update=fields)
    warm_up(engine, spec)
    (job,) = engine.jobs.values()
    assert isinstance(job.input, ImageInput)
    assert job.input.loras == ()


def test_a_shape_that_fails_is_told_and_keeps_nobody_from_working(
    store: Store, make_settings: SettingsFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = registry_of(tmp_path, "a", warmup='["64x64"]', defaults="{ width = 64, height = 64 }")
    loader = Loader()
    floor = loader.floor(store, registry, make_settings())

    def poisoned(spec: object) -> FakeEngine:
        engine = loader(spec)  # type: ignore[arg-type]  # a spec
        engine.bad_prompts.add("warm-up")
        return engine

    floor.residents._load = poisoned
    job_id = submit_to(store, registry, "a")
    run_until(floor, lambda: all_done(store, [job_id]))
    assert "warm-up of a at 64x64 #0: bad prompt" in caplog.messages
    floor.close()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"warmup": '["65x64"]'}, "width must be a multiple of 8, got 65"),
        ({"warmup": '["64x4096"]'}, "height must be between 64 and 1024, got 4096"),
        ({"warmup": '["64"]'}, "must match"),
        ({"warmup": '["0x64"]'}, "must match"),
    ],
)
def test_a_shape_that_no_job_may_ask_for_is_refused(fields: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match=r"warmup|models/0") as caught:
        registry_of(tmp_path, "a", **fields)
    assert said in caught.value.detail


def test_texts_have_no_shapes(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text('[[models]]\nname = "a"\nkind = "text"\nsource = "x"\nwarmup = ["64x64"]\n')
    with pytest.raises(SettingsInvalid, match="a model of texts has not"):
        load_registry(path)
