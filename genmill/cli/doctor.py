"""`genmill doctor`: is this Redis in order?"""

from __future__ import annotations

from pathlib import Path

import click

from genmill.cli.options import open_store, with_data, with_json
from genmill.cli.screen import Exit, Screen, table
from genmill.doctor import examine
from genmill.registry import load_registry


@click.command(short_help="Look for leaked slots, lost jobs and unsafe settings.")
@click.option("--fix", "mend", is_flag=True, help="Mend what can be mended.")
@with_data
@with_json
def doctor(mend: bool, data: Path, screen: Screen) -> int:  # click passes flags so
    """Look for leaked slots, jobs in no place and settings that lose jobs. Exits with 1 when something is wrong.

    Safe on a busy fleet. Needs GENMILL_REDIS_URL or the data folder of `genmill up`.
    """
    with open_store(data) as store:
        found = list(examine(store, load_registry(store.settings.models), mend=mend))
    rows = [[finding.what, finding.fault, "mended" if finding.is_mended else ""] for finding in found]
    screen.show(
        [finding._asdict() for finding in found],
        lambda: table("where", "what is wrong", "", rows=rows) if rows else "all is in order",
    )
    return Exit.OK if all(finding.is_mended for finding in found) else Exit.NOT_DONE
