"""The operations of webhook deliveries, of jobs and of batches."""

from __future__ import annotations

from collections.abc import Iterator

from api.operation import (
    ABSENT,
    BODY,
    IDEMPOTENCY,
    INVALID,
    LIMITED,
    RATE,
    READ,
    Operation,
    json_answer,
    json_body,
)

_NOTHING = {422: "It has no webhook, none was due yet, or the delivery is not known; `errors` tells"}


def _operations(owner: str, path: str) -> Iterator[Operation]:
    yield Operation(
        "get", f"{path}/deliveries", f"read{owner}Deliveries",
        f"Read what became of the webhooks of a {owner.lower()}, the latest first",
        {200: json_answer("All of them", "DeliveryList")}, READ | ABSENT,
    )  # fmt: skip
    yield Operation(
        "post", f"{path}/redeliver", f"redeliver{owner}",
        f"Send the webhook of a {owner.lower()} once more, under the same webhook-id",
        {202: json_answer("It will be sent", "Redelivery", RATE)},
        READ | ABSENT | INVALID | BODY | LIMITED | _NOTHING, (IDEMPOTENCY,),
        json_body("RedeliverBody", {}), is_body_needed=False,
    )  # fmt: skip


DELIVERY_OPERATIONS = (*_operations("Job", "/v1/jobs/{job_id}"), *_operations("Batch", "/v1/batches/{batch_id}"))
