"""`/v1/webhooks`: the secret that a receiver verifies signatures with."""

from __future__ import annotations

from flask import Blueprint, Response, jsonify

from api.auth import authenticate
from api.services import services
from genmill.api_keys import Scope

blueprint = Blueprint("webhooks", __name__)


@blueprint.get("/v1/webhooks/default/secret")
def read_secret() -> Response:
    """Not for keys that only read: whoever has the secret can sign what a receiver will believe."""
    return jsonify(key=services().links.webhook_secret(authenticate(Scope.SUBMIT)))
