"""`/v1/batches`: many jobs as the lines of one body or file, their results as they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, TypeVar

from flask import Blueprint, Response, jsonify, request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from api import desk, uploads
from api.auth import authenticate
from api.batch_lines import NativeLines
from api.batch_views import result_view
from api.line_streams import lines_response
from api.openai import batches as openai_batches
from api.requests import bounded_reading, check_type, read_json
from api.seats import Seats
from api.services import services
from api.submission import check_metadata
from genmill import net
from genmill.batches import BatchOrder, BatchRecord
from genmill.batches.parts import NDJSON
from genmill.batches.results import rows_after
from genmill.batches.views import batch_view
from genmill.errors import FieldFault, InvalidRequest, LimitReached, NotFound
from genmill.keys import JobClass
from genmill.links import Links
from genmill.registry import invalid_request
from genmill.storage.port import is_key

LINES_TYPES = frozenset({NDJSON, "application/jsonl", "application/jsonlines"})
MAX_EXPIRES_S = 30 * 24 * 3600
MOST_INTAKES = 8
"""Read at once, of which a tenant has its share: a large body takes minutes, or as long as its client likes, and keeps
64 files open."""
READ_BYTES = 1 << 16
SOURCES = ("file_id", "uri", "resume_of")
WEBHOOK_HEADER = "Genmill-Webhook"
"""The webhook of lines. A query stands in the logs of all that it passes, and such an address may hold a secret."""

Query = TypeVar("Query", bound=BaseModel)

blueprint = Blueprint("batches", __name__)
_seats = Seats(MOST_INTAKES)


class BatchOptions(BaseModel):
    """What is asked of a batch as a whole; the query of `POST /v1/batches` with lines in its body."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    priority: JobClass = Field(default=JobClass.P3, description="Class of lines that name none.")
    expires_in_s: int = Field(
        default=7 * 24 * 3600, ge=60, le=MAX_EXPIRES_S,
        description="The batch has so long; then what waits is canceled, and what is done is kept.",
    )  # fmt: skip
    rerun: bool = Field(default=False, description="Run the lines although a batch with the same ones has run them.")
    webhook: str | None = Field(default=None, description="Called once the batch has ended, signed.")


class BatchBody(BatchOptions):
    """Body of `POST /v1/batches` as JSON: where the lines come from. Exactly one of file_id, uri and resume_of."""

    file_id: str | None = Field(default=None, description="A file of POST /v1/files with purpose batch.")
    uri: str | None = Field(default=None, description="A file in genmill's own storage, under imports/<your tenant>/.")
    resume_of: str | None = Field(default=None, description="A batch of yours: its lines that did not succeed.")
    metadata: Annotated[dict[str, str], Field(max_length=16), AfterValidator(check_metadata)] = Field(
        default_factory=dict, description="Comes back with the batch; 4096 bytes of JSON."
    )


class ListQuery(BaseModel):
    """Query of `GET /v1/batches`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    after: str | None = None


class ResultsQuery(BaseModel):
    """Query of `GET /v1/batches/{id}/results`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    after: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=1)] | None = None


@blueprint.post("/v1/batches")
def create_batch() -> Response:
    tenant = authenticate()
    record, is_new = _create(tenant)
    response = jsonify(_view(record))
    response.status_code = 202 if is_new else 200
    response.headers["Location"] = services().links.batch_url(record.batch_id)
    if not is_new:
        response.headers["Idempotency-Replayed"] = "true"
    return response


@blueprint.get("/v1/batches")
def list_batches() -> Response:
    tenant, query = authenticate(), _query(ListQuery)
    found = services().ledger.page(tenant, query.after, query.limit + 1)
    views = [_view(record) for record in found[: query.limit]]
    more = {"after": views[-1]["id"]} if len(found) > query.limit else {}
    return jsonify(object="list", data=views, results=views, has_more=bool(more), **more)


@blueprint.get("/v1/batches/<batch_id>")
def read_batch(batch_id: str) -> Response:
    return jsonify(_view(services().ledger.own(batch_id, authenticate())))


@blueprint.post("/v1/batches/<batch_id>/cancel")
def cancel_batch(batch_id: str) -> Response:
    tenant, ledger = authenticate(), services().ledger
    ledger.own(batch_id, tenant)
    done = ledger.cancel(batch_id)
    return jsonify({**_view(ledger.own(batch_id, tenant)), "cancel": done})


@blueprint.get("/v1/batches/<batch_id>/results")
def read_results(batch_id: str) -> Response:
    record, query = services().ledger.own(batch_id, authenticate()), _query(ResultsQuery)
    rows = rows_after(record, query.after, services().ledger, services().results)
    return lines_response(_result_lines(rows, query.limit, services().links))


