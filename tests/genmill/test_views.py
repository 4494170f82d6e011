"""The job as clients see it."""

from __future__ import annotations

import dataclasses
import json

import pytest

from genmill.jobs import JobRecord, JobState
from genmill.links import Links
from genmill.settings import load_settings
from genmill.store import Waiting
from genmill.views import job_view

LINKS = Links(load_settings(secret_key="0123456789abcdef"), clock=lambda: 1_700_000_000.0)

RUNNING = JobRecord(
    job_id="j1", tenant="alice", state=JobState.RUNNING, model="shapes", job_class="p1", batch_key="shapes@1/auto",
    request={"model": "shapes", "input": {"prompt": "a", "init_image": "inputs/j1/init.png"}}, fence=1, rows=1,
    created_at="2026-01-01T00:00:00.000000Z", enqueued_ms=1_000_000.0, started_ms=1_001_500.0, ended_ms=None,
    gpu_ms=0.0, metadata={"a": 1}, progress={"step": 3, "steps": 20}, error=None, result=None,
    has_cancel_request=False, webhook="https://hooks.example/?token=secret",
)  # fmt: skip
DONE = dataclasses.replace(
    RUNNING, state=JobState.SUCCEEDED, ended_ms=1_004_000.0, progress=None,
    result={
        "outputs": [
            {"key": "outputs/j1/1/0.png", "content_type": "image/png", "width": 64, "height": 64, "bytes": 9}
        ],
        "receipt": {"batch": 8},
    },
)  # fmt: skip


def test_running() -> None:
    view = job_view(RUNNING, LINKS)
    assert view["state"] == "running"
    assert view["queued_at"] == "1970-01-01T00:16:40.000Z"
    assert view["started_at"] == "1970-01-01T00:16:41.500Z"
    assert view["ended_at"] is None
    assert view["timings"] == {"queued_s": 1.5, "run_s": None, "total_s": None, "gpu_ms": 0.0}
    assert view["progress"] == {"step": 3, "steps": 20}
    assert view["outputs"] == []
    assert "text" not in view


def test_secrets_stay_inside() -> None:
    shown = json.dumps(job_view(RUNNING, LINKS))
    assert "hooks.example" not in shown
    assert "inputs/j1" not in shown
    assert job_view(RUNNING, LINKS)["input"]["init_image"] == "stored"


@pytest.mark.parametrize("request_", [{"references": ["a book"]}, {"references": {"a/b": 1}}, {"input": "abc"}])
def test_a_plain_call_is_shown_whatever_it_names_references_and_input(request_: dict[str, object]) -> None:
    assert job_view(dataclasses.replace(RUNNING, request=request_), LINKS)["input"] == {}


def test_done_with_images() -> None:
    view = job_view(DONE, LINKS)
    assert view["timings"]["run_s"] == 2.5
    assert view["receipt"] == {"batch": 8}
    (output,) = view["outputs"]
    assert output == {"url": LINKS.output_url("outputs/j1/1/0.png"), "content_type": "image/png", "width": 64,
                      "height": 64, "bytes": 9}  # fmt: skip


def test_places_of_images_stay_inside() -> None:
    given = {"init_image": "inputs/j1/init.png", "mask_image": "inputs/j1/mask.png", "control": {"name": "canny"}}
    view = job_view(dataclasses.replace(RUNNING, request={"input": given}), LINKS)
    assert view["input"] == {
        "init_image": "stored", "mask_image": "stored", "control": {"name": "canny", "image": "stored"},
    }  # fmt: skip
    odd = {"mask_image": None, "control": 3}
    assert job_view(dataclasses.replace(RUNNING, request={"input": odd}), LINKS)["input"] == odd


def test_done_with_text() -> None:
    text = {"text": "circle", "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 1}
    view = job_view(dataclasses.replace(DONE, result={"text": text}), LINKS)
    assert view["text"] == text
    assert view["outputs"] == []
    assert view["receipt"] is None


@pytest.mark.parametrize(("state", "shown"), [(JobState.QUEUED, 4), (JobState.RUNNING, None)])
def test_position_only_while_queued(state: JobState, shown: int | None) -> None:
    waiting = Waiting(4, "turn") if shown else None
    assert job_view(dataclasses.replace(RUNNING, state=state), LINKS, waiting=waiting)["position"] == shown


def test_what_a_job_waits_for_names_the_limit() -> None:
    queued = dataclasses.replace(RUNNING, state=JobState.QUEUED)
    full = Waiting(0, "limit", "tenant:acme", 2, 2)
    assert job_view(queued, LINKS, waiting=full)["waiting_for"] == {
        "reason": "limit", "scope": "tenant:acme", "limit": 2, "running": 2,
    }  # fmt: skip
    assert job_view(queued, LINKS, waiting=Waiting(3, "turn"))["waiting_for"] == {"reason": "turn"}


def test_failed() -> None:
    failed = dataclasses.replace(RUNNING, state=JobState.FAILED, error={"code": "poisoned", "message": "died"})
    assert job_view(failed, LINKS)["error"] == {"code": "poisoned", "message": "died"}


def test_a_foreign_job_has_a_view_too() -> None:
    foreign = dataclasses.replace(RUNNING, request={}, created_at="", enqueued_ms=0.0, started_ms=None, model="call")
    view = job_view(foreign, LINKS)
    assert view["input"] == {}
    assert view["created_at"] is None
    json.dumps(view)
