"""`genmill jobs`: list, show, watch, cancel, and what became of their webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from genmill.cli.deliveries import deliveries_table, redelivery_line
from genmill.cli.options import open_client, with_client, with_json
from genmill.cli.pictures import has_colours
from genmill.cli.screen import Exit, Screen, table
from genmill.cli.streaming import has_preview, show_events
from genmill.cli.watching import exit_code, watch
from genmill.client import Client, JobHandle
from genmill.errors import NotFound
from genmill.jobs import JobState

STYLES = {
    JobState.QUEUED: "yellow",
    JobState.RUNNING: "cyan",
    JobState.SUCCEEDED: "green",
    JobState.FAILED: "red",
    JobState.CANCELED: "magenta",
    JobState.EXPIRED: "magenta",
}
CANCEL_ANSWERS = {
    "dequeued": "canceled before it started",
    "interrupting": "will stop at its next step",
    "too_late": "had ended already",
    "unknown": "is not known",
}


@click.group(short_help="List, show, watch and cancel jobs, and their webhooks.")
def jobs() -> None:
    """List, show, watch and cancel jobs, and send their webhooks again."""


@jobs.command("list")
@click.option("--state", type=click.Choice([state.value for state in JobState]), help="Only jobs in this state.")
@click.option("--model", help="Only jobs of this model.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@with_client
@with_json
def list_jobs(
    state: str | None, model: str | None, limit: int, url: str | None, api_key: str | None, screen: Screen
) -> None:
    """Your jobs, newest first."""
    with open_client(url, api_key, screen) as client:
        found = client.jobs(state=state, model=model, limit=limit)
    rows = [_row(job) for job in found]
    screen.show(
        [job.data for job in found],
        lambda: table("id", "state", "model", "class", "waited", "ran", "prompt", rows=rows) if rows else "no jobs",
    )


@jobs.command("show")
@click.argument("job_id")
@with_client
@with_json
def show_job(job_id: str, url: str | None, api_key: str | None, screen: Screen) -> None:
    """One job: state, progress, outputs, receipt."""
    with open_client(url, api_key, screen) as client:
        job = client.job(job_id)
    screen.show(job.data, lambda: details(job))


@jobs.command("watch")
@click.argument("job_id")
@click.option("--stream", is_flag=True, help="Show the text as it is written; with --json all events, one a line.")
@click.option("--timeout", "timeout_s", type=float, help="Seconds to wait at most.")
@with_client
@with_json
def watch_job(
    job_id: str, stream: bool, timeout_s: float | None, url: str | None, api_key: str | None, screen: Screen
) -> Exit:
    """Follow a job to its end; the exit code tells how it ended.

    Where it was submitted with --preview, a terminal of 16 million colours shows how its picture looks by then.
    """
    with open_client(url, api_key, screen) as client:
        job = client.job(job_id)
        has_pictures = has_preview(job) and not screen.is_json and has_colours(screen.err)
        job = show_events(job, timeout_s, screen) if stream or has_pictures else watch(job, timeout_s, screen)
    if not (stream and screen.is_json):
        screen.show(job.data, lambda: details(job, is_text_shown=stream))
    return exit_code(job)


@jobs.command("cancel")
@click.argument("job_ids", nargs=-1, required=True)
@with_client
@with_json
def cancel_jobs(job_ids: tuple[str, ...], url: str | None, api_key: str | None, screen: Screen) -> Exit:
    """Cancel jobs; says of each what that did, and exits with 1 when one had ended already."""
    with open_client(url, api_key, screen) as client:
        answers = {job_id: _cancel(client, job_id) for job_id in job_ids}
    lines = [f"{job_id} {CANCEL_ANSWERS.get(answer, answer)}" for job_id, answer in answers.items()]
    screen.show([{"id": job_id, "cancel": answer} for job_id, answer in answers.items()], lambda: "\n".join(lines))
    return Exit.OK if set(answers.values()) <= {"dequeued", "interrupting"} else Exit.NOT_DONE


@jobs.command("deliveries")
@click.argument("job_id")
@with_client
@with_json
def read_deliveries(job_id: str, url: str | None, api_key: str | None, screen: Screen) -> None:
    """What became of a job's webhooks: every attempt, the latest delivery first."""
    with open_client(url, api_key, screen) as client:
        found = client.job(job_id).deliveries()
    screen.show(found, lambda: deliveries_table(found))


