"""Webhooks of predictions, sent by the worker itself, validated by replicate's and openai's own code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import replicate
from replicate.webhook import InvalidSignatureError, Webhooks

from tests.compat.conftest import Served
from tests.compat.prompt_worker import PromptWorker
from tests.fleet import eventually
from tests.receiver import Delivery, receiving

SHAPES = "genmill/shapes"


@pytest.fixture
def _deliveries(served: Served) -> Iterator[None]:
    process = served.fleet.worker(queues="callbacks", name="callbacks")
    yield
    process.stop()


def statuses(deliveries: list[Delivery]) -> list[str]:
    return [json.loads(delivery.body)["status"] for delivery in deliveries]


@pytest.mark.usefixtures("_deliveries")
def test_the_whole_prediction_signed(
    served: Served, worker: PromptWorker, replicate_client: replicate.Client, openai_client: openai.OpenAI
) -> None:
    with receiving() as receiver:
        hold: dict[str, Any] = {"model": SHAPES, "input": {"prompt": "hold it"}, "webhook": receiver.url}
        prediction = replicate_client.models.predictions.create(**hold)
        eventually(lambda: len(receiver.deliveries) == 1)
        assert statuses(receiver.deliveries) == ["processing"]
        worker.release()
        eventually(lambda: len(receiver.deliveries) == 2)
    secret = replicate_client.webhooks.default.secret()
    for delivery in receiver.deliveries:
        text = delivery.body.decode()
        Webhooks.validate(headers=delivery.headers, body=text, secret=secret, tolerance=60)
        with pytest.raises(InvalidSignatureError):
            Webhooks.validate(headers=delivery.headers, body=text + " ", secret=secret)
        openai_client.webhooks.verify_signature(text, delivery.headers, secret=secret.key)
    prediction.reload()
    told = replicate.prediction.Prediction(**json.loads(receiver.deliveries[1].body))
    without_links = {"output", "urls"}
    assert told.dict(exclude=without_links) == prediction.dict(exclude=without_links)
    assert told.output is not None
    assert len({delivery.message_id for delivery in receiver.deliveries}) == 2


@pytest.mark.usefixtures("_deliveries")
@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        (["start"], ["processing"]),
        (["completed"], ["succeeded"]),
        (["output", "logs"], ["succeeded"]),
        (["logs"], []),
    ],
)
def test_the_filter(
    events: list[str], wanted: list[str], served: Served, worker: PromptWorker, replicate_client: replicate.Client
) -> None:
    with receiving() as receiver, receiving() as last:
        prediction = replicate_client.models.predictions.create(
            model=SHAPES, input={"prompt": "hold it"}, webhook=receiver.url, webhook_events_filter=events
        )
        eventually(lambda: receiver.deliveries if "start" in events else worker.taken)
        worker.release()
        prediction.wait()
        replicate_client.models.predictions.create(
            model=SHAPES, input={"prompt": "a red circle"}, webhook_completed=last.url
        )
        eventually(lambda: last.deliveries)  # the queue is in order, so what was due before has come
    assert statuses(receiver.deliveries) == wanted
    assert statuses(last.deliveries) == ["succeeded"]
