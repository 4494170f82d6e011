"""replicate 1.0.7, unmodified, against the served API."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import httpx
import pytest
import replicate
from PIL import Image
from replicate.exceptions import ModelError, ReplicateError
from replicate.helpers import FileOutput
from replicate.pagination import paginate

from genmill.predictions import version_of
from genmill.registry import load_registry
from tests.api.pictures import picture
from tests.compat.conftest import Served
from tests.compat.prompt_worker import WORDS, PromptWorker
from tests.fleet import eventually

SHAPES, CAPTIONS = "genmill/shapes", "genmill/captions"
CIRCLE = {"prompt": "a red circle"}
VERSIONS = {spec.name: version_of(spec) for spec in load_registry().models}


def test_run_of_a_model_gives_links_that_the_token_opens_without_a_redirect(
    served: Served, worker: PromptWorker, replicate_client: replicate.Client
) -> None:
    links = replicate_client.run(SHAPES, input={**CIRCLE, "num_images": 2})
    assert [type(link) for link in links] == [str, str]  # over http the client leaves them as they are
    for link in links:
        answer = httpx.get(link, headers={"authorization": f"Bearer {served.keys['alice']}"})
        assert answer.status_code == 200
        assert Image.open(BytesIO(answer.content)).size == (64, 64)


def test_over_tls_outputs_are_files(served: Served, worker: PromptWorker) -> None:
    client = served.replicate(is_secure=True)
    (output,) = client.run(f"{SHAPES}:{VERSIONS['shapes']}", input=CIRCLE)
    assert isinstance(output, FileOutput)
    assert Image.open(BytesIO(output.read())).format == "PNG"
    assert b"".join(output) == output.read()


def test_run_of_a_version_of_a_text_model_iterates(worker: PromptWorker, replicate_client: replicate.Client) -> None:
    chunks = replicate_client.run(f"{CAPTIONS}:{VERSIONS['captions']}", input={"prompt": "a red"})
    assert not isinstance(chunks, list)
    assert "".join(chunks) == WORDS
    assert "".join(replicate_client.run(CAPTIONS, input={"prompt": "a red"})) == WORDS


@pytest.mark.parametrize("owner", ["genmill", "stability-ai"])
@pytest.mark.parametrize("name", ["shapes", "shapes-64"])
def test_any_owner_and_every_alias_names_a_model(
    owner: str, name: str, worker: PromptWorker, replicate_client: replicate.Client
) -> None:
    prediction = replicate_client.models.predictions.create(model=f"{owner}/{name}", input=CIRCLE, wait=True)
    assert (prediction.model, prediction.version) == (SHAPES, VERSIONS["shapes"])
    assert prediction.status == "succeeded"


@pytest.mark.parametrize("version", ["{}", "genmill/shapes", "someone/shapes:{}"])
def test_every_form_of_a_version(version: str, worker: PromptWorker, replicate_client: replicate.Client) -> None:
    given = version.format(VERSIONS["shapes"])
    prediction = replicate_client.predictions.create(version=given, input=CIRCLE)
    assert prediction.status == "starting"
    prediction.wait()
    assert prediction.status == "succeeded"


def test_an_expired_wait_is_starting_and_in_time(worker: PromptWorker, replicate_client: replicate.Client) -> None:
    started = time.monotonic()
    prediction = replicate_client.models.predictions.create(model=SHAPES, input={"prompt": "hold it"}, wait=1)
    assert time.monotonic() - started < 1.5  # the client would have given up
    assert prediction.status == "starting"
    assert prediction.output is None
    prediction.reload()
    assert prediction.status == "processing"
    worker.release()
    prediction.wait()
    assert prediction.status == "succeeded"


def test_run_comes_back_for_what_outlasts_its_wait(worker: PromptWorker, replicate_client: replicate.Client) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(replicate_client.run, SHAPES, input={"prompt": "hold it"}, wait=1)
        time.sleep(1.5)  # past the wait
        assert not running.done()
        worker.release()
        assert len(running.result(10)) == 1


def test_progress_metrics_and_times(worker: PromptWorker, replicate_client: replicate.Client) -> None:
    prediction = replicate_client.models.predictions.create(model=SHAPES, input={"prompt": "hold it"})

    def progress() -> Any:
        prediction.reload()
        return prediction.progress

    seen = eventually(progress)
    assert (seen.current, seen.total, seen.percentage) == (9, 20, 0.45)
    worker.release()
    prediction.wait()
    assert prediction.metrics is not None
    assert prediction.metrics["gpu_time"] == 1.5
    assert prediction.metrics["predict_time"] >= 0
    assert prediction.created_at is not None
    assert prediction.created_at <= (prediction.started_at or "") <= (prediction.completed_at or "")


def test_a_queued_prediction_tells_its_place(replicate_client: replicate.Client) -> None:
    predictions = [replicate_client.models.predictions.create(model=SHAPES, input=CIRCLE) for _ in range(2)]
    metrics = [prediction.metrics or {} for prediction in predictions]
    assert [one["queue_position"] for one in metrics] == [0, 1]
    assert metrics[0]["waiting_for"] == "no_worker"


def test_cancel_queued_and_running(
    served: Served, replicate_client: replicate.Client, request: pytest.FixtureRequest
) -> None:
    queued = replicate_client.models.predictions.create(model=SHAPES, input=CIRCLE)
    queued.cancel()
    assert queued.status == "canceled"
    request.getfixturevalue("worker")
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(replicate_client.run, SHAPES, input={"prompt": "hold it"})
        (running,) = eventually(lambda: [p for p in replicate_client.predictions.list() if p.status == "processing"])
        running.cancel()
        assert result.result(10) is None
    running.wait()
    assert running.status == "canceled"


@pytest.mark.parametrize("prompt", ["fail it", "invalid it"])
def test_a_failure_is_a_model_error(prompt: str, worker: PromptWorker, replicate_client: replicate.Client) -> None:
    with pytest.raises(ModelError, match="as the prompt says") as caught:
        replicate_client.run(SHAPES, input={"prompt": prompt})
    assert caught.value.prediction.status == "failed"


def test_the_list_pages_by_urls(replicate_client: replicate.Client, served: Served) -> None:
    ids = {replicate_client.models.predictions.create(model=SHAPES, input=CIRCLE).id for _ in range(103)}
    served.replicate("bob").models.predictions.create(model=SHAPES, input=CIRCLE)
    pages = list(paginate(replicate_client.predictions.list))
    assert [len(page) for page in pages] == [100, 3]
    assert {prediction.id for page in pages for prediction in page} == ids


def test_models_and_versions(replicate_client: replicate.Client) -> None:
    assert {model.id for model in replicate_client.models.list()} == {SHAPES, CAPTIONS}
    model = replicate_client.models.get("stability-ai/shapes-64")
    assert (model.owner, model.name) == ("genmill", "shapes")
    assert model.latest_version is not None
    (version,) = model.versions.list()
    assert model.versions.get(version.id) == version == model.latest_version
    assert version.openapi_schema["components"]["schemas"]["Input"]["properties"]["width"]["default"] == 64
    with pytest.raises(ReplicateError, match="no version 'x'"):
        model.versions.get("x")


def test_files_live_and_are_inputs(
    served: Served, worker: PromptWorker, replicate_client: replicate.Client, tmp_path: Any
) -> None:
    path = tmp_path / "blue.png"
    path.write_bytes(picture((64, 64), colour="blue"))
    stored = replicate_client.files.create(path, metadata={"a": 1})
    assert (stored.name, stored.content_type, stored.metadata) == ("blue.png", "image/png", {"a": 1})
    assert replicate_client.files.get(stored.id) == stored
    assert [one.id for one in replicate_client.files.list()] == [stored.id]
    with pytest.raises(ReplicateError, match="No such file"):
        served.replicate("bob").files.get(stored.id)

    with path.open("rb") as opened:  # which the client uploads
        for image in (stored.urls["get"], opened):
            (link,) = replicate_client.run(SHAPES, input={**CIRCLE, "image": image})
            shown = Image.open(BytesIO(httpx.get(link).content))
            assert shown.getpixel((0, 0)) == (0, 0, 255)  # the double paints blue what has an init image
    assert replicate_client.files.delete(stored.id) is True
    with pytest.raises(ReplicateError, match="No such file"):
        replicate_client.files.get(stored.id)


BAD: dict[str, tuple[dict[str, Any], int, str]] = {
    "size": ({"input": {**CIRCLE, "width": 65}}, 422, "width must be a multiple of 8, got 65"),
    "other name": ({"input": {**CIRCLE, "num_outputs": 99}}, 422, "num_outputs must be between 1 and 4, got 99"),
    "both names": ({"input": {**CIRCLE, "num_outputs": 1, "num_images": 1}}, 422, "either num_outputs or num_images"),
    "unknown input": ({"input": {**CIRCLE, "apply_watermark": True}}, 422, "apply_watermark"),
    "stream": ({"input": CIRCLE, "stream": "loud"}, 422, "must be true or false"),
    "webhook": ({"input": CIRCLE, "webhook": "ftp://x"}, 422, "must start with https"),
    "events": (
        {"input": CIRCLE, "webhook": "http://127.0.0.1:1/", "webhook_events_filter": ["end"]}, 422, "'completed'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_say_why(case: str, replicate_client: replicate.Client, served: Served) -> None:
    options, status, words = BAD[case]
    with pytest.raises(ReplicateError, match=words) as caught:
        replicate_client.models.predictions.create(model=SHAPES, **options)
    assert caught.value.status == status
    assert not served.redis.keys("rq:job:*")


def test_unknown_models_and_versions(replicate_client: replicate.Client) -> None:
    with pytest.raises(ReplicateError, match="no model 'sdxl'; known: shapes, captions") as caught:
        replicate_client.run("stability-ai/sdxl", input=CIRCLE)
    assert caught.value.status == 404
    with pytest.raises(ReplicateError, match="there is no version 'abc'") as caught:
        replicate_client.predictions.create(version="abc", input=CIRCLE)
    assert caught.value.status == 422


def test_what_is_not_served_is_an_error_that_the_client_reads(replicate_client: replicate.Client) -> None:
    for call in (replicate_client.trainings.list, replicate_client.hardware.list, replicate_client.collections.list):
        with pytest.raises(ReplicateError) as caught:
            call()
        assert (caught.value.status, caught.value.title) == (404, "Not Found")
    with pytest.raises(ReplicateError) as caught:
        replicate_client.models.search("circles")
    assert caught.value.status == 405


def test_another_tenants_prediction_is_not_there(served: Served, replicate_client: replicate.Client) -> None:
    prediction = replicate_client.models.predictions.create(model=SHAPES, input=CIRCLE)
    for call in (served.replicate("bob").predictions.get, served.replicate("bob").predictions.cancel):
        with pytest.raises(ReplicateError) as caught:
            call(prediction.id)
        assert caught.value.status == 404
    prediction.reload()
    assert prediction.status == "starting"
