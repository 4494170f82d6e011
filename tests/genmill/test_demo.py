"""The demo's parts: its jobs, its receiver, its figures and what it makes of them."""

from __future__ import annotations

import dataclasses
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from standardwebhooks import Webhook

from genmill.demo import measure, publish, report
from genmill.demo.drive import Outcome, draw_init_images
from genmill.demo.plain import PlainRun
from genmill.demo.plan import TENANTS, DemoJob, plan_jobs
from genmill.demo.receiver import receiving
from genmill.demo.sheet import draw_sheet
from genmill.inputs import SchedulerName
from genmill.keys import JobClass
from genmill.registry import load_registry
from genmill.shapes.grammar import Caption
from genmill.shapes.render import render

ROOT = Path(__file__).parent.parent.parent
CAPTION = Caption("red", "circle", "blue")
GOOD = {
    "jobs": 56, "succeeded": 56, "failed": 0, "forwards": 80, "mean_batch": 14.0, "max_batch": 30, "fidelity": 0.93,
    "text_fidelity": 1.0, "max_abs_diff_vs_alone": 1e-6, "callbacks_verified": 56, "callbacks_refused": 0,
    "speedup_vs_one_at_a_time": 3.1, "fleet_s": 5.0, "one_at_a_time_s": 15.5, "p50_s": 4.0, "p95_s": 5.0, "wall_s": 60,
}  # fmt: skip


def test_the_jobs_are_as_many_and_as_mixed_as_promised() -> None:
    jobs = plan_jobs()
    images = [job for job in jobs if job.is_image and job.start is None]
    edits = [job for job in jobs if job.start is not None]

    assert (len(images), len(edits), len(jobs)) == (40, 4, 56)
    assert {job.input["scheduler"] for job in images} == {name.value for name in SchedulerName}
    assert {job.input["width"] for job in images} == {64, 96}
    assert {job.tenant for job in jobs} == set(TENANTS)
    for tenant in TENANTS:
        assert {job.priority for job in jobs if job.tenant == tenant} == {c.value for c in JobClass}
    steps = [job.input["steps"] for job in images]
    assert (min(steps), max(steps)) == (8, 50)
    assert len(set(steps)) > 8
    assert all(3 <= job.input["guidance"] <= 9 for job in images)
    assert len({job.input["seed"] for job in images + edits}) == 44
    assert plan_jobs() == jobs


def test_every_job_is_valid_for_its_model() -> None:
    registry = load_registry()

    for job in plan_jobs():
        parsed = registry.get(job.model).parse_input(job.input).model_dump(mode="json")
        assert {name: parsed[name] for name in job.input} == dict(job.input)


def test_init_images_show_another_figure_on_the_same_ground(tmp_path: Path) -> None:
    jobs = plan_jobs()
    paths = draw_init_images(jobs, tmp_path)

    edits = {job.number: job for job in jobs if job.start}
    assert paths.keys() == edits.keys()
    for number, path in paths.items():
        job = edits[number]
        with Image.open(path) as picture:
            assert picture.size == (64, 64)
        assert job.start
        assert job.caption
        assert (job.start.shape, job.start.ground) == (job.caption.shape, job.caption.ground)
        assert job.start.colour not in (job.caption.colour, job.caption.ground)


SECRET = "whsec_" + "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


def deliver(url: str, job_id: str, message_id: str, secret: str = SECRET) -> int:
    body = json.dumps({"type": "job.succeeded", "data": {"id": job_id}})
    now = datetime.now(UTC)
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(message_id, now, body),
    }
    return httpx.post(url, content=body, headers=headers, trust_env=False).status_code


def test_the_receiver_takes_genuine_callbacks_only() -> None:
    with receiving() as receiver:
        url = receiver.expect("acme", SECRET)

        assert deliver(url, "j1", "cb_1") == 204
        assert deliver(url, "j1", "cb_1") == 204  # delivered again: the same id
        assert deliver(url, "j2", "cb_2", secret="whsec_" + "A" * 43 + "=") == 400
        assert deliver(receiver.url + "/stranger", "j3", "cb_3") == 400
        assert receiver.wait_for(1, 0.0)
        assert not receiver.wait_for(2, 0.0)

    assert receiver.verified() == {"j1": {"cb_1"}}
    assert len(receiver.refused) == 2


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


