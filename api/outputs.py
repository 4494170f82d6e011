"""`/v1/outputs`: what jobs made, under signed links."""

from __future__ import annotations

import hashlib

from flask import Blueprint, Response, request

from api.services import services
from genmill.errors import NotFound, OutputExpired
from genmill.storage import StoredObject

MAX_AGE_S = 3600

blueprint = Blueprint("outputs", __name__)


@blueprint.get("/v1/outputs/<path:key>")
def read_output(key: str) -> Response:
    """What was signed was there once.

    A direct 200: clients that send their API key along would be refused by a presigned S3 link."""
    services().links.check(key, request.args.get("expires", ""), request.args.get("signature", ""))
    try:
        return object_response(services().storage.get(key))
    except NotFound:
        raise OutputExpired("This output is kept no more") from None


def object_response(stored: StoredObject) -> Response:
    """Objects never change under their key, so caches may keep them."""
    response = Response(stored.body, mimetype=stored.content_type)
    response.headers["Cache-Control"] = f"private, max-age={MAX_AGE_S}, immutable"
    response.headers["Content-Disposition"] = "inline"
    response.set_etag(hashlib.sha256(stored.body).hexdigest())
    response.make_conditional(request)
    return response
