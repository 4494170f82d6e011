"""`genmill status` and `genmill models`: what the fleet does and what it serves."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Group, RenderableType

from genmill.cli.options import open_client, with_client, with_json
from genmill.cli.screen import Screen, table


@click.command()
@with_client
@with_json
def status(url: str | None, api_key: str | None, screen: Screen) -> None:
    """Queues, running jobs and workers."""
    with open_client(url, api_key, screen) as client:
        state = client.status()
    screen.show(state, lambda: _status(state))


@click.command()
@with_client
@with_json
def models(url: str | None, api_key: str | None, screen: Screen) -> None:
    """The models that the fleet serves."""
    with open_client(url, api_key, screen) as client:
        found = client.models()
    rows = [[m["id"], m["kind"], _limits(m), m["description"]] for m in found]
    screen.show(found, lambda: table("model", "kind", "limits", "description", rows=rows))


def _status(state: dict[str, Any]) -> RenderableType:
    queues = table("queue", "waiting", rows=[[name, str(depth)] for name, depth in state["queues"].items()])
    rows = [
        [worker["name"], worker["queues"] or "", _state(worker), worker["successful_job_count"] or "0"]
        for worker in state["workers"]
    ]
    workers = table("worker", "queues", "state", "done", rows=rows) if rows else "no workers"
    suspended = ", suspended" if state["is_suspended"] else ""
    return Group(queues, "", f"running {state['running']}{suspended}", "", workers)


def _state(worker: dict[str, Any]) -> str:
    if worker["genmill"] is None:
        return "takes no jobs: not started with -w worker.BatchWorker"
    return str(worker["state"] or "")


def _limits(model: dict[str, Any]) -> str:
    limits = model["limits"]
    if model["kind"] == "text":
        return f"{limits['max_tokens']} tokens"
    shown = f"{limits['min_size']}-{limits['max_size']} px, {limits['max_steps']} steps, {limits['max_images']} images"
    return f"{shown}, {limits['max_frames']} frames" if limits.get("max_frames", 1) > 1 else shown
