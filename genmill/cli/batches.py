"""`genmill batches`: list, show, cancel, results, and what became of their webhooks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from genmill.batches import BatchState
from genmill.cli.deliveries import deliveries_table, redelivery_line
from genmill.cli.options import open_client, with_client, with_json
from genmill.cli.screen import Exit, Screen, moment, table
from genmill.client import BatchHandle, Client
from genmill.errors import NotFound

STYLES = {
    BatchState.IN_PROGRESS: "cyan",
    BatchState.CANCELLING: "yellow",
    BatchState.EXPIRING: "yellow",
    BatchState.COMPLETED: "green",
    BatchState.CANCELLED: "magenta",
    BatchState.EXPIRED: "magenta",
}
CANCEL_ANSWERS = {
    "cancelling": "is canceled: what waits will not run, what runs may end",
    "too_late": "had ended already",
    "unknown": "is not known",
}


@click.group()
def batches() -> None:
    """List, show and cancel batches, and read their results. `genmill backfill` makes them."""


@batches.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@with_client
@with_json
def list_batches(limit: int, url: str | None, api_key: str | None, screen: Screen) -> None:
    """Your batches, newest first. Times are UTC; `show` has all counts, and the rate."""
    with open_client(url, api_key, screen) as client:
        found = client.batches.list(limit=limit)
    columns = ("id", "state", "lines", "done", "failed", "created")
    rows = [_row(batch) for batch in found]
    screen.show([batch.data for batch in found], lambda: table(*columns, rows=rows) if rows else "no batches")


@batches.command("show")
@click.argument("batch_id")
@with_client
@with_json
def show_batch(batch_id: str, url: str | None, api_key: str | None, screen: Screen) -> None:
    """One batch: state, counts, rate, time left."""
    with open_client(url, api_key, screen) as client:
        batch = client.batches.get(batch_id)
    screen.show(batch.data, lambda: _details(batch))


@batches.command("cancel")
@click.argument("batch_ids", nargs=-1, required=True)
@with_client
@with_json
def cancel_batches(batch_ids: tuple[str, ...], url: str | None, api_key: str | None, screen: Screen) -> Exit:
    """Cancel batches; says of each what that did, and exits with 1 when one had ended already."""
    with open_client(url, api_key, screen) as client:
        answers = {batch_id: _cancel(client, batch_id) for batch_id in batch_ids}
    lines = [f"{batch_id} {CANCEL_ANSWERS.get(answer, answer)}" for batch_id, answer in answers.items()]
    screen.show([{"id": one, "cancel": answer} for one, answer in answers.items()], lambda: "\n".join(lines))
    return Exit.OK if set(answers.values()) <= {"cancelling"} else Exit.NOT_DONE


@batches.command("results")
@click.argument("batch_id")
@click.option("--after", type=click.IntRange(0), default=0, help="`seq` of the last result that is known already.")
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@click.option("--follow", is_flag=True, help="Go on until the batch has ended.")
@with_client
@with_json
def read_results(
    batch_id: str, after: int, limit: int | None, follow: bool, url: str | None, api_key: str | None, screen: Screen
) -> None:
    """What lines have made so far, in a lasting order; with --json one JSON object a line."""
    with open_client(url, api_key, screen) as client:
        found = islice(client.batches.get(batch_id).results(after, follow=follow), limit)
        if screen.is_json:
            for result in found:
                click.echo(json.dumps(result, ensure_ascii=False))
        else:
            _print_results(found, screen)


@batches.command("deliveries")
@click.argument("batch_id")
@with_client
@with_json
def read_deliveries(batch_id: str, url: str | None, api_key: str | None, screen: Screen) -> None:
    """What became of a batch's webhook: every attempt."""
    with open_client(url, api_key, screen) as client:
        found = client.batches.get(batch_id).deliveries()
    screen.show(found, lambda: deliveries_table(found))


@batches.command("redeliver")
@click.argument("batch_id")
@click.option("--delivery", "delivery_id", help="Which one, by its id; without it the latest.")
@with_client
@with_json
def redeliver_batch(
    batch_id: str, delivery_id: str | None, url: str | None, api_key: str | None, screen: Screen
) -> None:
    """Send a batch's webhook once more, under the same webhook-id."""
    with open_client(url, api_key, screen) as client:
        delivery = client.batches.get(batch_id).redeliver(delivery_id)
    screen.show(delivery, lambda: redelivery_line(delivery))


def _cancel(client: Client, batch_id: str) -> str:
    try:
        return str(client.batches.cancel(batch_id).data["cancel"])
    except NotFound:
        return "unknown"


def _print_results(found: Iterator[dict[str, Any]], screen: Screen) -> None:
    """A table at a time, so that those that come later are shown as they come."""
    while rows := [_result_row(result) for result in islice(found, 100)]:
        screen.out.print(table("seq", "custom_id", "state", "result", rows=rows), markup=False, crop=False)


def _result_row(result: Mapping[str, Any]) -> list[str | Text]:
    error, text = result["error"], result.get("text")
    if error:
        told = f"{error['code']}: {error['message']}"
    else:
        told = text["text"] if text else " ".join(output["url"] for output in result["outputs"])
    return [str(result["seq"]), result["custom_id"], result["state"], told]


def _row(batch: BatchHandle) -> list[str | Text]:
    """`done` is what has ended, however it did."""
    counts = batch.counts
    done = sum(counts[name] for name in ("succeeded", "failed", "canceled"))
    shown = [str(number) for number in (counts["total"], done, counts["failed"])]
    return [batch.id, _state(batch.state), *shown, moment(str(batch.data["created_at"]))]


def _details(batch: BatchHandle) -> RenderableType:
    facts = table("", "", rows=[row for row in _facts(batch.data) if row[1]])
    facts.show_header = False
    return Group(Text(batch.id + " ") + _state(batch.state), facts)


def _facts(view: Mapping[str, Any]) -> list[tuple[str, str]]:
    counts = ", ".join(f"{count} {name}" for name, count in view["counts"].items() if count and name != "total")
    eta_s = view["eta_s"]
    return [
        ("lines", str(view["counts"]["total"])),
        ("of them", counts),
        ("results", str(view["results"])),
        ("rate", f"{view['rate_per_s']:g} a second" if view["rate_per_s"] else ""),
        ("left", "" if eta_s is None else f"{eta_s:g} s"),
        ("created", str(view["created_at"] or "")),
        ("expires", "" if view["ended_at"] else str(view["expires_at"] or "")),
        ("ended", str(view["ended_at"] or "")),
        ("resumes", view["resume_of"] or ""),
        ("metadata", json.dumps(view["metadata"], ensure_ascii=False) if view["metadata"] else ""),
    ]


def _state(state: BatchState) -> Text:
    return Text(state.value, style=STYLES[state])
