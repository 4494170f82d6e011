"""`genmill batches`, and deliveries of webhooks: what is sent and printed, and the exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.genmill.conftest import JOB_ID, Api, Run, view

BATCH = "batch_01jq"
COUNTS = {"total": 9, "waiting": 2, "running": 1, "succeeded": 5, "failed": 1, "canceled": 0, "skipped": 0}
NOT_FOUND = {"error": {"code": "batch_not_found", "message": "There is no batch 'nope'"}, "errors": []}
DELIVERY = {
    "id": f"cb_{JOB_ID}_1_succeeded", "event": "succeeded", "state": "waiting", "next_attempt_at": "2026-01-01T00:10Z",
    "attempts": [{"attempt": 1, "status": 503, "detail": "answered 503", "at": "2026-01-01T00:00Z"}],
}  # fmt: skip


def batch(**changes: Any) -> dict[str, Any]:
    """A batch as the API shows it."""
    return {
        "id": BATCH, "status": "in_progress", "counts": COUNTS, "results": 6, "rate_per_s": 2.5, "eta_s": 1.2,
        "created_at": "2026-01-01T00:00Z", "expires_at": "2026-01-08T00:00Z", "cancelling_at": None, "ended_at": None,
        "resume_of": None, "metadata": {"for": "tests"},
    } | changes  # fmt: skip


def rows(*results: dict[str, Any]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in results).encode()


def test_list_has_a_row_for_each(api: Api, run: Run) -> None:
    api.answers[("GET", "/v1/batches")] = {
        "data": [batch(), batch(id="batch_2", status="finalizing")],
        "has_more": False,
    }

    code, out, _ = run("batches", "list")

    assert code == 0
    first, second = out.splitlines()[1:]
    assert first.split() == [BATCH, "in_progress", "9", "6", "1", "2026-01-01", "00:00"]
    assert second.split()[:2] == ["batch_2", "expiring"]
    assert [one["id"] for one in json.loads(run("batches", "list", "--json")[1])] == [BATCH, "batch_2"]
    api.answers[("GET", "/v1/batches")] = {"data": [], "has_more": False}
    assert run("batches", "list")[1] == "no batches\n"


def test_at_80_columns_a_batch_is_one_line(api: Api, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genmill.cli.screen.PIPE_WIDTH", 80)
    found = [batch(id=f"batch_{'0' * 25}{n}", created_at="2026-11-30T21:31:07.123Z") for n in range(2)]
    api.answers[("GET", "/v1/batches")] = {"data": found, "has_more": False}

    lines = run("batches", "list")[1].splitlines()

    assert len(lines) == 3
    assert [line.split()[0] for line in lines[1:]] == [one["id"] for one in found]
    assert all(line.rstrip().endswith("2026-11-30 21:31") and len(line) <= 80 for line in lines[1:])


def test_show_tells_what_is_known(api: Api, run: Run) -> None:
    api.answers[("GET", f"/v1/batches/{BATCH}")] = batch()

    out = run("batches", "show", BATCH)[1]

    assert out.startswith(f"{BATCH} in_progress")
    for words in ("2 waiting, 1 running, 5 succeeded, 1 failed", "2.5 a second", "1.2 s", '{"for": "tests"}'):
        assert words in out
    assert json.loads(run("batches", "show", BATCH, "--json")[1]) == batch()
    api.answers[("GET", "/v1/batches/nope")] = (404, NOT_FOUND)
    assert run("batches", "show", "nope")[0] == 3


def test_cancel_says_what_it_did(api: Api, run: Run) -> None:
    api.answers[("POST", f"/v1/batches/{BATCH}/cancel")] = batch(status="cancelling", cancel="cancelling")
    assert run("batches", "cancel", BATCH)[:2] == (
        0, f"{BATCH} is canceled: what waits will not run, what runs may end\n",
    )  # fmt: skip
    api.answers[("POST", f"/v1/batches/{BATCH}/cancel")] = batch(status="completed", cancel="too_late")
    api.answers[("POST", "/v1/batches/nope/cancel")] = (404, NOT_FOUND)
    code, out, _ = run("batches", "cancel", BATCH, "nope", "--json")
    assert (code, json.loads(out)) == (1, [{"id": BATCH, "cancel": "too_late"}, {"id": "nope", "cancel": "unknown"}])


def test_results_are_lines(api: Api, run: Run) -> None:
    good = {"seq": 1, "custom_id": "a", "state": "succeeded", "outputs": [], "text": {"text": "a ring"}, "error": None}
    bad = {"seq": 2, "custom_id": "b", "state": "failed", "outputs": [], "error": {"code": "x", "message": "it broke"}}
    image = {"seq": 3, "custom_id": "c", "state": "succeeded", "outputs": [{"url": "http://x/1.png"}], "error": None}
    api.answers[("GET", f"/v1/batches/{BATCH}")] = batch(status="completed")
    pages = iter([rows(good, bad, image), b"", rows(good, bad, image), b"", rows(good, bad, image)])

    class Paged(dict[tuple[str, str], Any]):
        def __getitem__(self, place: tuple[str, str]) -> Any:
            return next(pages) if place[1].endswith("/results") else super().__getitem__(place)

    api.answers = Paged(api.answers)
    code, out, _ = run("batches", "results", BATCH)
    assert code == 0
    assert [line.rstrip().split(maxsplit=3) for line in out.splitlines()[1:]] == [
        ["1", "a", "succeeded", "a ring"], ["2", "b", "failed", "x: it broke"],
        ["3", "c", "succeeded", "http://x/1.png"],
    ]  # fmt: skip
    out = run("batches", "results", BATCH, "--json")[1]
    assert [json.loads(line)["seq"] for line in out.splitlines()] == [1, 2, 3]
    assert len(run("batches", "results", BATCH, "--json", "--limit", "1")[1].splitlines()) == 1


def test_deliveries_and_redeliveries(api: Api, run: Run) -> None:
    api.answers = {
        ("GET", f"/v1/jobs/{JOB_ID}"): view(), ("GET", f"/v1/batches/{BATCH}"): batch(),
        ("GET", f"/v1/jobs/{JOB_ID}/deliveries"): {"data": [DELIVERY]},
        ("GET", f"/v1/batches/{BATCH}/deliveries"): {"data": []},
        ("POST", f"/v1/jobs/{JOB_ID}/redeliver"): (202, {**DELIVERY, "redelivery": "queued"}),
        ("POST", f"/v1/batches/{BATCH}/redeliver"): (202, {**DELIVERY, "redelivery": "pending"}),
    }  # fmt: skip
    head, first, upcoming = run("jobs", "deliveries", JOB_ID)[1].splitlines()
    assert head.split() == ["delivery", "event", "state", "attempt", "at", "answer"]
    assert first.split(maxsplit=5)[1:] == ["succeeded", "waiting", "1", "2026-01-01T00:00Z", "answered 503"]
    assert upcoming.split()[3:] == ["next", "2026-01-01T00:10Z"]
    assert json.loads(run("jobs", "deliveries", JOB_ID, "--json")[1]) == [DELIVERY]
    assert run("batches", "deliveries", BATCH)[1] == "no deliveries\n"
    assert run("jobs", "redeliver", JOB_ID)[1] == f"{DELIVERY['id']} will be sent once more\n"
    assert api.sent[-1][2] == {}
    assert run("batches", "redeliver", BATCH, "--delivery", "cb_1")[1].endswith(" is under way anyway\n")
    assert api.sent[-1][2] == {"delivery_id": "cb_1"}


def test_what_was_not_due_is_refused_in_one_line(api: Api, run: Run) -> None:
    fault = {
        "pointer": "/webhook",
        "detail": "j was submitted without a webhook",
        "limit": "a webhook",
        "value": "none",
    }
    problem = {"error": {"code": "nothing_to_deliver", "message": "j has none"}, "errors": [fault]}
    api.answers = {
        ("GET", f"/v1/jobs/{JOB_ID}"): view(), ("POST", f"/v1/jobs/{JOB_ID}/redeliver"): (422, problem),
    }  # fmt: skip
    code, out, err = run("jobs", "redeliver", JOB_ID)
    assert (code, out) == (3, "")
    assert err == "genmill: /webhook: j was submitted without a webhook (value none)\n"