@jobs.command("redeliver")
@click.argument("job_id")
@click.option("--delivery", "delivery_id", help="Which one, by its id; without it the latest.")
@with_client
@with_json
def redeliver_job(job_id: str, delivery_id: str | None, url: str | None, api_key: str | None, screen: Screen) -> None:
    """Send a job's webhook once more, under the same webhook-id."""
    with open_client(url, api_key, screen) as client:
        delivery = client.job(job_id).redeliver(delivery_id)
    screen.show(delivery, lambda: redelivery_line(delivery))


def _cancel(client: Client, job_id: str) -> str:
    try:
        return str(client.job(job_id).cancel().data["cancel"])
    except NotFound:
        return "unknown"


def details(job: JobHandle, *, is_text_shown: bool = False) -> RenderableType:
    """What a person wants to know of a job: the text that it wrote, if any, unless `is_text_shown` already; the facts;
    unbroken links."""
    facts = table("", "", rows=[row for row in _facts(job.data) if row[1]])
    facts.show_header = False
    heading = Text(job.id + " ") + _state(job.state)
    links = [Text(output["url"], no_wrap=True, overflow="ignore") for output in job.outputs]
    text = [] if job.text is None or is_text_shown else [Text(job.text)]
    return Group(*text, heading, facts, *links)


def _facts(view: dict[str, Any]) -> list[tuple[str, str]]:
    asked, timings, receipt = view["input"], view["timings"], view["receipt"] or {}
    progress, error = view["progress"], view["error"]
    batch = f"{receipt['batch_mean']:.1f} on average, {receipt['batch_max']} at most" if receipt else ""
    return [
        ("model", f"{view['model']}, class {view['priority']}"),
        ("prompt", _prompt(view) or str(asked.get("messages") or "")),
        ("seed", str(receipt.get("seed", ""))),
        ("progress", f"{progress['step']} of {progress['steps']}" if progress else ""),
        ("ahead", str(view["position"] or "")),
        ("waits for", waiting_text(view.get("waiting_for"))),
        ("waited", _seconds(timings["queued_s"])),
        ("ran", _seconds(timings["run_s"])),
        ("batch", batch),
        ("error", f"{error['code']}: {error['message']}" if error else ""),
    ]


def waiting_text(waiting: Mapping[str, Any] | None) -> str:
    """Why a job does not run yet, in words; nothing while it is only not its turn."""
    match waiting:
        case {"reason": "limit", "scope": scope, "limit": limit, "running": running}:
            return f"the limit {scope}: {running} of {limit} run"
        case {"reason": "no_worker"}:
            return "a worker: none serves its class"
        case {"reason": "suspended"}:
            return "the fleet, which is suspended (rq resume)"
        case {"reason": "dependency", "jobs": jobs}:
            return ", ".join(f"job:{job_id}" for job_id in jobs)
        case {"reason": "loading"}:
            return "its model, which a worker is loading"
        case {"reason": "delay"}:
            return "the end of a delay"
    return ""


def _row(job: JobHandle) -> list[str | Text]:
    view = job.data
    waited, ran = _seconds(view["timings"]["queued_s"]), _seconds(view["timings"]["run_s"])
    prompt = Text(_prompt(view)[:60], no_wrap=True, overflow="ellipsis")
    return [job.id, _state(job.state), view["model"], view["priority"], waited, ran, prompt]


def _prompt(view: Mapping[str, Any]) -> str:
    match view["input"].get("prompt"):
        case {"from": source, "path": path}:
            return f"{source}/{path}"
        case prompt:
            return str(prompt or "")


def _state(state: JobState) -> Text:
    return Text(state.value, style=STYLES[state])


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"
