"""The Flask app."""

from __future__ import annotations

from flask import Flask

from api import (
    admin,
    batches,
    deliveries,
    desk,
    events,
    files,
    health,
    idempotency,
    jobs,
    models,
    outputs,
    problems,
    rate_limits,
    requests,
    usage,
    webhooks,
)
from api.openai import images, texts
from api.replicate import models as owned_models
from api.replicate import predictions, streaming
from api.services import EXTENSION, open_services
from genmill.settings import Settings, load_settings

FORM_BYTES, FORM_PARTS = 100_000, 20
"""Of an upload, besides its file."""


def create_app(settings: Settings | None = None) -> Flask:
    """Settings from the environment when none are given. Raises SettingsInvalid naming every fault."""
    settings = settings or load_settings()
    app = Flask("genmill.api", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.config["MAX_FORM_MEMORY_SIZE"], app.config["MAX_FORM_PARTS"] = FORM_BYTES, FORM_PARTS
    app.json.sort_keys = False  # type: ignore[attr-defined]  # of Flask's default provider
    app.extensions[EXTENSION] = open_services(settings)
    desk.install(app)
    requests.install(app)
    idempotency.install(app)
    problems.install(app)
    rate_limits.install(app)
    native = (jobs, events, batches, deliveries, models, files, outputs, webhooks, usage, admin, health)
    for room in (*native, predictions, streaming, owned_models, images, texts):
        app.register_blueprint(room.blueprint)
    return app