def _create(tenant: str) -> tuple[BatchRecord, bool]:
    is_lines = request.mimetype in LINES_TYPES
    if not is_lines:
        check_type(NDJSON, "application/json")
    raw = {} if is_lines else read_json()
    if (refusal := _seats.take(tenant)) is not None:
        most = _seats.most if refusal == "all" else _seats.most_of_tenant
        detail = f"{most} batches{'' if refusal == 'all' else ' of this tenant'} are read at once here; try again"
        fault = FieldFault("/", detail, f"{most}", f"{most}")
        raise LimitReached(detail, faults=(fault,), retry_after_s=5)
    try:
        if is_lines:
            return _take_in(_body_chunks(), _options_of_lines(), tenant, {})
        if WEBHOOK_HEADER in request.headers:
            raise _header_fault("a JSON body has its webhook beside its other fields", "with lines", "with JSON")
        if openai_batches.SOURCE in raw:
            return openai_batches.create(raw, tenant, services())
        return _from_source(_batch_body(raw), tenant)
    finally:
        _seats.give_back(tenant)


def _options_of_lines() -> BatchOptions:
    """Of the query and the header. Raises InvalidRequest."""
    options, given = _query(BatchOptions), request.headers.get(WEBHOOK_HEADER)
    if given is None:
        return options
    try:
        webhook = given.encode("latin-1").decode()  # WSGI hands bytes on so
    except UnicodeDecodeError:
        raise _header_fault("it is not UTF-8", "UTF-8", repr(given[:80])) from None
    if options.webhook not in (None, webhook):
        raise _header_fault("the query names another webhook", "1 webhook", "2 webhooks")
    return options.model_copy(update={"webhook": webhook})


def _header_fault(why: str, limit: str, value: str) -> InvalidRequest:
    detail = f"{WEBHOOK_HEADER}: {why}"
    return InvalidRequest(detail, faults=(FieldFault(f"/{WEBHOOK_HEADER}", detail, limit, value),))


def _batch_body(raw: Mapping[str, Any]) -> BatchBody:
    try:
        body = BatchBody.model_validate(raw)
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None
    given = [name for name in SOURCES if getattr(body, name) is not None]
    if len(given) != 1:
        detail = f"exactly one of {', '.join(SOURCES)} is needed, got {', '.join(given) or 'none'}"
        raise InvalidRequest(detail, faults=(FieldFault("/file_id", detail, "1 source", f"{len(given)} sources"),))
    return body


def _from_source(body: BatchBody, tenant: str) -> tuple[BatchRecord, bool]:
    if body.resume_of is not None:
        old = services().ledger.own(body.resume_of, tenant)
        order = _order(body, tenant, body.metadata or old.metadata)
        return services().intake.resume(old, replace(order, webhook=order.webhook or old.webhook))
    if body.file_id is not None:
        chunks = uploads.chunks(body.file_id, tenant, services())
    else:
        chunks = services().storage.chunks(_import_key(body.uri or "", tenant))
    return _take_in(chunks, body, tenant, body.metadata)


def _take_in(
    chunks: Iterable[bytes], options: BatchOptions, tenant: str, metadata: dict[str, str]
) -> tuple[BatchRecord, bool]:
    order = _order(options, tenant, metadata)
    return services().intake.create(chunks, NativeLines(services(), tenant, options.priority), order)


def _order(options: BatchOptions, tenant: str, metadata: Any) -> BatchOrder:
    """Raises UrlNotAllowed."""
    if options.webhook is not None:
        with desk.away():  # its host is looked up
            net.check_webhook(options.webhook, services().settings)
    return BatchOrder(
        tenant, options.expires_in_s, metadata=metadata, is_rerun=options.rerun, webhook=options.webhook,
        mark=options.priority.value,
    )  # fmt: skip


def _import_key(uri: str, tenant: str) -> str:
    """What operators put into the storage for a tenant. Raises NotFound for everything else."""
    root = services().settings.storage_url.rstrip("/") + "/"
    key = uri.removeprefix(root)
    if not uri.startswith(root) or not key.startswith(f"imports/{tenant}/") or not is_key(key):
        detail = f"There is no {uri[:200]!r}; a uri begins with the storage's own, then imports/{tenant}/<name>"
        raise NotFound(detail)
    return key


def _body_chunks() -> Iterator[bytes]:
    """The body as it comes. Raises InvalidRequest when it breaks off: gunicorn says so of a chunked body only, and
    ends one with a length as if it were whole."""
    most, given = services().settings.batch_max_bytes, request.content_length
    request.max_content_length = most + (given is None)  # without a length werkzeug cuts: one more, so that it is seen
    seen = 0
    while chunk := _next_chunk():
        seen += len(chunk)
        yield chunk
    if given is not None and seen < given:
        raise InvalidRequest(f"the body broke off after {seen} of {given} bytes")


def _next_chunk() -> bytes:
    with bounded_reading():
        return request.stream.read(READ_BYTES)


def _result_lines(rows: Iterable[bytes], limit: int | None, links: Links) -> Iterator[bytes]:
    for count, row in enumerate(rows):
        if count == limit:
            return
        yield result_view(row, links)


def _view(record: BatchRecord) -> dict[str, Any]:
    ledger = services().ledger
    running = 0 if record.state.is_terminal else len(ledger.running_lines(record.batch_id))
    view = batch_view(record, running, ledger.now_ms(), services().links)
    return view | openai_batches.batch_facts(record) if record.kind == openai_batches.KIND else view


def _query(model: type[Query]) -> Query:
    try:
        return model.model_validate(request.args.to_dict())
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None
