"""`genmill audit`: who changed keys, tenants and limits."""

from __future__ import annotations

import json
from pathlib import Path

import click

from genmill import audit as log
from genmill.cli.options import open_redis, with_data, with_json
from genmill.cli.screen import Screen, moment, table


@click.command(short_help="Who changed keys, tenants and limits, newest first.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Most entries.")
@with_data
@with_json
def audit(limit: int, data: Path, screen: Screen) -> None:
    """Changes of keys, tenants and limits, newest first: who, when (UTC), from where, before and after."""
    with open_redis(data) as redis:
        found = log.entries(redis, limit)
    rows = [
        [moment(one.at), one.who, one.where, one.action, one.target, json.dumps(one.before), json.dumps(one.after)]
        for one in found
    ]
    columns = ("at", "who", "from", "action", "of", "before", "after")
    screen.show(
        [entry._asdict() for entry in found], lambda: table(*columns, rows=rows) if rows else "nothing was changed"
    )
