"""The Flask app."""

from __future__ import annotations

from flask import Flask

from api import files, health, jobs, models, outputs, problems, requests, webhooks
from api.services import EXTENSION, open_services
from genmill.settings import Settings, load_settings


def create_app(settings: Settings | None = None) -> Flask:
    """Settings from the environment when none are given. Raises SettingsInvalid naming every fault."""
    settings = settings or load_settings()
    app = Flask("genmill.api", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    app.json.sort_keys = False  # type: ignore[attr-defined]  # of Flask's default provider
    app.extensions[EXTENSION] = open_services(settings)
    requests.install(app)
    problems.install(app)
    for room in (jobs, models, files, outputs, webhooks, health):
        app.register_blueprint(room.blueprint)
    return app
