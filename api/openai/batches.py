"""OpenAI's batches: made from a file of lines, and how its client sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from api import uploads
from api.batch_lines import NativeLines
from api.openai.batch_files import ResultFile, has_lines, id_of
from api.openai.batch_lines import Endpoint, OpenAILines
from api.openai.retries import is_retry
from api.services import Services
from genmill.batches import BatchOrder, BatchRecord, BatchState
from genmill.errors import FieldFault, InvalidRequest
from genmill.keys import HELD_TTL_S, JobClass
from genmill.registry import invalid_request

KIND = "openai"
WINDOW_S = 24 * 3600
MOST_SEEN = 100
"""Latest batches of a tenant among which a retry looks for that of its first try."""
SOURCE = "input_file_id"
"""By this field a body of `POST /v1/batches` is of this dialect."""


class OpenAIBatchBody(BaseModel):
    """Body of `POST /v1/batches`, as OpenAI's client sends it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input_file_id: str = Field(description="A file of POST /v1/files with purpose batch.")
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: (
        Annotated[
            dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = Field(default=None, description="Comes back with the batch.")


def create(raw: Mapping[str, Any], tenant: str, found: Services) -> tuple[BatchRecord, bool]:
    """Returns (the batch, whether it is new): only a request that the client repeats finds the batch of its first try,
    within HELD_TTL_S.

    Raises InvalidRequest, NotFound, and what Intake.create raises.
    """
    try:
        body = OpenAIBatchBody.model_validate(raw)
    except ValidationError as err:
        raise invalid_request(err, prefix="") from None
    upload = uploads.find(body.input_file_id, tenant, found)
    if upload.purpose != "batch":
        detail = f"input_file_id must be a file with the purpose batch, got {upload.purpose}"
        raise InvalidRequest(detail, faults=(FieldFault(f"/{SOURCE}", detail, "batch", upload.purpose),))
    about = {"endpoint": body.endpoint, "input_file_id": body.input_file_id}
    order = BatchOrder(
        tenant, WINDOW_S, kind=KIND, metadata=body.metadata or {}, about=about,
        is_rerun=not is_retry() or _was_long_ago(about, tenant, found),
        mark=f"{body.endpoint} {body.input_file_id}",
    )  # fmt: skip
    lines = OpenAILines(body.endpoint, NativeLines(found, tenant, JobClass.P3))
    return found.intake.create(uploads.chunks(body.input_file_id, tenant, found), lines, order)


def _was_long_ago(about: Mapping[str, Any], tenant: str, found: Services) -> bool:
    """Whether the latest batch like this is older than any first try of this request. One that is not there yet may
    still be taken in."""
    recent = found.ledger.page(tenant, None, MOST_SEEN)
    ages_s = [(found.ledger.now_ms() - one.created_ms) / 1000 for one in recent if one.about == about]
    return bool(ages_s) and min(ages_s) > HELD_TTL_S


def batch_facts(record: BatchRecord) -> dict[str, Any]:
    """What OpenAI's client reads of a batch, in Unix seconds."""
    files = {"output_file_id": ResultFile.OUTPUT, "error_file_id": ResultFile.ERRORS}
    called_off = record.total - record.done if record.state.is_terminal else 0
    return {
        "status": _status(record.state),
        **record.about,
        "completion_window": "24h",
        "request_counts": {
            "total": record.total, "completed": record.succeeded,
            "failed": record.failed + record.canceled + called_off,
        },
        **{name: id_of(record, which) if has_lines(record, which) else None for name, which in files.items()},
        "errors": None,
        "created_at": _seconds(record.created_ms),
        "in_progress_at": _seconds(record.created_ms),
        "expires_at": _seconds(record.expires_ms),
        "cancelling_at": _seconds(record.cancelling_ms),
        **{f"{state.value}_at": _seconds(record.ended_ms) for state in _ENDS if state is record.state},
    }  # fmt: skip


_ENDS = (BatchState.COMPLETED, BatchState.CANCELLED, BatchState.EXPIRED)


def _status(state: BatchState) -> str:
    """OpenAI has no word for a batch whose time is up and whose last lines still run."""
    return "finalizing" if state is BatchState.EXPIRING else state.value


def _seconds(ms: float | None) -> int | None:
    return None if ms is None else int(ms / 1000)
