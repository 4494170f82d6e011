"""The command line: what it sends, what it prints, how it exits."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image
from redis import Redis

from genmill import api_keys
from genmill.cli.app import cli
from genmill.cli.screen import Exit
from genmill.events import Delta, Narrator, Place, Snapshot
from genmill.jobs import JobState
from genmill.settings import Settings
from genmill.up.folder import DataFolder
from tests.fleet import free_port
from tests.genmill.conftest import JOB_ID, PROMPT, Api, Run, view
from worker.encoding import encoded
from worker.engines.base import Video

MODELS = {
    "data": [
        {"id": "shapes", "kind": "image", "aliases": ["pictures"]},
        {"id": "captions", "kind": "text", "aliases": []},
    ]
}


def test_submit_prints_the_id_and_sends_only_what_was_given(api: Api, run: Run) -> None:
    api.answers[("POST", "/v1/jobs")] = (202, view("queued"))

    code, out, err = run(
        "submit", "shapes", PROMPT, "--steps", "12", "--negative", "noise", "--priority", "p0", "--deadline", "9.5"
    )

    assert (code, out, err) == (0, f"{JOB_ID}\n", "")
    body = api.sent[0][2]
    assert (body["deadline_s"], "best_effort" in body) == (9.5, False)
    assert body["input"] == {"prompt": PROMPT, "steps": 12, "negative_prompt": "noise"}
    assert body["priority"] == "p0"


def test_a_job_may_wait_for_others_and_take_its_prompt_from_one(api: Api, run: Run) -> None:
    reference = {"from": "job:01aa", "path": "text"}
    waiting = {"reason": "dependency", "jobs": ["01aa", "01bb"]}
    api.answers[("POST", "/v1/jobs")] = (202, view("queued"))
    api.answers[("GET", f"/v1/jobs/{JOB_ID}")] = shown = view(
        "queued", input={"prompt": reference}, waiting_for=waiting
    )
    api.answers[("GET", "/v1/jobs")] = {"data": [shown], "has_more": False}

    more = json.dumps({"prompt": reference})
    assert run("submit", "shapes", "", "--depends-on", "01aa", "--depends-on", "01bb", "--input", more)[0] == 0
    assert api.sent[0][2] == {"model": "shapes", "input": {"prompt": reference}, "depends_on": ["01aa", "01bb"]}
    _, facts, _ = run("jobs", "show", JOB_ID)
    assert "job:01aa, job:01bb" in facts
    assert "job:01aa/text" in facts
    assert "job:01aa/text" in run("jobs", "list")[1]


def test_a_quota_that_is_waited_for_is_told_of(api: Api, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(pause_s: float) -> None:
        slept.append(pause_s)
        api.answers[("POST", "/v1/jobs")] = (202, view("queued"))

    monkeypatch.setattr(time, "sleep", sleep)
    told = {"message": "100 submissions a minute", "code": "limit_reached"}
    api.answers[("POST", "/v1/jobs")] = (429, {"error": told}, {"retry-after": "40"})
    code, out, err = run("submit", "shapes", PROMPT)
    assert (code, out, slept) == (0, f"{JOB_ID}\n", [40.0])
    assert err == "100 submissions a minute; trying again in 40 s\n"


def test_a_quota_that_is_there_again_tomorrow_is_told_at_once(api: Api, run: Run) -> None:
    told = {"message": "3600 GPU-seconds a day", "code": "limit_reached"}
    api.answers[("POST", "/v1/jobs")] = (429, {"error": told}, {"retry-after": "65606"})
    code, out, err = run("submit", "shapes", PROMPT)
    assert (code, out, err) == (Exit.UNAVAILABLE, "", "genmill: 3600 GPU-seconds a day; try again in 18:13:26\n")


def test_ctrl_c_says_that_the_job_goes_on(api: Api, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("genmill.cli.submit.watch", interrupted)
    api.answers[("POST", "/v1/jobs")] = (202, view("queued"))
    code, _, err = run("submit", "shapes", PROMPT, "--wait")
    assert code == Exit.INTERRUPTED
    assert err.splitlines()[0] == f"job {JOB_ID} goes on: genmill jobs watch {JOB_ID}, or genmill jobs cancel {JOB_ID}"


def test_ctrl_c_while_the_command_is_imported_is_no_traceback() -> None:
    code = "import sys, genmill.cli\nclass Stop:\n def find_spec(self, *_): raise KeyboardInterrupt\n"
    code += "sys.meta_path.insert(0, Stop())\ngenmill.cli.main()"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (Exit.INTERRUPTED, "genmill: interrupted\n")


def test_faults_of_several_lines_stand_one_below_the_other(api: Api, run: Run) -> None:
    faults = [{"pointer": "/model", "detail": "there is no such model", "line": line} for line in (1, 7)]
    told = {"message": "two lines", "code": "invalid_request"}
    api.answers[("POST", "/v1/jobs")] = (422, {"error": told, "errors": faults})
    assert run("submit", "shapes", PROMPT)[2] == (
        "genmill: 2 faults\n  line 1 /model: there is no such model\n  line 7 /model: there is no such model\n"
    )


def test_words_without_quotes_and_a_call_without_a_key_get_a_hint(api: Api, run: Run) -> None:
    code, _, err = run("submit", "shapes", *PROMPT.split())
    assert (code, "A text of several words stands in quotes." in err) == (Exit.USAGE, True)
    api.answers[("POST", "/v1/jobs")] = (401, {"error": {"message": "A key is needed.", "code": "unauthorized"}})
    assert run("submit", "shapes", PROMPT)[2] == "genmill: A key is needed. (--api-key or GENMILL_API_KEY)\n"


def test_submit_waits_and_writes_the_image(api: Api, run: Run, tmp_path: Path) -> None:
    api.answers[("POST", "/v1/jobs")] = (202, view("queued"))
    api.answers[("GET", f"/v1/jobs/{JOB_ID}")] = view()
    api.answers[("GET", f"/v1/outputs/{JOB_ID}/1/0.png")] = b"picture"
    path = tmp_path / "new" / "circle.png"

    code, out, _ = run("submit", "shapes", PROMPT, "-o", str(path))

    assert code == 0
    assert out == f"{path}\n"
    assert path.read_bytes() == b"picture"


@pytest.mark.parametrize(("name", "form"), [("c.jpg", "JPEG"), ("c.WEBP", "WEBP"), ("c", "PNG")])
def test_the_suffix_tells_the_image_format(api: Api, run: Run, tmp_path: Path, name: str, form: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "PNG")
    api.answers[("POST", "/v1/jobs")] = view()
    api.answers[("GET", f"/v1/outputs/{JOB_ID}/1/0.png")] = buffer.getvalue()

    assert run("submit", "shapes", PROMPT, "-o", str(tmp_path / name))[0] == 0
    with Image.open(tmp_path / name) as image:
        assert (image.format, image.size) == (form, (8, 8))


def test_at_80_columns_a_job_is_one_line(api: Api, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genmill.cli.screen.PIPE_WIDTH", 80)
    ids = ["0" * 25 + digit for digit in "12"]
    api.answers[("GET", "/v1/jobs")] = {"data": [view(id=one) for one in ids], "has_more": False}

    lines = run("jobs", "list")[1].splitlines()

    assert [line.split()[:3] for line in lines[1:]] == [[one, "succeeded", "shapes"] for one in ids]
    assert all(len(line) <= 80 and "a red" in line for line in lines[1:])


def test_a_suffix_that_is_no_format_is_refused_before_anything_is_submitted(
    api: Api, run: Run, tmp_path: Path
) -> None:
    api.answers[("GET", "/v1/models")] = MODELS
    for model in ("shapes", "pictures"):
        code, out, told = run("submit", model, PROMPT, "-o", str(tmp_path / "c.xyz"))
        assert (code, out) == (Exit.USAGE, "")
        assert "no picture is written as .xyz: name it .png, .jpg, .webp or .gif" in told
    assert {method for method, *_ in api.sent} == {"GET"}


@pytest.mark.parametrize(("name", "form"), [("v.webp", "WEBP"), ("v.gif", "GIF")])
def test_a_video_keeps_its_frames_and_their_time(api: Api, run: Run, tmp_path: Path, name: str, form: str) -> None:
    frames = tuple(Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue"))
    body = encoded(Video(frames, fps=10)).body
    shown = [{"url": "http://api.test/0.webp", "content_type": "image/webp", "frames": 3, "fps": 10}]
    api.answers = {("POST", "/v1/jobs"): view(outputs=shown), ("GET", "/0.webp"): body}

    assert run("submit", "film", PROMPT, "--frames", "3", "--fps", "10", "-o", str(tmp_path / name))[0] == 0
    assert api.sent[0][2]["input"] == {"prompt": PROMPT, "num_frames": 3, "fps": 10}
    with Image.open(tmp_path / name) as video:
        assert (video.format, video.n_frames) == (form, 3)
        video.load()
        assert video.info["duration"] == 100
    assert run("submit", "film", PROMPT, "-o", str(tmp_path / "v.jpg"))[0] == Exit.USAGE
    assert not (tmp_path / "v.jpg").exists()


def test_several_images_are_numbered(api: Api, run: Run, tmp_path: Path) -> None:
    two = [{"url": f"http://api.test/{n}.png", "content_type": "image/png"} for n in range(2)]
    api.answers = {("POST", "/v1/jobs"): view(outputs=two), ("GET", "/0.png"): b"0", ("GET", "/1.png"): b"1"}

    code, out, _ = run("submit", "shapes", PROMPT, "--images", "2", "-o", str(tmp_path / "x.png"), "--json")

    assert code == 0
    assert json.loads(out)["files"] == [str(tmp_path / f"x-{n}.png") for n in range(2)]
    assert [(tmp_path / f"x-{n}.png").read_bytes() for n in range(2)] == [b"0", b"1"]


def test_a_text_is_printed_or_written(api: Api, run: Run, tmp_path: Path) -> None:
    text = view(model="captions", outputs=[], text={"text": " circle on a blue background"})
    api.answers[("POST", "/v1/jobs")] = text

    code, out, _ = run("submit", "captions", "a red", "--wait")
    assert code == 0
    assert out.startswith(" circle on a blue background\n")

    api.answers[("GET", "/v1/models")] = MODELS
    run("submit", "captions", "a red", "-o", str(tmp_path / "t.txt"))
    assert (tmp_path / "t.txt").read_text() == " circle on a blue background"


@pytest.mark.parametrize("state", ["failed", "canceled", "expired"])
def test_the_exit_code_tells_how_a_job_ended(api: Api, run: Run, state: str) -> None:
    error = {"code": "generation_failed", "message": "NaN [/] in the latents"}
    api.answers[("POST", "/v1/jobs")] = view(state, outputs=[], receipt=None, error=error)

    code, out, _ = run("submit", "shapes", PROMPT, "--wait")

    assert code == Exit.NOT_DONE
    assert "generation_failed: NaN [/] in the latents" in out  # never read as markup


def test_waiting_ends_when_time_is_up_and_the_job_goes_on(api: Api, run: Run) -> None:
    api.answers[("POST", "/v1/jobs")] = view("running")
    api.answers[("GET", f"/v1/jobs/{JOB_ID}")] = view("running")

    code, out, err = run("submit", "shapes", PROMPT, "--wait", "--timeout", "0.01")

    assert code == Exit.TIMED_OUT
    assert out == ""
    assert err.startswith(f"genmill: job {JOB_ID} is still running after")


def test_the_prompt_may_come_from_stdin(api: Api, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    api.answers[("POST", "/v1/jobs")] = view("queued")
    monkeypatch.setattr("sys.stdin", io.StringIO(PROMPT))

    run("submit", "shapes", "-")

    assert api.sent[0][2]["input"]["prompt"] == PROMPT


def test_an_init_image_goes_along_and_a_missing_one_is_named(api: Api, run: Run, tmp_path: Path) -> None:
    api.answers[("POST", "/v1/jobs")] = view("queued")
    (tmp_path / "start.png").write_bytes(b"pixels")

    run("submit", "shapes", PROMPT, "--init", str(tmp_path / "start.png"), "--strength", "0.5")
    sent = api.sent[0][2]["input"]
    assert sent["init_image"] == "data:image/png;base64," + base64.b64encode(b"pixels").decode()
    assert sent["strength"] == 0.5

    code, _, err = run("submit", "shapes", PROMPT, "--init", "no.png")
    assert code == Exit.USAGE
    assert "there is no file no.png" in err


def test_masks_adapters_and_controls(api: Api, run: Run, tmp_path: Path) -> None:
    api.answers[("POST", "/v1/jobs")] = view("queued")
    path = tmp_path / "a.png"
    path.write_bytes(b"pixels")
    uri = "data:image/png;base64," + base64.b64encode(b"pixels").decode()

    run("submit", "shapes", PROMPT, "--init", str(path), "--mask", str(path), "--lora", "ink:0.8", "--lora", "neon")
    sent = api.sent[0][2]["input"]
    assert (sent["init_image"], sent["mask_image"]) == (uri, uri)
    assert sent["loras"] == [{"name": "ink", "weight": 0.8}, {"name": "neon"}]

    run("submit", "shapes", PROMPT, "--control", f"canny:{path}:0.5")
    assert api.sent[1][2]["input"]["control"] == {"name": "canny", "image": uri, "scale": 0.5}


@pytest.mark.parametrize(
    ("given", "image", "scale"),
    [
        ("canny:http://host/a.png", "http://host/a.png", None),
        ("canny:http://host/a.png:1.5", "http://host/a.png", 1.5),
        ("canny:http://host:8080", "http://host:8080", None),
        ("canny:https://host:8080/a.png:2", "https://host:8080/a.png", 2.0),
        ("canny:file:file_1", "file:file_1", None),
        ("canny:file:1", "file:1", None),
        ("canny:file:file_1:0", "file:file_1", 0.0),
        ("canny:data:image/png;base64,AA==", "data:image/png;base64,AA==", None),
    ],
)
def test_an_image_to_follow_may_have_colons(given: str, image: str, scale: float | None, api: Api, run: Run) -> None:
    api.answers[("POST", "/v1/jobs")] = view("queued")
    run("submit", "shapes", PROMPT, "--control", given)
    wanted = {"name": "canny", "image": image} | ({} if scale is None else {"scale": scale})
    assert api.sent[0][2]["input"]["control"] == wanted


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--lora", "ink:much"), "'much' is not a number"),
        (("--control", "canny"), "NAME:IMAGE"),
        (("--control", "canny:"), "NAME:IMAGE"),
        (("--control", ":a.png"), "NAME:IMAGE"),
        (("--control", "canny:no.png:0.5"), "there is no file no.png"),
        (("--mask", "no.png"), "there is no file no.png"),
    ],
)
def test_options_that_cannot_be_are_named(options: tuple[str, ...], words: str, api: Api, run: Run) -> None:
    code, _, err = run("submit", "shapes", PROMPT, *options)
    assert code == Exit.USAGE
    assert words in err
    assert api.sent == []


def test_a_refusal_names_field_limit_and_value_in_one_line(api: Api, run: Run) -> None:
    fault = {"pointer": "/input/steps", "detail": "steps must be\n between 1 and 100", "limit": "1..100", "value": "0"}
    problem = {"error": {"code": "invalid_request", "message": "steps"}, "errors": [fault]}
    api.answers[("POST", "/v1/jobs")] = (422, problem)

    code, out, err = run("submit", "shapes", PROMPT, "--steps", "0")
    assert (code, out) == (Exit.REFUSED, "")
    assert err == "genmill: /input/steps: steps must be between 1 and 100 (limit 1..100, value 0)\n"

    code, out, err = run("submit", "shapes", PROMPT, "--steps", "0", "--json")
    assert (code, out) == (Exit.REFUSED, "")
    assert json.loads(err)["error"]["errors"][0]["limit"] == "1..100"


def test_jobs_list_shows_a_row_for_each(api: Api, run: Run) -> None:
    listed = [view(), view("queued", id="01jr", input={"prompt": "[bold]x"})]
    api.answers[("GET", "/v1/jobs")] = {"data": listed, "has_more": False}

    code, out, _ = run("jobs", "list", "--state", "succeeded")
    assert code == 0
    assert JOB_ID in out
    assert "[bold]x" in out
    assert [job["id"] for job in json.loads(run("jobs", "list", "--json")[1])] == [JOB_ID, "01jr"]


def test_jobs_show_and_watch(api: Api, run: Run) -> None:
    api.answers[("GET", f"/v1/jobs/{JOB_ID}")] = view()

    for command in ("show", "watch"):
        code, out, _ = run("jobs", command, JOB_ID)
        assert code == 0
        assert f"{JOB_ID} succeeded" in out
        assert "3.5 on average, 8 at most" in out


def test_an_unknown_job_is_refused(api: Api, run: Run) -> None:
    problem = {"error": {"code": "job_not_found", "message": "There is no job 'x'"}, "errors": []}
    api.answers[("GET", "/v1/jobs/x")] = (404, problem)

    assert run("jobs", "show", "x") == (Exit.REFUSED, "", "genmill: There is no job 'x'\n")


@pytest.mark.parametrize(("did", "code"), [("dequeued", 0), ("interrupting", 0), ("too_late", 1)])
def test_cancel_says_what_it_did(api: Api, run: Run, did: str, code: int) -> None:
    api.answers[("GET", f"/v1/jobs/{JOB_ID}")] = view("running")
    api.answers[("POST", f"/v1/jobs/{JOB_ID}/cancel")] = view("canceled", cancel=did)

    got, out, _ = run("jobs", "cancel", JOB_ID)

    assert got == code
    assert out.startswith(JOB_ID)


def test_cancel_of_several_tells_of_each_also_of_one_that_is_not_known(api: Api, run: Run) -> None:
    api.answers[("GET", f"/v1/jobs/{JOB_ID}")] = view("running")
    api.answers[("POST", f"/v1/jobs/{JOB_ID}/cancel")] = view("canceled", cancel="dequeued")
    problem = {"error": {"code": "job_not_found", "message": "There is no job 'nope'"}, "errors": []}
    api.answers[("GET", "/v1/jobs/nope")] = (404, problem)

    code, out, _ = run("jobs", "cancel", JOB_ID, "nope")

    assert code == 1
    assert out.splitlines() == [f"{JOB_ID} canceled before it started", "nope is not known"]


@pytest.mark.parametrize("url", ["nonsense", "ftp://api.test", "http://"])
def test_an_address_that_is_none_is_refused_at_once(run: Run, url: str) -> None:
    code, _, err = run("status", "--url", url)

    assert code == Exit.REFUSED
    assert repr(url) in err


def test_env_gives_a_shell_what_workers_need(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = DataFolder(tmp_path / "a folder")
    with folder.locked():
        folder.secret_key()
        folder.note_redis_url("redis://127.0.0.1:7/0")
    for name in [name for name in os.environ if name.startswith(("GENMILL_", "RQ_"))]:
        monkeypatch.delenv(name)

    code, out, _ = run("env", "--data", str(folder.path))
    names = "$GENMILL_STORAGE_URL $RQ_REDIS_URL $RQ_WORKER_CLASS $GENMILL_SECRET_KEY $GOMP_SPINCOUNT"
    shown = subprocess.run(
        ["/bin/sh", "-c", f'{out}\necho {names}'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert code == 0
    assert shown.stdout.split() == [
        folder.outputs.as_uri(), "redis://127.0.0.1:7/0", "worker.BatchWorker", folder.secret_key(), "1000",
    ]  # fmt: skip
    assert run("env", "--data", str(tmp_path / "none"))[0] == Exit.REFUSED


def test_a_folder_that_is_named_goes_before_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DataFolder(tmp_path / "mine")
    with folder.locked():
        folder.note_redis_url("redis://127.0.0.1:7/0")
    monkeypatch.setenv("GENMILL_REDIS_URL", "redis://127.0.0.1:9/0")

    assert json.loads(run("env", "--json", "--data", str(folder.path))[1])["GENMILL_REDIS_URL"].endswith(":7/0")
    assert run("doctor", "--data", str(tmp_path / "none"))[0] == Exit.REFUSED
    monkeypatch.chdir(tmp_path)
    assert json.loads(run("env", "--json")[1])["GENMILL_REDIS_URL"].endswith(":9/0")


def test_status_and_models(api: Api, run: Run) -> None:
    worker = {"name": "w1", "queues": "p0,p1", "state": "busy", "successful_job_count": None, "genmill": "0.1"}
    plain = {**worker, "name": "w2", "genmill": None}
    state = {"queues": {"p0": 3}, "running": 2, "is_suspended": True, "workers": [worker, plain]}
    limits = {"min_size": 64, "max_size": 128, "max_steps": 100, "max_images": 4}
    model = {"id": "shapes", "kind": "image", "limits": limits, "description": "small"}
    api.answers = {("GET", "/v1/status"): state, ("GET", "/v1/models"): {"data": [model]}}

    out = run("status")[1]
    assert "running 2, suspended" in out
    assert "w1" in out
    assert json.loads(run("status", "--json")[1]) == state
    assert "64-128 px, 100 steps, 4 images" in run("models")[1]


def test_the_webhook_secret_comes_from_the_api_or_the_signing_key(
    api: Api, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.answers[("GET", "/v1/webhooks/default/secret")] = {"key": "whsec_abc"}
    monkeypatch.setenv("GENMILL_SECRET_KEY", "0123456789abcdef")

    assert run("webhook-secret")[1] == "whsec_abc\n"
    assert run("webhook-secret", "--tenant", "acme")[1].startswith("whsec_")


def test_keys_are_made_listed_and_revoked(
    run: Run, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENMILL_REDIS_URL", settings.redis_url)

    key = run("keys", "create", "acme", "--name", "laptop")[1].strip()
    known = api_keys.identify(redis, key)
    assert known is not None
    assert known.tenant == "acme"
    (listed,) = json.loads(run("keys", "list", "--json")[1])
    assert listed["name"] == "laptop"
    assert run("keys", "revoke", listed["key_id"])[0] == 0
    assert run("keys", "list")[1] == "no keys\n"
    assert run("keys", "revoke", "nope") == (Exit.REFUSED, "", "genmill: There is no such API key\n")


def test_keys_find_the_redis_of_the_data_folder(
    run: Run, redis: Redis, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GENMILL_REDIS_URL", raising=False)
    (tmp_path / "redis.url").write_text(settings.redis_url + "\n")

    assert run("keys", "list", "--data", str(tmp_path))[1] == "no keys\n"
    code, _, err = run("keys", "list", "--data", str(tmp_path / "none"))
    assert code == Exit.REFUSED
    assert "no Redis is known: set GENMILL_REDIS_URL" in err


def test_a_dead_redis_is_unavailable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENMILL_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")

    code, _, err = run("keys", "list")

    assert code == Exit.UNAVAILABLE
    assert err.startswith("genmill: Redis cannot be reached")


def test_nobody_listening_is_told_at_once(run: Run) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    code, out, err = run("status", "--url", url)

    assert (code, out) == (Exit.UNAVAILABLE, "")
    assert err.startswith(f"genmill: nothing listens at {url}; genmill up")


@pytest.mark.parametrize("arguments", [["nonsense"], ["submit", "shapes"], ["submit", "m", "p", "--metadata", "["]])
def test_wrong_usage_exits_with_two(run: Run, arguments: list[str]) -> None:
    code, out, err = run(*arguments)

    assert (code, out) == (Exit.USAGE, "")
    assert "Error:" in err


def test_every_command_has_help_and_json() -> None:
    commands = [cli.commands[name] for name in cli.commands]
    leaves = [leaf for command in commands for leaf in getattr(command, "commands", {"": command}).values()]

    expected = {
        "up",
        "demo",
        "submit",
        "backfill",
        "batches",
        "jobs",
        "status",
        "models",
        "keys",
        "tenants",
        "limits",
        "usage",
        "audit",
        "profile",
        "doctor",
        "env",
        "webhook-secret",
    }
    assert set(cli.commands) == expected
    for leaf in leaves:
        assert leaf.help
        if leaf.name != "up":  # it prints the logs of its processes until it is stopped
            assert any("--json" in parameter.opts for parameter in leaf.params), leaf.name


def events_of(text: str) -> bytes:
    """The stream of a job that wrote this."""
    narrator = Narrator(Place())
    events = narrator.hear(Snapshot(JobState.RUNNING, 1))
    events += [event for n, letter in enumerate(text) for event in narrator.read(Delta(1, n, letter))]
    events += narrator.end(JobState.SUCCEEDED, 1, {"text": {"text": text}, "outputs": [], "error": None})
    return "".join(event.encode() for event in events).encode()


def test_submit_stream_shows_the_text_as_it_comes(api: Api, run: Run) -> None:
    wrote = {"text": {"text": "a ring"}, "input": {"prompt": "a", "kind": "text"}, "outputs": []}
    api.answers[("POST", "/v1/jobs")] = (202, view("queued", **wrote))
    api.answers[("GET", f"/v1/jobs/{JOB_ID}/events")] = events_of("a ring")
    api.answers[("GET", f"/v1/jobs/{JOB_ID}")] = view(**wrote)

    code, out, _ = run("submit", "captions", "a", "--stream")

    assert code == 0
    assert out.startswith(f"a ring\n{JOB_ID} succeeded")
    assert out.count("a ring") == 1
    assert api.sent[0][2]["stream"] is True


def test_watch_stream_prints_events_as_lines_of_json(api: Api, run: Run) -> None:
    api.answers[("GET", f"/v1/jobs/{JOB_ID}/events")] = events_of("ab")
    api.answers[("GET", f"/v1/jobs/{JOB_ID}")] = view()

    code, out, _ = run("jobs", "watch", JOB_ID, "--stream", "--json")

    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["kind"] for event in events] == ["state", "token", "token", "output", "state"]
    assert (events[1]["text"], events[-1]["state"]) == ("a", "succeeded")


def test_watch_stream_of_pictures_ends_with_the_facts(api: Api, run: Run) -> None:
    api.answers[("GET", f"/v1/jobs/{JOB_ID}/events")] = events_of("")
    api.answers[("GET", f"/v1/jobs/{JOB_ID}")] = view()

    code, out, _ = run("jobs", "watch", JOB_ID, "--stream")

    assert (code, out.splitlines()[0]) == (0, f"{JOB_ID} succeeded")


def test_no_command_is_cut_in_the_help_at_80_columns() -> None:
    told = CliRunner().invoke(cli, ["--help"], terminal_width=80).output.partition("Commands:")[2]
    assert len(told.strip().splitlines()) == len(cli.commands)
    assert "..." not in told