PIXELS = render([CAPTION], 64, np.random.default_rng(1))[0]


def outcome(number: int = 0, state: str = "succeeded", start_s: int = 0, end_s: int = 5, **receipt: Any) -> Outcome:
    job = DemoJob(number, "acme", "shapes", "p1", {"prompt": str(CAPTION), "steps": 20}, CAPTION)
    view = {
        "id": f"j{number}",
        "state": state,
        "queued_at": f"2026-01-01T00:00:{start_s:02}.000Z",
        "ended_at": f"2026-01-01T00:00:{end_s:02}.000Z",
        "timings": {"total_s": float(end_s - start_s)},
        "error": None,
        "receipt": {
            "forwards": 20,
            "batch_min": 2,
            "batch_mean": 10.0,
            "batch_max": 16,
            "forwards_share": 2.5,
            **receipt,
        },
    }
    return Outcome(job, view, (png(PIXELS),) if state == "succeeded" else ())


def text_outcome(text: str) -> Outcome:
    job = DemoJob(9, "zoo", "captions", "p1", {"prompt": "a red"})
    receipt = {"forwards": 6, "batch_min": 1, "batch_mean": 4.0, "batch_max": 12}
    view = {"id": "j9", "state": "succeeded", "timings": {"total_s": 1.0}, "receipt": receipt, "error": None}
    return Outcome(job, view | {"text": {"text": text}})


def alone(*numbers: int) -> PlainRun:
    floats = PIXELS.astype(np.float32) / 255
    return PlainRun(dict.fromkeys(numbers, floats), dict.fromkeys(numbers, 10.0), {"threads": 2})


def figures_of(
    *rounds: measure.Round, plain: PlainRun, message_ids: dict[str, set[str]] | None = None
) -> dict[str, float]:
    return measure.figures_of(rounds, plain, message_ids or {}, refused=0, wall_s=33.33)


def test_figures_come_from_the_receipts_and_the_clock_of_the_fleet() -> None:
    outcomes = [outcome(0), outcome(1, start_s=1, end_s=8), text_outcome(" circle on a blue background")]
    ids = {"j0": {"a"}, "j1": {"b", "c"}, "j9": {"d"}}

    figures = figures_of(outcomes, plain=alone(0, 1), message_ids=ids)

    assert (figures["jobs"], figures["succeeded"], figures["failed"]) == (3, 3, 0)
    assert (figures["forwards"], figures["mean_batch"], figures["max_batch"]) == (5, 8.0, 16)
    assert figures["fleet_s"] == 8.0
    assert figures["speedup_vs_one_at_a_time"] == 2.5
    assert figures["callbacks_verified"] == 2  # one job was told of under two ids
    assert (figures["fidelity"], figures["text_fidelity"]) == (1.0, 1.0)
    assert figures["p50_s"] == 5.0


def test_the_fleets_time_is_the_mean_of_the_rounds_and_failures_and_webhooks_count_in_any() -> None:
    first, second = [outcome(0, end_s=9)], [outcome(0, end_s=3)]
    plain = PlainRun(alone(0).pictures, {0: 15.0}, {})

    figures = figures_of(first, second, plain=plain, message_ids={"j0": {"a"}})
    assert (figures["fleet_s"], figures["one_at_a_time_s"], figures["speedup_vs_one_at_a_time"]) == (6.0, 15.0, 2.5)
    assert (figures["jobs"], figures["p50_s"], figures["callbacks_verified"]) == (1, 9.0, 1)

    broken = [dataclasses.replace(outcome(0, "failed"), view={**outcome(0, "failed").view, "id": "x"})]
    figures = figures_of(first, broken, plain=plain, message_ids={"j0": {"a"}})
    assert (figures["failed"], figures["callbacks_verified"]) == (1, 0)


def test_a_failed_job_counts_and_spoils_nothing_else() -> None:
    figures = figures_of([outcome(0), outcome(1, "failed")], plain=alone(0, 1))

    assert (figures["succeeded"], figures["failed"], figures["fidelity"]) == (1, 1, 1.0)


def test_figures_of_nothing_that_succeeded_are_figures_still() -> None:
    figures = figures_of([outcome(0, "failed")], plain=alone(0))

    json.dumps(figures, allow_nan=False)
    assert "max_abs_diff_vs_alone is 1" in " ".join(measure.shortfalls(figures))


