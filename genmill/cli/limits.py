"""`genmill limits`: what the fleet may run at once, edited while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from genmill.cli.options import open_store, with_data, with_json
from genmill.cli.screen import Screen, table
from genmill.limits import check_limit


@click.group()
def limits() -> None:
    """See and change limits and weights. Needs GENMILL_REDIS_URL or the data folder of `genmill up`.

    \b
    all, class:p3, class:callbacks, model:shapes   most jobs that run at once; * stands for any
    tenant:acme, tc:acme:p3, host:example.org      model, tenant or host, each on its own: tenant:*
    reserve:p0     of `all`, kept for a class
    weight:acme    a tenant's share of GPU time, 1 by default
    queued:acme    most jobs of a tenant that wait
    rate:acme      most submissions of a tenant a minute
    budget:acme    most GPU-seconds of a tenant a day
    """


@limits.command("get")
@with_data
@with_json
def get_limits(data: Path, screen: Screen) -> None:
    """All limits in force, where each comes from, and how many jobs count against it now."""
    with open_store(data) as store:
        found = store.limits.counted()
    rows = [
        [limit.scope, f"{limit.value:g}", limit.source, "" if limit.live is None else f"{limit.live}"]
        for limit in found
    ]
    screen.show(
        [limit._asdict() for limit in found],
        lambda: table("scope", "limit", "from", "running", rows=rows) if rows else "no limits",
    )


@limits.command("set")
@click.argument("scopes", nargs=-1, required=True, metavar="SCOPE=NUMBER...")
@with_data
@with_json
def set_limits(scopes: Sequence[str], data: Path, screen: Screen) -> None:
    """Set limits, such as tenant:acme=4 or weight:acme=2. The fleet heeds them within a second."""
    wanted = dict(_parsed(text) for text in scopes)
    with open_store(data) as store:
        store.limits.set(wanted)
    screen.show(wanted, lambda: "\n".join(f"{scope} is {value:g}" for scope, value in wanted.items()))


@limits.command("unset")
@click.argument("scopes", nargs=-1, required=True, metavar="SCOPE...")
@with_data
@with_json
def unset_limits(scopes: Sequence[str], data: Path, screen: Screen) -> None:
    """Take back what was set; the fleet's own setting holds again."""
    with open_store(data) as store:
        gone = store.limits.unset(scopes)
    screen.show({"unset": gone}, lambda: f"{gone} of {len(scopes)} were set and are not any more")


def _parsed(text: str) -> tuple[str, float]:
    scope, is_pair, number = text.rpartition("=")
    try:
        value = float(number)
        check_limit(scope, value)
    except ValueError as err:
        reason = "write SCOPE=NUMBER" if not is_pair or "could not convert" in str(err) else str(err)
        raise click.BadParameter(f"{text!r}: {reason}") from None
    return scope, value
