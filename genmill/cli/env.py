"""`genmill env`: what a shell needs to take part in a fleet."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from genmill.cli.options import fleet_settings, with_data, with_json
from genmill.cli.screen import Screen
from genmill.environment import SHARED, WORKER_THREADS, as_environment, rq_environment


@click.command("env", short_help="Variables of the fleet that runs here, for RQ's commands.")
@with_data
@with_json
def show_env(data: Path, screen: Screen) -> None:
    """Variables of the fleet that runs here, for RQ's commands and further workers.

    \b
    eval "$(genmill env)"
    rq worker -S json p0 p1 p2 p3

    The secret key is among them: keep the output to yourself.
    """
    settings = fleet_settings(data)
    variables = as_environment(settings, SHARED) | dict(rq_environment(settings.redis_url)) | dict(WORKER_THREADS)
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    screen.show(variables, lambda: "\n".join(lines))
