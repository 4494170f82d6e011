"""`genmill tenants`: what each tenant may have of the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from genmill import tenants as room
from genmill.cli.options import open_store, with_data, with_json
from genmill.cli.screen import Screen, table
from genmill.cli.values import per_minute
from genmill.registry import invalid_request
from genmill.tenants import TenantFacts

_COLUMNS = {
    "tenant": "tenant", "weight": "weight", "classes": "classes", "running": "max_running", "queued": "max_queued",
    "a minute": "rate_per_minute", "GPU s a day": "gpu_seconds_per_day",
}  # fmt: skip

_FACTS = {
    "weight": "weight", "classes": "classes", "max-running": "max_running", "max-queued": "max_queued",
    "rate": "rate_per_minute", "gpu-seconds-per-day": "gpu_seconds_per_day",
}  # fmt: skip
"""By the option that sets it."""


@click.group()
def tenants() -> None:
    """See and change what tenants may use. Needs GENMILL_REDIS_URL or the data folder of `genmill up`.

    The numbers are limits, which `genmill limits` shows as well.
    """


@tenants.command("set")
@click.argument("tenant")
@click.option("--weight", type=float, help="Share of GPU time among tenants that wait.")
@click.option("--classes", help="Priorities that it may use, such as p1,p2,p3.")
@click.option("--max-running", type=int, help="Jobs that run at once.")
@click.option("--max-queued", type=int, help="Jobs that wait.")
@click.option("--rate", "rate_per_minute", type=per_minute, help="Submissions, such as 100/m.")
@click.option("--gpu-seconds-per-day", type=float, help="GPU-seconds a day (UTC).")
@click.option(
    "--unset",
    multiple=True,
    type=click.Choice(list(_FACTS)),
    callback=lambda _context, _option, given: [*map(_FACTS.get, given)],
    help="Take back what this option has set; may be repeated.",
)
@with_data
@with_json
def set_tenant(tenant: str, unset: Sequence[str], data: Path, screen: Screen, **given: Any) -> None:
    """Set facts of TENANT; those that are not named stay. The fleet heeds them within a second."""
    wanted = {name: value for name, value in given.items() if value is not None} | dict.fromkeys(unset)
    if not wanted:
        raise click.UsageError("name at least one fact to set or unset")
    if classes := wanted.get("classes"):
        wanted["classes"] = classes.split(",")
    with open_store(data) as store:
        room.change(store.redis, tenant, _facts(wanted))
        view = room.view(store.redis, store.limits, tenant)
    screen.show(view, lambda: _table([view]))


@tenants.command("list")
@with_data
@with_json
def list_tenants(data: Path, screen: Screen) -> None:
    """All that have a key, a limit or classes of their own."""
    with open_store(data) as store:
        found = room.list_tenants(store.redis, store.limits)
    screen.show(found, lambda: _table(found) if found else "no tenants")


@tenants.command("show")
@click.argument("tenant")
@with_data
@with_json
def show_tenant(tenant: str, data: Path, screen: Screen) -> None:
    """What holds for TENANT, defaults of all tenants among it."""
    with open_store(data) as store:
        view = room.read(store.redis, store.limits, tenant)
    screen.show(view, lambda: _table([view]))


def _facts(wanted: dict[str, Any]) -> TenantFacts:
    try:
        return TenantFacts.model_validate(wanted)
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None


def _table(views: Sequence[dict[str, Any]]) -> Any:
    return table(*_COLUMNS, rows=[[_shown(view[name]) for name in _COLUMNS.values()] for view in views])


def _shown(value: Any) -> str:
    match value:
        case None:
            return ""
        case list():
            return " ".join(value)
        case float():
            return f"{value:g}"
        case _:
            return str(value)
