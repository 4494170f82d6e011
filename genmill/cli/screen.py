"""What the commands print: tables or JSON to stdout, progress and one-line errors to stderr, an exit code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any

import click
import httpx
from redis.exceptions import RedisError
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from genmill.errors import FieldFault, GenmillError, LimitReached, Unauthorized


class Exit(IntEnum):
    """Exit codes, for scripts."""

    OK = 0
    NOT_DONE = 1
    """The job failed, expired or was canceled; the demo fell short; there was nothing to cancel."""
    USAGE = 2
    REFUSED = 3
    """The server, or genmill itself, refused what was asked: change the request."""
    UNAVAILABLE = 4
    """The server or its Redis cannot be reached, or is busy: try again."""
    TIMED_OUT = 5
    """The job goes on, waiting for it did not."""
    INTERRUPTED = 130


PIPE_WIDTH = 200
"""Where stdout is no terminal, so that tables keep one line for each row."""


class Screen:
    """One command's output. With `is_json` stdout carries one JSON document and nothing else."""

    def __init__(self, is_json: bool) -> None:
        self.is_json = is_json
        width = None if sys.stdout.isatty() else PIPE_WIDTH
        self.out = Console(file=sys.stdout, highlight=False, width=width)
        self.err = Console(file=sys.stderr, highlight=False)

    def show(self, document: Any, render: Callable[[], RenderableType]) -> None:
        """The document for programs, or its picture for people."""
        if self.is_json:
            click.echo(json.dumps(document, ensure_ascii=False))
        else:
            self.out.print(render(), markup=False, crop=False)

    def say(self, line: str, style: str | None = None) -> None:
        """A remark beside the output."""
        self.err.print(line, style=style, markup=False, soft_wrap=True)


UNBROKEN = frozenset({"id", "state", "at", "day"})
"""Columns whose cells are copied or looked up: however narrow the terminal, they stay whole and the others shrink."""


def table(*columns: str, rows: Sequence[Sequence[str | Text]]) -> Table:
    """Plain cells are never read as markup."""
    grid = Table(box=None, pad_edge=False, header_style="bold", show_edge=False, collapse_padding=True)
    for column in columns:
        grid.add_column(column, overflow="fold", no_wrap=column in UNBROKEN)
    for row in rows:
        grid.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return grid


def moment(iso: str) -> str:
    """A time of the API to the minute, UTC as there: `2026-11-30 21:31`."""
    return iso[:16].replace("T", " ")


def report(error: Exception, is_json: bool) -> Exit:
    """To stderr, a line for each fault; returns the exit code that belongs to the error."""
    code, message, faults, exit_code = _read(error)
    if is_json:
        body = {"code": code, "message": message, "errors": [fault.as_json() for fault in faults]}
        click.echo(json.dumps({"error": body}), err=True)
    else:
        click.echo(f"genmill: {in_words(message, faults)}{_hint(error)}", err=True)
    return exit_code


def in_words(message: str, faults: Sequence[FieldFault]) -> str:
    """The fields with their faults, limits and values where there are some, one a line; else the message."""
    lines = [" ".join(text.split()) for text in (*map(_fault_text, faults),) or (message,)]
    return lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} faults", *lines])


def _hint(error: Exception) -> str:
    match error:
        case Unauthorized():
            return " (--api-key or GENMILL_API_KEY)"
        case LimitReached(retry_after_s=int(wait_s)):
            return f"; try again in {timedelta(seconds=wait_s)}"
        case RedisError():
            return "; genmill up starts a fleet here, GENMILL_REDIS_URL names another one's Redis"
        case _:
            return ""


def _fault_text(fault: FieldFault) -> str:
    facts = [
        f"{label} {text}"
        for label, text in (("limit", fault.limit), ("value", fault.value))
        if text is not None and not re.search(rf"(?<!\w){re.escape(text)}(?!\w)", fault.detail)
    ]
    detail = fault.detail.removeprefix(f"{fault.pointer.rpartition('/')[2]}: ")
    line, field = "" if fault.line is None else f"line {fault.line}", fault.pointer if fault.pointer != "/" else ""
    where = " ".join(filter(None, (line, field)))
    return (f"{where}: {detail}" if where else detail) + (f" ({', '.join(facts)})" if facts else "")


def _read(error: Exception) -> tuple[str, str, Sequence[FieldFault], Exit]:
    """(code, message, faults, exit code)."""
    match error:
        case GenmillError():
            is_passing = error.is_retryable or error.status in (429, 502, 503, 504)
            exit_code = Exit.UNAVAILABLE if is_passing else Exit.REFUSED
            return error.code, error.detail, error.faults, exit_code
        case httpx.HTTPError():
            return "unreachable", f"the API cannot be reached: {error}", (), Exit.UNAVAILABLE
        case RedisError():
            return "store_unavailable", f"Redis cannot be reached: {error}", (), Exit.UNAVAILABLE
        case TimeoutError():
            return "timed_out", str(error) or "waited long enough", (), Exit.TIMED_OUT
        case _:
            return "failed", str(error), (), Exit.NOT_DONE
