"""Options that commands share, and what they open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
from click.core import ParameterSource
from redis import Redis

from genmill.cli.screen import Screen
from genmill.client import ApiUnreachable, Client, ClientSettings
from genmill.connections import connect
from genmill.errors import GenmillError, SettingsInvalid
from genmill.settings import LOOPBACK, Settings, load_settings
from genmill.store import Store
from genmill.up.folder import DEFAULT_DATA, DataFolder
from genmill.up.ports import is_free

LEAST_TOLD_S = 2.0
"""A wait that is told of."""

Command = TypeVar("Command", bound=Callable[..., Any])


def with_json(command: Command) -> Command:
    """Adds `--json`; the command gets `screen` in its place."""
    option = click.option(
        "--json", "screen", is_flag=True, callback=lambda _context, _option, given: Screen(given),
        help="Print one JSON document instead of text.",
    )  # fmt: skip
    return option(command)


def with_client(command: Command) -> Command:
    """Adds `--url` and `--api-key`; the command gets `url` and `api_key`."""
    url = click.option("--url", help="Where the API listens.  [env var: GENMILL_URL; default: http://127.0.0.1:8080]")
    key = click.option("--api-key", help="The tenant's key.  [env var: GENMILL_API_KEY]")
    return url(key(command))


def with_data(command: Command) -> Command:
    """Adds `--data`: the folder of the `genmill up` that is meant when the environment names no Redis."""
    option = click.option(
        "--data", type=click.Path(path_type=Path, file_okay=False), default=DEFAULT_DATA, show_default=True,
        help="Data folder of genmill up; where it is named it goes before the environment.",
    )  # fmt: skip
    return option(command)


def open_client(url: str | None, api_key: str | None, screen: Screen) -> Client:
    """Says what it waits for. Raises ApiUnreachable at once, not after the client's retries, where nothing listens on
    this machine."""
    base = url or ClientSettings().url
    parts = urlsplit(base)
    if parts.hostname in LOOPBACK and is_free(parts.hostname, parts.port or 80):
        raise ApiUnreachable(f"nothing listens at {base}; genmill up starts a fleet here, --url names another one")

    def tell(error: GenmillError, pause_s: float) -> None:
        if pause_s >= LEAST_TOLD_S and not screen.is_json:
            screen.say(f"{error.detail}; trying again in {pause_s:.0f} s", style="yellow")

    return Client(url, api_key, on_pause=tell)


def operator_settings(data: Path) -> Settings:
    """Settings of the fleet that runs on this machine: the data folder where `--data` names one, else the environment
    before the folder."""
    settings, folder = load_settings(), DataFolder(data)
    own = {
        "redis_url": folder.redis_url(),
        "secret_key": folder.secret_key() if folder.has_secret() else None,
        "storage_url": folder.outputs.as_uri() if folder.redis_url() else None,
    }
    given = set() if _is_named("data") else settings.model_fields_set
    return load_settings(**{name: value for name, value in own.items() if value is not None and name not in given})


def _is_named(option: str) -> bool:
    """Whether the option stands on the command line."""
    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source(option) is ParameterSource.COMMANDLINE


@contextmanager
def open_store(data: Path) -> Iterator[Store]:
    """Raises SettingsInvalid when nothing tells which Redis is meant."""
    with open_redis(data) as redis:
        yield Store(redis, operator_settings(data))


def open_redis(data: Path) -> Redis:
    """Raises SettingsInvalid when nothing tells which Redis is meant."""
    return connect(fleet_settings(data))


def fleet_settings(data: Path) -> Settings:
    """`operator_settings` of a fleet that there is. Raises SettingsInvalid when nothing tells which Redis is meant."""
    settings = operator_settings(data)
    is_known = DataFolder(data).redis_url() is not None or not _is_named("data")
    if not is_known or "redis_url" not in settings.model_fields_set:
        raise SettingsInvalid(f"no Redis is known: set GENMILL_REDIS_URL, or run genmill up ({data} holds no run)")
    return settings
