"""Jobs for the store's tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from genmill.jobs import JobRequest, new_job_id
from genmill.keys import JobClass
from genmill.registry import ModelSpec, load_registry
from genmill.store import Store

Submit = Callable[..., str]


@pytest.fixture(scope="session")
def shapes() -> ModelSpec:
    return load_registry().get("shapes")


@pytest.fixture
def submit(store: Store, shapes: ModelSpec) -> Submit:
    """Store one job and return its id; keyword arguments are JobRequest's, `steps` and `num_images` the input's."""

    def make(tenant: str = "a", job_class: str = "p1", *, store: Store = store, **options: Any) -> str:
        raw = {"prompt": "a red circle", **{k: options.pop(k) for k in ("steps", "num_images") if k in options}}
        job_input = shapes.parse_input(raw)
        job_id = options.pop("job_id", new_job_id())
        request = JobRequest(job_id, tenant, shapes, job_input, job_class=JobClass(job_class), **options)
        return store.submit(request)[0]

    return make
