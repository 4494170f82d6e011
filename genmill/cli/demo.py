"""`genmill demo`: the main job, measured."""

from __future__ import annotations

from pathlib import Path

import click

from genmill.cli.options import with_json
from genmill.cli.screen import Exit, Screen


@click.command(short_help="Run 56 real jobs and compare with plain pipeline calls.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/demo"), show_default=True,
    help="Folder for contact-sheet.png, report.json and up.log.",
)  # fmt: skip
@with_json
def demo(out: Path, screen: Screen) -> Exit:
    """Run 56 real jobs on a fleet of its own and compare with plain pipeline calls.

    Writes a contact sheet and a report, and exits with 1 when anything fell short of what genmill promises.
    """
    from genmill.demo.run import run_demo  # noqa: PLC0415 - pillow and numpy, for this command only

    return run_demo(out, screen)
