"""`/v1/files`: images uploaded once and used as init images by `file:<id>`, and lines of batches."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from flask import Blueprint, Response, jsonify, request
from werkzeug.datastructures import FileStorage

from api.auth import authenticate
from api.init_images import file_key
from api.outputs import object_response
from api.services import services
from genmill.batches.parts import NDJSON
from genmill.errors import FieldFault, InvalidRequest, UnsupportedMediaType
from genmill.images import FORMATS, open_header
from genmill.jobs import new_job_id

FIELDS = ("content", "file")
BATCH = "batch"
"""The purpose of a file of lines; it is as large as a request may be, more is streamed to POST /v1/batches."""

blueprint = Blueprint("files", __name__)


@blueprint.post("/v1/files")
def upload_file() -> Response:
    tenant = authenticate()
    upload, purpose = _upload(), _purpose()
    if purpose == BATCH:
        body, content_type = upload.read(), NDJSON
    else:
        body = upload.read(services().settings.max_image_bytes + 1)
        header = open_header(body, services().settings, f"/{upload.name}")
        content_type = FORMATS[header.format or "PNG"]
    file_id = f"file_{new_job_id()}"
    services().storage.put(file_key(tenant, file_id), body, content_type)
    response = jsonify(_view(file_id, upload, body, content_type, purpose))
    response.status_code = 201
    response.headers["Location"] = services().links.file_url(file_id)
    return response


@blueprint.get("/v1/files/<file_id>/content")
def read_file(file_id: str) -> Response:
    return object_response(services().storage.get(file_key(authenticate(), file_id)))


def _upload() -> FileStorage:
    if request.mimetype != "multipart/form-data":
        got = request.mimetype or "none"
        detail = f"the content type must be multipart/form-data, got {got[:80]}"
        raise UnsupportedMediaType(detail, faults=(FieldFault("/", detail, "multipart/form-data", got[:80]),))
    for name in FIELDS:
        if name in request.files:
            return request.files[name]
    detail = f"one file in the field {' or '.join(FIELDS)} is needed"
    raise InvalidRequest(detail, faults=(FieldFault(f"/{FIELDS[0]}", detail, "1 file", "0 files"),))


def _purpose() -> str:
    """`batch` for lines; whatever else is said, the file is an image."""
    return BATCH if request.form.get("purpose") == BATCH else "vision"


def _view(file_id: str, upload: FileStorage, body: bytes, content_type: str, purpose: str) -> dict[str, Any]:
    """Both what replicate's and what openai's client read, so that either accepts it."""
    digest = hashlib.sha256(body).hexdigest()
    name = (upload.filename or "file")[:255]
    now = datetime.now(UTC)
    return {
        "id": file_id,
        "object": "file",
        "name": name,
        "filename": name,
        "content_type": content_type,
        "size": len(body),
        "bytes": len(body),
        "etag": digest,
        "checksums": {"sha256": digest},
        "metadata": {},
        "purpose": purpose,
        "status": "processed",
        "created_at": int(now.timestamp()) if upload.name == "file" else now.isoformat(timespec="seconds"),
        "urls": {"get": services().links.file_url(file_id)},
    }
