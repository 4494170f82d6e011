"""`/v1/files`: images uploaded once and used as input images by `file:<id>`, and lines of batches, for the clients of
all dialects."""

from __future__ import annotations

import hashlib
import json
import time
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from flask import Blueprint, Response, jsonify, request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Json, ValidationError
from werkzeug.datastructures import FileStorage

from api import uploads
from api.auth import authenticate
from api.line_streams import lines_response
from api.openai import batch_files
from api.outputs import object_response
from api.requests import read_form
from api.services import services
from api.submission import MAX_METADATA_BYTES
from api.uploads import FilePage, Upload
from genmill import strict_json
from genmill.batches.parts import NDJSON
from genmill.errors import FieldFault, InvalidRequest
from genmill.images import FORMATS, open_header
from genmill.jobs import new_job_id
from genmill.registry import invalid_request

FIELDS = ("content", "file")
"""Where the file stands in the form: replicate's client says `content`, openai's `file`."""

BATCH = "batch"
"""The purpose of a file of lines; it is as large as a request may be, more is streamed to POST /v1/batches."""

Purpose = Literal["vision", "user_data", "assistants", "batch"]

blueprint = Blueprint("files", __name__)


def _strict(text: object) -> object:
    """Raises ValueError where pydantic reads more than JSON: NaN, for one."""
    if isinstance(text, str):
        strict_json.loads(text)
    return text


class UploadForm(BaseModel):
    """The form of `POST /v1/files`, but for the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    purpose: Purpose = Field(default="vision", description="`batch` for lines of a batch; else it is an image.")
    metadata: Annotated[Json[dict[str, Any]], BeforeValidator(_strict)] = Field(
        default_factory=dict, description="JSON object, given back with the file."
    )
    anchor: Literal["created_at"] = Field(default="created_at", alias="expires_after[anchor]")
    lifetime_s: Annotated[int, Field(ge=3600, le=2_592_000)] | None = Field(
        default=None, alias="expires_after[seconds]", description="Without it the file stays until it is deleted."
    )


class FileQuery(BaseModel):
    """Query of `GET /v1/files`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: Annotated[int, Field(ge=1, le=10_000)] = 100
    after: str | None = None
    order: Literal["asc", "desc"] = "desc"
    purpose: str | None = None


@blueprint.post("/v1/files")
def upload_file() -> Response:
    tenant = authenticate()
    given = _upload()
    form = _form()
    body, content_type = _lines(given) if form.purpose == BATCH else _image(given)
    created_s = time.time()
    upload = Upload(
        file_id=f"file_{new_job_id()}", name=(given.filename or "file")[:255],
        content_type=content_type, size=len(body), sha256=hashlib.sha256(body).hexdigest(),
        purpose=form.purpose, created_s=created_s, metadata=form.metadata,
        expires_s=None if form.lifetime_s is None else int(created_s) + form.lifetime_s,
    )  # fmt: skip
    uploads.keep(upload, body, tenant, services())
    response = jsonify(_view(upload, is_openai=given.name == "file"))
    response.status_code = 201
    response.headers["Location"] = services().links.file_url(upload.file_id)
    return response


@blueprint.get("/v1/files")
def list_files() -> Response:
    tenant = authenticate()
    try:
        query = FileQuery.model_validate(request.args.to_dict())
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None
    asked = FilePage(query.limit, query.after or None, query.purpose, is_newest_first=query.order == "desc")
    page, has_more = uploads.list_uploads(tenant, services(), asked)
    views = [_view(upload, is_openai=_wants_json()) for upload in page]
    ends = {"first_id": page[0].file_id, "last_id": page[-1].file_id} if page else {}
    return jsonify(object="list", data=views, results=views, has_more=has_more, **ends)


@blueprint.get("/v1/files/<file_id>")
def read_file(file_id: str) -> Response:
    tenant = authenticate()
    known = batch_files.facts if batch_files.is_result_file(file_id) else uploads.find
    return jsonify(_view(known(file_id, tenant, services()), is_openai=_wants_json()))


@blueprint.get("/v1/files/<file_id>/content")
def read_file_content(file_id: str) -> Response:
    tenant = authenticate()
    if batch_files.is_result_file(file_id):
        return lines_response(batch_files.content(file_id, tenant, services()))
    return object_response(uploads.content(file_id, tenant, services()))


@blueprint.delete("/v1/files/<file_id>")
def delete_file(file_id: str) -> Response:
    """replicate's client looks for 204, openai's for a body; only the latter asks for JSON by name."""
    uploads.remove(file_id, authenticate(), services())
    if _wants_json():
        return jsonify(id=file_id, object="file", deleted=True)
    return Response(status=204)


def _wants_json() -> bool:
    return "application/json" in request.headers.get("Accept", "")


def _upload() -> FileStorage:
    read_form()
    for name in FIELDS:
        if name in request.files:
            return request.files[name]
    detail = f"one file in the field {' or '.join(FIELDS)} is needed"
    raise InvalidRequest(detail, faults=(FieldFault(f"/{FIELDS[0]}", detail, "1 file", "0 files"),))


def _image(given: FileStorage) -> tuple[bytes, str]:
    """Bytes and content type. Raises InvalidImage."""
    body = given.read(services().settings.max_image_bytes + 1)
    header = open_header(body, services().settings, f"/{given.name}")
    return body, FORMATS[header.format or "PNG"]


def _lines(given: FileStorage) -> tuple[bytes, str]:
    """What they say is read when the batch is made."""
    return given.read(), NDJSON


def _form() -> UploadForm:
    """Raises InvalidRequest."""
    try:
        form = UploadForm.model_validate(request.form.to_dict())
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None
    size = len(json.dumps(form.metadata))
    if size > MAX_METADATA_BYTES:
        limit, value = f"{MAX_METADATA_BYTES} bytes", f"{size} bytes"
        detail = f"metadata takes {value} as JSON, at most {limit} are kept"
        raise InvalidRequest(detail, faults=(FieldFault("/metadata", detail, limit, value),))
    return form


def _view(upload: Upload, *, is_openai: bool) -> dict[str, Any]:
    """Both what replicate's and what openai's client read; times are numbers for the one, text for the other."""
    view: dict[str, Any] = {
        "id": upload.file_id,
        "object": "file",
        "name": upload.name,
        "filename": upload.name,
        "content_type": upload.content_type,
        "size": upload.size,
        "bytes": upload.size,
        "etag": upload.sha256,
        "checksums": {"sha256": upload.sha256},
        "metadata": dict(upload.metadata),
        "purpose": upload.purpose,
        "status": "processed",
        "created_at": _time(upload.created_s, is_openai=is_openai),
        "urls": {"get": services().links.file_url(upload.file_id)},
    }
    if upload.expires_s is not None:
        view["expires_at"] = _time(upload.expires_s, is_openai=is_openai)
    return view


def _time(unix_s: float, *, is_openai: bool) -> int | str:
    return int(unix_s) if is_openai else datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")
