"""Batches over the session's Valkey: the intake, a worker that ends jobs, the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from redis import Redis

from genmill.batches import BatchOrder, BatchRecord, Intake, Ledger, Line, LineParts, Place, ResultParts
from genmill.batches.results import rows_after
from genmill.errors import JobFailure
from genmill.registry import ModelSpec, load_registry
from genmill.settings import Settings
from genmill.storage import Storage, open_storage
from genmill.store import Outcome, Settlement, Store, Want

CLASSES = ["p0", "p1", "p2", "p3"]


def lines_of(count: int, first: int = 1, **more: Any) -> bytes:
    """`count` lines with the custom_ids line-<first>, ..."""
    rows = [{"custom_id": f"line-{number}", "prompt": "a red", **more} for number in range(first, first + count)]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.fixture(scope="session")
def captions() -> ModelSpec:
    return load_registry().get("captions")


@pytest.fixture
def storage(settings: Settings) -> Storage:
    return open_storage(settings)


@pytest.fixture
def ledger(redis: Redis, settings: Settings) -> Ledger:
    return Ledger(redis, settings)


@pytest.fixture
def intake(ledger: Ledger, storage: Storage, settings: Settings) -> Intake:
    return Intake(ledger, storage, settings)


@pytest.fixture
def parse(captions: ModelSpec) -> Callable[[Mapping[str, Any], Place], Line]:
    """A dialect of the tests: custom_id and prompt."""

    def one(raw: Mapping[str, Any], place: Place) -> Line:
        job_input = captions.parse_input({"prompt": raw.get("prompt"), "seed": raw.get("seed", place.number)})
        return Line(str(raw["custom_id"]), "captions", job_input.model_dump(mode="json"), **raw.get("more", {}))

    return one


Create = Callable[..., BatchRecord]


@pytest.fixture
def create(intake: Intake, parse: Callable[[Mapping[str, Any], Place], Line]) -> Create:
    def make(body: bytes, tenant: str = "a", expires_in_s: int = 3600, **order: Any) -> BatchRecord:
        return intake.create([body], parse, BatchOrder(tenant, expires_in_s, **order))[0]

    return make


@pytest.fixture
def work(store: Store, captions: ModelSpec) -> Callable[..., list[str]]:
    """Claim up to `most` jobs as a worker does and settle them, those whose custom_id `fails` names as failed."""

    def run(most: int = 16, fails: frozenset[str] = frozenset(), is_settled: bool = True) -> list[str]:
        claims = store.claim("w1", CLASSES, [Want(captions.batch_key, most)]).claims
        if is_settled:
            store.settle([_end_of(store, claim.job_id, claim.fence, fails) for claim in claims])
        return [claim.job_id for claim in claims]

    return run


def _end_of(store: Store, job_id: str, fence: int, fails: frozenset[str]) -> Settlement:
    record = store.get(job_id)
    assert record is not None
    if record.metadata.get("custom_id") in fails:
        return Settlement(job_id, fence, Outcome.FAILED, error=JobFailure("told to"))
    return Settlement(job_id, fence, Outcome.FINISHED, result={"outputs": [], "text": {"text": "x"}})


@pytest.fixture
def results(ledger: Ledger, storage: Storage) -> Callable[[str], list[dict[str, Any]]]:
    """All results of a batch so far."""

    def read(batch_id: str) -> list[dict[str, Any]]:
        record = ledger.read(batch_id)
        assert record is not None
        return [json.loads(row) for row in rows_after(record, 0, ledger, ResultParts(storage))]

    return read


@pytest.fixture
def line_parts(storage: Storage) -> LineParts:
    return LineParts(storage)