@pytest.mark.parametrize(("shift", "expected"), [(0.0, 0.0), (0.4 / 255, 0.0), (1.5 / 255, 1.0 / 255)])
def test_the_difference_is_what_8_bits_cannot_explain(shift: float, expected: float) -> None:
    floats = np.clip(PIXELS / 255, 0.1, 0.9)
    delivered = Outcome(outcome().job, outcome().view, (png(np.rint(floats * 255).astype(np.uint8)),))
    exact = np.rint(floats * 255) / 255
    plain = PlainRun({0: (exact + shift).astype(np.float32)}, {0: 1.0}, {})

    assert measure.difference(delivered, plain) == pytest.approx(expected, abs=1e-6)


def test_another_size_is_as_different_as_can_be() -> None:
    plain = PlainRun({0: np.zeros((96, 96, 3), np.float32)}, {0: 1.0}, {})

    assert measure.difference(outcome(), plain) == 1.0


def test_nothing_falls_short_of_good_figures() -> None:
    assert measure.shortfalls(GOOD) == []


@pytest.mark.parametrize(
    ("figure", "value", "said"),
    [
        ("failed", 1, "at most 0"),
        ("fidelity", 0.84, "at least 0.85"),
        ("max_abs_diff_vs_alone", 2e-3, "at most 0.001"),
        ("max_batch", 7, "at least 8"),
        ("callbacks_verified", 55, "at least 56"),
        ("callbacks_refused", 1, "at most 0"),
        ("speedup_vs_one_at_a_time", 2.4, "at least 2.5"),
        ("wall_s", 91, "at most 90"),
    ],
)
def test_each_promise_that_is_not_kept_is_named(figure: str, value: float, said: str) -> None:
    (reason,) = measure.shortfalls(GOOD | {figure: value})

    assert reason.startswith(f"{figure} is ")
    assert reason.endswith(said)


def test_the_report_is_the_json_of_every_benchmark(tmp_path: Path) -> None:
    machine = report.machine([{"device": "cpu", "dtype": "float32", "versions": {}}], {"threads": 2})
    samples = measure.samples_of([[outcome(0), text_outcome(" ring"), outcome(1, "failed")]], alone(0, 1))

    report.write_report(tmp_path / "report.json", GOOD, samples, machine)

    read = json.loads((tmp_path / "report.json").read_text())
    assert set(read) == {"figures", "samples", "machine", "command"}
    assert read["figures"] == GOOD
    assert read["samples"]["jobs"][0]["shows_caption"] is True
    assert read["samples"]["jobs"][1]["is_in_grammar"] is False
    assert read["machine"]["device"] == "cpu"


def test_the_sheet_has_room_for_every_job(tmp_path: Path) -> None:
    outcomes = [outcome(n) for n in range(12)] + [outcome(12, "failed"), text_outcome(" circle")]
    render_path = tmp_path / "init.png"
    Image.fromarray(PIXELS).save(render_path)

    sheet = draw_sheet(outcomes, GOOD, {3: render_path})

    two_rows = draw_sheet(outcomes[:11], GOOD, {})
    assert sheet.width == two_rows.width
    assert sheet.height > two_rows.height


def test_publishing_writes_the_table_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "contact-sheet.png").write_bytes(b"picture")
    machine = {"cores": 2, "cpu": "some CPU", "device": "cpu", "dtype": "float32"}
    document = {"figures": GOOD, "samples": {}, "machine": machine, "command": "genmill demo"}
    (tmp_path / "out" / "report.json").write_text(json.dumps(document))
    (tmp_path / "README.md").write_text(f"before\n{publish.BEGIN}\nold\n{publish.END}\nafter\n")

    publish.main(tmp_path / "out", tmp_path)

    readme = (tmp_path / "README.md").read_text()
    assert "| times as fast as plain pipeline calls | 3.1 |" in readme
    assert "old" not in readme
    assert readme.startswith("before\n")
    assert readme.endswith("after\n")
    assert (tmp_path / "docs" / "demo.png").read_bytes() == b"picture"


def test_the_readme_says_what_the_report_says() -> None:
    document = json.loads((ROOT / "docs" / "demo.json").read_text())
    readme = (ROOT / "README.md").read_text()

    assert publish.with_table(readme, publish.figures_table(document)) == readme
    assert measure.shortfalls(document["figures"]) == []
