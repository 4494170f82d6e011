"""`genmill usage`: what tenants have used, by day."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import click

from genmill.cli.options import open_store, with_data, with_json
from genmill.cli.screen import Screen, table
from genmill.cli.values import day
from genmill.tenants import check_name
from genmill.usage import COLUMNS, period, usage_csv, usage_view


@click.command(short_help="Jobs, GPU-seconds and bytes of outputs by day and tenant.")
@click.option("--from", "first", type=day, help="First day, UTC.  [default: 29 days before the last]")
@click.option("--to", "last", type=day, help="Last day, UTC.  [default: today]")
@click.option("--tenant", help="Only this one.")
@click.option("--csv", "is_csv", is_flag=True, help="Print CSV instead of text.")
@with_data
@with_json
def usage(first: date | None, last: date | None, tenant: str | None, is_csv: bool, data: Path, screen: Screen) -> None:
    """Jobs by how they ended, GPU-seconds and bytes of outputs, by day and tenant. Kept for 400 days."""
    if is_csv and screen.is_json:
        raise click.UsageError("--csv and --json: choose one")
    first, last = period(first, last)
    if tenant is not None:
        check_name(tenant)
    with open_store(data) as store:
        uses = store.usage.days(first, last, tenant)
    if is_csv:
        click.echo(usage_csv(uses), nl=False)
        return
    view = usage_view(uses, first, last)
    rows = [[f"{row[name]}" for name in COLUMNS] for row in view["data"]]
    screen.show(view, lambda: table(*COLUMNS, rows=rows) if rows else f"nothing was used from {first} to {last}")
