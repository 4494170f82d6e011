"""The job as replicate's client sees it."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from genmill.jobs import JobState
from genmill.predictions import prediction_view, version_of
from genmill.registry import load_registry
from genmill.store import Waiting
from tests.genmill.test_views import DONE, LINKS, RUNNING

STATUSES = {
    JobState.QUEUED: "starting", JobState.RUNNING: "processing", JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed", JobState.CANCELED: "canceled", JobState.EXPIRED: "failed",
}  # fmt: skip


@pytest.mark.parametrize("state", JobState)
def test_every_state_has_one_of_the_clients_statuses(state: JobState) -> None:
    record = dataclasses.replace(RUNNING, state=state)
    assert prediction_view(record, LINKS)["status"] == STATUSES[state]
    answer = prediction_view(record, LINKS, is_starting=True)["status"]
    assert answer == (STATUSES[state] if state.is_terminal else "starting")


def test_what_the_client_insists_on_is_text() -> None:
    foreign = dataclasses.replace(
        RUNNING, state=JobState.FAILED, request={}, created_at="", enqueued_ms=0.0, model="call", batch_key="call"
    )
    view = prediction_view(foreign, LINKS)
    assert all(isinstance(view[name], str) for name in ("id", "model", "version", "status", "error", "logs"))
    assert all(isinstance(url, str) for url in view["urls"].values())
    assert view["urls"]["stream"] == view["urls"]["get"] + "/stream"


def test_secrets_stay_inside() -> None:
    shown = json.dumps(prediction_view(RUNNING, LINKS))
    assert "hooks.example" not in shown
    assert "inputs/j1" not in shown


def test_the_version_is_that_of_its_model() -> None:
    shapes = load_registry().get("shapes")
    assert prediction_view(RUNNING, LINKS)["version"] == version_of(shapes)
    assert re.fullmatch(r"[0-9a-f]{64}", version_of(shapes))
    assert version_of(shapes.model_copy(update={"revision": "2"})) != version_of(shapes)
    assert version_of(shapes.model_copy(update={"dtype": "float16"})) == version_of(shapes)


@pytest.mark.parametrize(
    ("step", "steps", "line"),
    [(0, 20, "  0%|          | 0/20\n"), (9, 20, " 45%|████      | 9/20\n"), (20, 20, "100%|██████████| 20/20\n")],
)
def test_progress_is_a_line_of_tqdms(step: int, steps: int, line: str) -> None:
    record = dataclasses.replace(RUNNING, progress={"step": step, "steps": steps})
    assert prediction_view(record, LINKS)["logs"] == line


def test_outputs_are_links_or_one_text() -> None:
    assert prediction_view(RUNNING, LINKS)["output"] is None
    assert prediction_view(DONE, LINKS)["output"] == [LINKS.output_url("outputs/j1/1/0.png")]
    text = {"text": "circle", "finish_reason": "stop", "prompt_tokens": 2, "completion_tokens": 1}
    assert prediction_view(dataclasses.replace(DONE, result={"text": text}), LINKS)["output"] == ["circle"]


def test_metrics_hold_only_what_is_known() -> None:
    queued = dataclasses.replace(RUNNING, state=JobState.QUEUED, started_ms=None)
    metrics = prediction_view(queued, LINKS, waiting=Waiting(3, "turn"))["metrics"]
    assert metrics == {"queue_position": 3, "waiting_for": "turn"}
    assert prediction_view(dataclasses.replace(DONE, gpu_ms=120.0), LINKS)["metrics"] == {
        "predict_time": 2.5, "total_time": 4.0, "queue_time": 1.5, "gpu_time": 0.12,
    }  # fmt: skip
