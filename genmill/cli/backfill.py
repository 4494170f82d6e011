"""`genmill backfill`: a file of lines in, a folder of outputs out, taken up again after whatever ended it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from genmill.backfill.manifest import Manifest
from genmill.backfill.run import Backfill, BackfillOptions
from genmill.batch_calls import BatchCalls
from genmill.cli.options import open_client, with_client, with_json
from genmill.cli.screen import Exit, Screen
from genmill.errors import GenmillError
from genmill.jobs import JobState
from genmill.keys import JobClass

MOST_SHOWN = 20
"""Failed lines that are told one by one; all stand in the manifest."""
LINE_EVERY_S = 10.0
"""How often a run without a terminal tells how far it is."""


@click.command(short_help="Run the lines of a file as one batch, into a folder.")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the outputs, each named by its custom_id, and for manifest.jsonl.",
)  # fmt: skip
@click.option(
    "--priority", type=click.Choice([c.value for c in JobClass]), default="p3", show_default=True,
    help="Class of lines that name none.",
)  # fmt: skip
@click.option("--expires-in", "expires_in_s", type=int, help="Seconds that the batch has; what is done by then stays.")
@click.option("--downloads", type=click.IntRange(1, 64), default=8, show_default=True, help="Downloads at once.")
@click.option(
    "--patience", "patience_s", type=float, default=300.0, show_default=True,
    help="Seconds to wait for a server that does not answer.",
)  # fmt: skip
@click.option("--webhook", help="URL to be called when the batch has ended.")
@click.option("--again", "is_again", is_flag=True, help="Run the lines once more that failed or are missing.")
@with_client
@with_json
def backfill(  # noqa: PLR0913 - one parameter for each option
    source: Path, output: Path, *, priority: str, expires_in_s: int | None, downloads: int, patience_s: float,
    webhook: str | None, is_again: bool, url: str | None, api_key: str | None, screen: Screen,
) -> Exit:  # fmt: skip
    """Run the lines of FILE (`-`: stdin) as one batch and write what they make into a folder.

    \b
    Each line is {"custom_id": ..., "model": ..., "input": {...}}, with whatever else `genmill submit` knows.
    However it ends (Ctrl-C, a kill, a server that restarts): the same command again goes on where it stopped, and
    runs no line twice. Exits with 1 when lines failed; --again runs those once more.
    """
    lines = lines_of(source)
    options = BackfillOptions(priority, expires_in_s, downloads, patience_s, is_again, webhook)
    with open_client(url, api_key, screen) as client, Manifest(output, lines) as manifest:
        with _bar(screen) as watcher, _told_how_to_go_on(screen, manifest):
            batch = Backfill(BatchCalls(client), manifest, output, options, watcher).run(manifest.source)
        document = summary(batch, manifest)
    screen.show(document, lambda: _told(document, manifest))
    return Exit.OK if document["succeeded"] == document["total"] else Exit.NOT_DONE


def lines_of(source: Path) -> Path | BinaryIO:
    """Raises click.BadParameter."""
    if str(source) == "-":
        return sys.stdin.buffer
    if not source.is_file():
        raise click.BadParameter(f"there is no file {source}", param_hint="FILE")
    return source


def summary(batch: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    """`failed` counts every line that has no output: failed, expired, canceled or never run."""
    counts, succeeded = batch["counts"], manifest.ends["succeeded"]
    total = counts["total"] + counts["skipped"]
    return {
        "batch": batch["id"], "status": batch["status"], "total": total, "succeeded": succeeded,
        "failed": total - succeeded, "manifest": str(manifest.path),
    }  # fmt: skip


def _told(document: dict[str, Any], manifest: Manifest) -> str:
    ends = {state: count for state, count in manifest.ends.items() if state != JobState.SUCCEEDED and count}
    rest = document["failed"] - sum(ends.values())
    parts = [f"{count} {state}" for state, count in ends.items()] + ([f"{rest} never run"] if rest else [])
    hint = "; --again runs once more what did not succeed" if parts else ""
    return ", ".join([f"{document['succeeded']} of {document['total']} lines succeeded", *parts]) + hint


class Bar:
    """Done, failed, rate and time left, on stderr, as a line every ten seconds where that is no terminal; the first
    failed lines beside it."""

    def __init__(self, screen: Screen, bar: Progress | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen, self._bar, self._shown = screen, bar, 0
        self._clock, self._next_line_at = clock, clock() + LINE_EVERY_S
        self._line = bar.add_task("hands the lines in", total=None) if bar else None

    def progress(self, batch: dict[str, Any], manifest: Manifest) -> None:
        total = batch["counts"]["total"] + batch["counts"]["skipped"]
        done = manifest.ends["succeeded"] + manifest.failed
        told = _status(batch, manifest.failed)
        if self._bar is not None and self._line is not None:
            self._bar.update(self._line, description=told, completed=done, total=total)
        elif not self._screen.is_json and self._clock() >= self._next_line_at:
            self._next_line_at = self._clock() + LINE_EVERY_S
            self._screen.say(f"{done} of {total} done, {told}")

    def failure(self, result: dict[str, Any]) -> None:
        self._shown += 1
        if self._shown <= MOST_SHOWN and not self._screen.is_json:
            error = result["error"] or {"code": result["state"], "message": ""}
            self._screen.say(f"{result['custom_id']}: {error['code']}: {error['message']}", style="red")
        elif self._shown == MOST_SHOWN + 1 and not self._screen.is_json:
            self._screen.say("more lines failed; all stand in the manifest", style="red")

    def away(self, error: GenmillError) -> None:
        if not self._screen.is_json:
            self._screen.say(f"{error.detail}; trying again", style="yellow")


def _status(batch: dict[str, Any], failed: int) -> str:
    eta = "" if batch["eta_s"] is None else f", {_span(batch['eta_s'])} left"
    return f"{batch['status']}, {failed} failed, {batch['rate_per_s']:.1f}/s{eta}"


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


@contextmanager
def _bar(screen: Screen) -> Iterator[Bar]:
    if screen.is_json or not screen.err.is_terminal:
        yield Bar(screen, None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen.err, transient=True) as bar:
        yield Bar(screen, bar)


@contextmanager
def _told_how_to_go_on(screen: Screen, manifest: Manifest) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if manifest.batch_id is not None and not screen.is_json:
            screen.say(f"batch {manifest.batch_id} goes on; the same command takes it up again")
        raise
