"""`genmill up`: the whole of genmill on this machine."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from genmill.up.folder import DEFAULT_DATA, UpFailed


@click.command(short_help="Run all on this machine: Valkey, API, workers, scheduler.")
@click.option(
    "--data", type=click.Path(path_type=Path, file_okay=False), default=DEFAULT_DATA, show_default=True,
    help="Folder for the queue, the outputs and the secret key; a later run goes on with it.",
)  # fmt: skip
@click.option("--host", help="Address to listen at.  [env var: GENMILL_HOST; default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="[env var: GENMILL_PORT; default: 8080]")
@click.option("--workers", type=click.IntRange(0, 64), default=1, show_default=True, help="Worker processes.")
def up(data: Path, host: str | None, port: int | None, workers: int) -> int:
    """Run everything on this machine: Valkey, API, workers, callbacks, scheduler.

    Valkey is left out when GENMILL_REDIS_URL names a Redis or Valkey of yours. API keys are needed unless the host
    is a loopback address (GENMILL_AUTH decides). Ctrl-C or SIGTERM ends all of it: running jobs finish or go back
    to the queue, Valkey stops last. When one process ends by itself, all are stopped and its exit code is returned.
    """
    try:
        run = importlib.import_module("genmill.up.run")
    except ModuleNotFoundError as err:
        raise UpFailed(f"{err.name} is not installed: pip install 'genmill[embedded]'") from None
    return int(run.run_up(run.UpOptions(data, host, port, workers)))
