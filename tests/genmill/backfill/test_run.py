"""The run against an API of the test's own: what is followed, what is waited for, how it exits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from genmill.answers import OnPause
from genmill.backfill.manifest import Manifest
from genmill.cli import options
from genmill.cli.app import main
from genmill.cli.backfill import Bar
from genmill.cli.screen import Exit, Screen
from genmill.client import Client

A, B = "batch_a", "batch_b"


def row(seq: int, state: str = "succeeded", **more: Any) -> dict[str, Any]:
    error = None if state == "succeeded" else {"code": "job_failed", "message": "told to"}
    text = {"text": {"text": f"text {seq}"}} if state == "succeeded" else {}
    return {"seq": seq, "custom_id": f"c{seq}", "state": state, "outputs": [], "error": error, **text, **more}


class Api:
    """Batches by id, each with its results; `once` are answers that come first."""

    def __init__(self) -> None:
        self.results: dict[str, list[dict[str, Any]]] = {}
        self.resumes: dict[str, str] = {}
        self.newest = A
        self.sent: list[tuple[str, str, bytes]] = []
        self.queries: list[dict[str, str]] = []
        self.webhooks: list[str | None] = []
        self.once: list[httpx.Response] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.sent.append((request.method, request.url.path, request.read()))
        self.queries.append(dict(request.url.params))
        self.webhooks.append(request.headers.get("genmill-webhook"))
        if self.once:
            return self.once.pop(0)
        if request.method == "POST":
            return httpx.Response(202, json=self.view(self.newest))
        batch_id, _, rest = request.url.path.removeprefix("/v1/batches/").partition("/")
        if batch_id not in self.results:
            return httpx.Response(404, json={"error": {"code": "batch_not_found", "message": "none"}, "errors": []})
        if not rest:
            return httpx.Response(200, json=self.view(batch_id))
        after, limit = int(request.url.params["after"]), int(request.url.params["limit"])
        rows = [one for one in self.results[batch_id] if one["seq"] > after][:limit]
        return httpx.Response(200, content="".join(json.dumps(one) + "\n" for one in rows))

    def view(self, batch_id: str) -> dict[str, Any]:
        rows, resumed = self.results[batch_id], self.resumes.get(batch_id)
        skipped = sum(one["state"] == "succeeded" for one in self.results.get(resumed or "", []))
        counts = {"total": len(rows), "skipped": skipped}
        return {"id": batch_id, "status": "completed", "results": len(rows), "counts": counts, "rate_per_s": 1.0,
                "eta_s": None, "resume_of": resumed}  # fmt: skip

    def posts(self) -> list[Any]:
        return [body for method, _, body in self.sent if method == "POST"]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    api = Api()

    def connect(url: str | None, api_key: str | None, *, on_pause: OnPause) -> Client:
        return Client(url, api_key, transport=httpx.MockTransport(api), on_pause=on_pause)

    monkeypatch.setattr(options, "Client", connect)
    monkeypatch.setenv("GENMILL_URL", "http://api.test")
    monkeypatch.setattr("genmill.backfill.run.AWAY_S", 0.0)
    monkeypatch.setattr("genmill.answers.TRIES", 1)
    return api


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"custom_id": "c1"}\n')
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["backfill", *arguments])
    captured = capsys.readouterr()
    return int(caught.value.code or 0), captured.out, captured.err


def ends(folder: Path) -> list[tuple[str, str]]:
    records = [json.loads(one) for one in (folder / "manifest.jsonl").read_text().splitlines()]
    return [(one["custom_id"], one["state"]) for one in records if "state" in one]


def test_what_succeeds_is_written_and_what_fails_is_told(
    api: Api, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.results[A] = [row(1), row(2, "failed"), row(3)]
    out = tmp_path / "out"

    code, printed, told = run(capsys, str(lines), "-o", str(out))

    assert (code, printed) == (
        Exit.NOT_DONE,
        "2 of 3 lines succeeded, 1 failed; --again runs once more what did not succeed\n",
    )
    assert told == "c2: job_failed: told to\n"
    assert (out / "c3.txt").read_text() == "text 3"
    assert ends(out) == [("c1", "succeeded"), ("c2", "failed"), ("c3", "succeeded")]
    assert api.posts() == [lines.read_bytes()]

    code, printed, _ = run(capsys, str(lines), "-o", str(out), "--json")
    assert code == Exit.NOT_DONE
    assert json.loads(printed) == {
        "batch": A, "status": "completed", "total": 3, "succeeded": 2, "failed": 1,
        "manifest": str(out / "manifest.jsonl"),
    }  # fmt: skip
    assert len(api.posts()) == 1
    assert len(ends(out)) == 3


def test_without_a_terminal_a_line_now_and_then_tells_how_far_it_is(
    api: Api, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    bar = Bar(Screen(is_json=False), None, lambda: now[0])
    api.results[A] = [row(1), row(2)]
    batch = {**api.view(A), "status": "in_progress", "eta_s": 61.0}
    with Manifest(tmp_path, lines) as manifest:
        manifest.begin(A)
        manifest.enter(A, [{"seq": 1, "custom_id": "c1", "state": "failed", "files": [], "error": None}])
        for now[0] in (9.9, 10.0, 19.9, 20.0):
            bar.progress(batch, manifest)
        Bar(Screen(is_json=True), None, lambda: now[0] + 99).progress(batch, manifest)
    assert capsys.readouterr().err == "1 of 2 done, in_progress, 1 failed, 1.0/s, 0:01:01 left\n" * 2


def test_the_webhook_goes_with_the_lines(
    api: Api, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.results[A] = [row(1)]
    run(capsys, str(lines), "-o", str(tmp_path / "out"), "--webhook", "https://hooks.example/batch?a=b")
    assert (api.queries[0], api.webhooks[0]) == ({"priority": "p3"}, "https://hooks.example/batch?a=b")


def test_again_runs_what_failed_as_a_batch_of_its_own(
    api: Api, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.results[A] = [row(1), row(2, "failed"), row(3)]
    out = tmp_path / "out"
    run(capsys, str(lines), "-o", str(out))
    api.results[B], api.resumes[B], api.newest = [row(1, custom_id="c2")], A, B

    code, printed, _ = run(capsys, str(lines), "-o", str(out), "--again")

    assert (code, printed) == (Exit.OK, "3 of 3 lines succeeded\n")
    assert json.loads(api.posts()[-1]) == {"resume_of": A}
    assert ends(out) == [("c1", "succeeded"), ("c2", "failed"), ("c3", "succeeded"), ("c2", "succeeded")]


def test_a_new_folder_gets_what_an_earlier_batch_of_the_lines_made(
    api: Api, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.results = {A: [row(1), row(2, "failed"), row(3)], B: [row(1, custom_id="c2")]}
    api.resumes, api.newest = {B: A}, B
    assert run(capsys, str(lines), "-o", str(tmp_path / "new"))[0] == Exit.OK
    assert sorted(ends(tmp_path / "new")) == [("c1", "succeeded"), ("c2", "succeeded"), ("c3", "succeeded")]


def test_a_server_that_is_away_is_waited_for_and_a_refusal_is_not(
    api: Api, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    api.results[A] = [row(1)]
    away = {"error": {"code": "store_unavailable", "message": "Redis is away"}, "errors": []}
    api.once = [httpx.Response(503, json=away), httpx.Response(503, json=away)]
    code, _, told = run(capsys, str(lines), "-o", str(tmp_path / "one"))
    assert code == Exit.OK
    assert told == "Redis is away; trying again\n" * 2

    fault = {"line": 1, "pointer": "/model", "detail": "model: must be given"}
    problem = {"error": {"code": "batch_invalid", "message": "1 line is not valid"}, "errors": [fault]}
    api.once = [httpx.Response(422, json=problem)]
    code, _, told = run(capsys, str(lines), "-o", str(tmp_path / "two"))
    assert (code, told) == (Exit.REFUSED, "genmill: line 1 /model: must be given\n")
    api.once = [httpx.Response(503, json=away)]
    assert run(capsys, str(lines), "-o", str(tmp_path / "three"), "--patience", "0")[0] == Exit.UNAVAILABLE


def test_links_that_have_expired_are_asked_for_anew(
    api: Api, lines: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = {"url": "http://api.test/v1/batches/old", "content_type": "image/png", "bytes": 3}
    image = row(1, outputs=[output])
    del image["text"]
    api.results[A] = [image]
    gone = {"error": {"code": "output_expired", "message": "too old"}, "errors": []}
    answers = [
        httpx.Response(202, json=api.view(A)), httpx.Response(200, content=json.dumps(image)),
        httpx.Response(410, json=gone), httpx.Response(200, content=json.dumps(image)),
        httpx.Response(200, content=b"png"),
    ]  # fmt: skip
    api.once = answers
    assert run(capsys, str(lines), "-o", str(tmp_path / "out"))[0] == Exit.OK
    assert (tmp_path / "out" / "c1.png").read_bytes() == b"png"


def test_a_source_that_is_not_there_is_named(api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, told = run(capsys, str(tmp_path / "none"), "-o", str(tmp_path / "out"))
    assert code == Exit.USAGE
    assert "there is no file" in told
    assert not (tmp_path / "out").exists()
