"""What the blueprints share: made once by `create_app`, found through the running app."""

from __future__ import annotations

from dataclasses import dataclass

from flask import current_app
from redis import Redis

from api.known_keys import KnownKeys
from genmill.batches import Intake, Ledger, ResultParts
from genmill.connections import connect
from genmill.links import Links
from genmill.registry import Registry, load_registry
from genmill.settings import Settings
from genmill.storage import Storage, open_storage
from genmill.store import Store

REDIS_TIMEOUT_S = 1.2
"""With one retry a caller has its 503 within about three seconds, also when Redis hangs."""

EXTENSION = "genmill"


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    registry: Registry
    redis: Redis
    known_keys: KnownKeys
    store: Store
    storage: Storage
    links: Links
    ledger: Ledger
    intake: Intake
    results: ResultParts


def open_services(settings: Settings) -> Services:
    """Raises SettingsInvalid; connects to nothing yet, so that the API starts before its Redis does."""
    redis = connect(settings, retries=1, timeout_s=REDIS_TIMEOUT_S)
    storage, ledger = open_storage(settings), Ledger(redis, settings)
    return Services(
        settings=settings,
        registry=load_registry(settings.models),
        redis=redis,
        known_keys=KnownKeys(redis),
        store=Store(redis, settings),
        storage=storage,
        links=Links(settings),
        ledger=ledger,
        intake=Intake(ledger, storage, settings),
        results=ResultParts(storage),
    )


def services() -> Services:
    found = current_app.extensions[EXTENSION]
    assert isinstance(found, Services)  # noqa: S101 - tells mypy what create_app put there
    return found
