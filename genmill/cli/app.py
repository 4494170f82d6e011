"""The commands in one group, and the edge where errors become one line on stderr and an exit code."""

from __future__ import annotations

import sys

import click

from genmill import __version__
from genmill.cli.audit import audit
from genmill.cli.backfill import backfill
from genmill.cli.batches import batches
from genmill.cli.demo import demo
from genmill.cli.doctor import doctor
from genmill.cli.env import show_env
from genmill.cli.jobs import jobs
from genmill.cli.keys import keys, webhook_secret
from genmill.cli.limits import limits
from genmill.cli.profile import profile
from genmill.cli.screen import Exit, report
from genmill.cli.status import models, status
from genmill.cli.submit import submit
from genmill.cli.tenants import tenants
from genmill.cli.up import up
from genmill.cli.usage import usage


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="genmill")
def cli() -> None:
    """Images and texts from models, as jobs on a fleet.

    \b
    genmill up                                     run everything on this machine
    genmill submit shapes "a red circle on a blue background" -o circle.png
    genmill jobs watch ID                          follow a job to its end
    genmill backfill lines.jsonl -o pictures       many jobs from a file; goes on after Ctrl-C

    Exit codes: 0 done, 1 the job did not succeed, 2 wrong usage, 3 refused, 4 unavailable (try again),
    5 waited too long.
    """


OPERATORS = (keys, tenants, limits, usage, audit, profile, doctor, show_env)

for command in (up, demo, submit, backfill, jobs, batches, status, models, webhook_secret, *OPERATORS):
    cli.add_command(command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: runs a command and exits with its code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        code = cli.main(given, prog_name="genmill", standalone_mode=False)
    except click.ClickException as err:
        if isinstance(err, click.UsageError):
            err.show()
            if "unexpected extra argument" in err.message:
                click.echo("A text of several words stands in quotes.", err=True)
        else:
            click.echo(f"genmill: {err.format_message()}", err=True)
        sys.exit(Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        click.echo("genmill: interrupted", err=True)
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe has what it wanted
        sys.exit(Exit.OK)
    except Exception as err:  # noqa: BLE001 - the edge of the process: every error becomes one line and a code
        sys.exit(report(err, is_json="--json" in given))
    sys.exit(code if isinstance(code, int) else Exit.OK)
