"""`genmill keys` and `genmill webhook-secret`: for whoever runs the fleet, next to its Redis."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from genmill import tenants
from genmill.cli.options import open_client, open_redis, operator_settings, with_client, with_data, with_json
from genmill.cli.screen import Screen, table
from genmill.links import Links


@click.group()
def keys() -> None:
    """Create, list and revoke API keys. Needs GENMILL_REDIS_URL or the data folder of `genmill up`."""


@keys.command("create")
@click.argument("tenant")
@click.option("--name", default="", help="What the key is for.")
@with_data
@with_json
def create_key(tenant: str, name: str, data: Path, screen: Screen) -> None:
    """A new key for TENANT. It is shown this once and stored hashed."""
    with open_redis(data) as redis:
        key = tenants.create(redis, tenant, name)
    screen.show({"tenant": tenant, "name": name, "key": key}, lambda: key)


@keys.command("list")
@with_data
@with_json
def list_keys(data: Path, screen: Screen) -> None:
    """All keys, oldest first."""
    with open_redis(data) as redis:
        found = [asdict(key) for key in tenants.list_keys(redis)]
    rows = [[key["key_id"], key["tenant"], key["name"], key["created_at"]] for key in found]
    screen.show(found, lambda: table("id", "tenant", "name", "created", rows=rows) if rows else "no keys")


@keys.command("revoke")
@click.argument("key_or_id")
@with_data
@with_json
def revoke_key(key_or_id: str, data: Path, screen: Screen) -> None:
    """Take back a key, named by itself or by its id."""
    with open_redis(data) as redis:
        gone = tenants.revoke(redis, key_or_id)
    screen.show(asdict(gone), lambda: f"revoked {gone.key_id} of {gone.tenant}")


@click.command("webhook-secret")
@click.option("--tenant", help="Work it out here for this tenant, from GENMILL_SECRET_KEY or the data folder.")
@with_data
@with_client
@with_json
def webhook_secret(tenant: str | None, data: Path, url: str | None, api_key: str | None, screen: Screen) -> None:
    """The secret that signs your webhooks (Standard Webhooks)."""
    if tenant is None:
        with open_client(url, api_key) as client:
            secret = client.webhook_secret()
    else:
        tenants.check_name(tenant)
        secret = Links(operator_settings(data)).webhook_secret(tenant)
    screen.show({"key": secret}, lambda: secret)
