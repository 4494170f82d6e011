"""The clients of the demo: submit everything at once, follow it to its end, fetch what came out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from genmill import api_keys
from genmill.client import Client, JobHandle
from genmill.connections import connect
from genmill.demo.fleet import DemoFailed, RunningFleet
from genmill.demo.plan import SEED, TENANTS, DemoJob
from genmill.demo.receiver import Receiver
from genmill.jobs import JobState
from genmill.settings import load_settings
from genmill.shapes.render import render_one

SUBMITTERS = 8
WARM_UP_TIMEOUT_S = 120.0
JOBS_TIMEOUT_S = 240.0
CALLBACKS_TIMEOUT_S = 20.0
LOOK_S = 3.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job that has ended, or was given up on. `bodies` are its PNG files."""

    job: DemoJob
    view: Mapping[str, Any]
    bodies: tuple[bytes, ...] = ()

    @property
    def has_succeeded(self) -> bool:
        return JobState(self.view["state"]) is JobState.SUCCEEDED


class Clients:
    """One client and one webhook URL for each tenant, with keys made as an operator makes them."""

    def __init__(self, fleet: RunningFleet, receiver: Receiver) -> None:
        redis = connect(load_settings(redis_url=fleet.redis_url))
        keys = {tenant: api_keys.create(redis, tenant, "demo") for tenant in TENANTS}
        self.by_tenant = {tenant: Client(fleet.base_url, key) for tenant, key in keys.items()}
        self._hooks = {
            tenant: receiver.expect(tenant, client.webhook_secret()) for tenant, client in self.by_tenant.items()
        }

    def submit(self, job: DemoJob, init_image: Path | None, *, has_webhook: bool = True) -> JobHandle:
        asked = dict(job.input) | ({"init_image": init_image} if init_image else {})
        webhook = self._hooks[job.tenant] if has_webhook else None
        return self.by_tenant[job.tenant].submit(
            job.model, asked, priority=job.priority, webhook=webhook, metadata={"number": job.number}
        )


def draw_init_images(jobs: Sequence[DemoJob], folder: Path) -> dict[int, Path]:
    """What the image to image jobs start from, as files, by the job's number."""
    rng, paths = np.random.default_rng(SEED), {}
    for job in jobs:
        if job.start is not None:
            paths[job.number] = folder / f"init-{job.number}.png"
            render_one(job.start, job.input["width"], rng).save(paths[job.number])
    return paths


def warm_up(clients: Clients, jobs: Sequence[DemoJob], inits: Mapping[int, Path]) -> None:
    """One job of each kind and size, not counted: models are loaded and each shape has run once. Raises DemoFailed."""
    kinds = {(job.model, job.input.get("width"), job.number in inits): job for job in jobs}
    handles = [clients.submit(job, inits.get(job.number), has_webhook=False) for job in kinds.values()]
    deadline = time.monotonic() + WARM_UP_TIMEOUT_S
    for handle in handles:
        try:
            handle.wait(max(0.1, deadline - time.monotonic()))
        except TimeoutError as err:
            raise DemoFailed(f"the worker does not warm up: {err}") from None
        if handle.state is not JobState.SUCCEEDED:
            raise DemoFailed(f"the worker does not warm up: {handle.error or handle.state.value}")


def submit_all(clients: Clients, jobs: Sequence[DemoJob], inits: Mapping[int, Path]) -> list[JobHandle]:
    """In their order, a few at a time, as a busy afternoon does it."""
    with ThreadPoolExecutor(SUBMITTERS) as pool:
        return list(pool.map(lambda job: clients.submit(job, inits.get(job.number)), jobs))


def follow(
    clients: Clients,
    handles: Sequence[JobHandle],
    receiver: Receiver,
    told_before: int,
    tell: Callable[[int], None],
) -> dict[str, Mapping[str, Any]]:
    """The jobs' views by id once all have ended, or time is up; `tell` hears how many are done.

    Their webhooks tell that they are, counted from `told_before`, the number before they were submitted. The API is
    asked only now and then, in case one does not come: the fleet has the machine.
    """
    deadline = time.monotonic() + JOBS_TIMEOUT_S
    wanted = {handle.id for handle in handles}
    views: dict[str, Mapping[str, Any]] = {}
    while time.monotonic() < deadline:
        _hear(receiver, told_before, len(wanted), tell)
        views = _views(clients, wanted)
        ended = sum(JobState(view["state"]).is_terminal for view in views.values())
        if ended == len(wanted):
            break
    receiver.wait_for(told_before + len(wanted), CALLBACKS_TIMEOUT_S)
    return views


def _hear(receiver: Receiver, told_before: int, most: int, tell: Callable[[int], None]) -> None:
    """Listen until every job was told of, for LOOK_S at most."""
    until = time.monotonic() + LOOK_S
    while (left_s := until - time.monotonic()) > 0:
        done = len(receiver.verified()) - told_before
        tell(done)
        if done >= most:
            return
        receiver.wait_for(told_before + done + 1, left_s)


def _views(clients: Clients, wanted: set[str]) -> dict[str, Mapping[str, Any]]:
    listed = [job for client in clients.by_tenant.values() for job in client.jobs(limit=100)]
    return {job.id: job.data for job in listed if job.id in wanted}


def collect(
    jobs: Sequence[DemoJob], handles: Sequence[JobHandle], views: Mapping[str, Mapping[str, Any]]
) -> list[Outcome]:
    """Every job with its last view and, for images, the delivered files."""

    def outcome(job: DemoJob, handle: JobHandle) -> Outcome:
        handle.data = dict(views.get(handle.id, handle.data))
        return Outcome(job, handle.data, tuple(handle.download()))

    with ThreadPoolExecutor(SUBMITTERS) as pool:
        return list(pool.map(outcome, jobs, handles))
