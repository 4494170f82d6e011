"""`genmill keys` and `genmill webhook-secret`: for whoever runs the fleet, next to its Redis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from genmill import api_keys
from genmill.api_keys import ApiKey, Scope
from genmill.cli.options import open_client, open_redis, operator_settings, with_client, with_data, with_json
from genmill.cli.screen import Screen, moment, table
from genmill.cli.values import seconds
from genmill.links import Links
from genmill.tenants import check_name


@click.group()
def keys() -> None:
    """Create, list, rotate and revoke API keys. Needs GENMILL_REDIS_URL or the data folder of `genmill up`."""


@keys.command("create")
@click.argument("tenant")
@click.option("--name", default="", help="What the key is for.")
@click.option(
    "--scope", "scopes", multiple=True, type=click.Choice([scope.value for scope in Scope]),
    help="What it may do; may be repeated.  [default: submit and read]",
)  # fmt: skip
@click.option("--expires", type=seconds, help="Its length of life, such as 90d, 12h or 3600.")
@with_data
@with_json
def create_key(
    tenant: str, name: str, scopes: Sequence[str], expires: float | None, data: Path, screen: Screen
) -> None:
    """A new key for TENANT. It is shown this once and stored hashed."""
    with open_redis(data) as redis:
        wanted = scopes or api_keys.DEFAULT_SCOPES
        key = api_keys.create(redis, tenant, name, scopes=wanted, lifetime_s=expires)
        facts = api_keys.find(redis, api_keys.key_id_of(key))
    screen.show({**api_keys.as_json(facts), "key": key}, lambda: key)


@keys.command("list")
@with_data
@with_json
def list_keys(data: Path, screen: Screen) -> None:
    """All keys, oldest first. Times are UTC."""
    with open_redis(data) as redis:
        found = api_keys.list_keys(redis)
    columns = ("id", "tenant", "name", "scopes", "created", "expires", "last used")
    rows = [_row(key) for key in found]
    screen.show(
        [api_keys.as_json(key) for key in found], lambda: table(*columns, rows=rows) if rows else "no keys"
    )  # fmt: skip


@keys.command("rotate")
@click.argument("key_or_id")
@click.option("--grace", type=seconds, default="24h", show_default=True, help="How long the old key still works.")
@with_data
@with_json
def rotate_key(key_or_id: str, grace: float, data: Path, screen: Screen) -> None:
    """A new key in the place of an old one, named by itself or by its id. It is shown this once."""
    with open_redis(data) as redis:
        key = api_keys.rotate(redis, key_or_id, grace_s=grace)
        facts = api_keys.find(redis, api_keys.key_id_of(key))
    screen.show({**api_keys.as_json(facts), "key": key}, lambda: key)


@keys.command("revoke")
@click.argument("key_or_id")
@with_data
@with_json
def revoke_key(key_or_id: str, data: Path, screen: Screen) -> None:
    """Take back a key, named by itself or by its id."""
    with open_redis(data) as redis:
        gone = api_keys.revoke(redis, key_or_id)
    screen.show(api_keys.as_json(gone), lambda: f"revoked {gone.key_id} of {gone.tenant}")


@click.command("webhook-secret")
@click.option("--tenant", help="Work it out here for this tenant, from GENMILL_SECRET_KEY or the data folder.")
@with_data
@with_client
@with_json
def webhook_secret(tenant: str | None, data: Path, url: str | None, api_key: str | None, screen: Screen) -> None:
    """The secret that signs your webhooks (Standard Webhooks)."""
    if tenant is None:
        with open_client(url, api_key, screen) as client:
            secret = client.webhook_secret()
    else:
        check_name(tenant)
        secret = Links(operator_settings(data)).webhook_secret(tenant)
    screen.show({"key": secret}, lambda: secret)


def _row(key: ApiKey) -> list[str]:
    times = [moment(time or "never") for time in (key.created_at, key.expires_at, key.last_used_at)]
    return [key.key_id, key.tenant, key.name, " ".join(key.scopes), *times]
