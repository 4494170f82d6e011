"""The output and error files of OpenAI's batches: written from the results when they are read."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from api.openai.forms import CHAT, COMPLETION, whole_answer
from api.openai.images import images_answer
from api.services import Services
from api.uploads import Upload
from genmill.batches import BatchRecord, BatchState, LineParts
from genmill.batches.parts import NDJSON
from genmill.batches.records import job_id_of
from genmill.batches.results import rows_after
from genmill.errors import BatchNotFound, NotFound
from genmill.jobs import JobState

_FILE_ID = re.compile(r"(batch_[0-9a-z]{26})-(output|errors)")


class ResultFile(StrEnum):
    OUTPUT = "output"
    ERRORS = "errors"


def id_of(record: BatchRecord, which: ResultFile) -> str:
    return f"{record.batch_id}-{which}"


def has_lines(record: BatchRecord, which: ResultFile) -> bool:
    """The file is there from the batch's end on, if it has lines at all."""
    lines = record.succeeded if which is ResultFile.OUTPUT else record.total - record.succeeded
    return record.state.is_terminal and lines > 0


def is_result_file(file_id: str) -> bool:
    return _FILE_ID.fullmatch(file_id) is not None


def facts(file_id: str, tenant: str, found: Services) -> Upload:
    """Raises NotFound. Reads the whole file to tell its size."""
    record, which = _find(file_id, tenant, found)
    size, digest = 0, hashlib.sha256()
    for line in _lines(record, which, found):
        size += len(line)
        digest.update(line)
    return Upload(
        file_id=file_id, name=f"{file_id}.jsonl", content_type=NDJSON, size=size, sha256=digest.hexdigest(),
        purpose="batch_output", created_s=(record.ended_ms or 0) / 1000,
    )  # fmt: skip


def content(file_id: str, tenant: str, found: Services) -> Iterator[bytes]:
    """Its lines, links in them signed afresh. Raises NotFound at once, StorageUnavailable on the way."""
    record, which = _find(file_id, tenant, found)
    return _lines(record, which, found)


def _find(file_id: str, tenant: str, found: Services) -> tuple[BatchRecord, ResultFile]:
    matched = _FILE_ID.fullmatch(file_id)
    if matched is not None:
        try:
            record, which = found.ledger.own(matched[1], tenant), ResultFile(matched[2])
        except BatchNotFound:
            raise NotFound("No such file") from None
        if "endpoint" in record.about and has_lines(record, which):
            return record, which
    raise NotFound("No such file")


def _lines(record: BatchRecord, which: ResultFile, found: Services) -> Iterator[bytes]:
    for row in rows_after(record, 0, found.ledger, found.results):
        result = json.loads(row)
        is_output = result["state"] == JobState.SUCCEEDED
        if is_output is (which is ResultFile.OUTPUT):
            yield _encoded(_success(record, result, found) if is_output else _failure(record, result))
    if which is ResultFile.ERRORS:
        yield from _never_run(record, found)


def _success(record: BatchRecord, result: Mapping[str, Any], found: Services) -> dict[str, Any]:
    body = _body(record, result, found)
    return _line(result, response={"status_code": 200, "request_id": result["job_id"], "body": body})


def _body(record: BatchRecord, result: Mapping[str, Any], found: Services) -> dict[str, Any]:
    known: Any = {
        "job_id": result["job_id"], "ended_ms": record.ended_ms or 0,
        "seed": (result.get("receipt") or {}).get("seed"),
    }  # fmt: skip
    if "text" not in result:
        outputs = result["outputs"]
        return images_answer([{"url": found.links.output_url(one["key"])} for one in outputs], outputs, **known)
    form = CHAT if record.about["endpoint"] == "/v1/chat/completions" else COMPLETION
    return whole_answer(form, result["text"], model=result["model"], **known)


def _failure(record: BatchRecord, result: Mapping[str, Any]) -> dict[str, Any]:
    error = result["error"] or {"code": "job_failed", "message": "The job could not be completed."}
    if result["state"] == JobState.CANCELED and record.state is BatchState.EXPIRED:
        error = _called_off(record)
    return _line(result, error={"code": error["code"], "message": error["message"]})


def _never_run(record: BatchRecord, found: Services) -> Iterator[bytes]:
    """Lines that had no job yet when the batch was called off."""
    parts, number = LineParts(found.storage), record.fed
    while number < record.total and (lines := parts.read(record.batch_id, number, record.total - number)):
        for line in lines:
            number += 1
            result = {"custom_id": line.custom_id, "job_id": job_id_of(record.batch_id, number)}
            yield _encoded(_line(result, error=_called_off(record)))


def _called_off(record: BatchRecord) -> dict[str, str]:
    if record.state is BatchState.EXPIRED:
        return {"code": "batch_expired", "message": "The batch's time was up before this line was run."}
    return {"code": "batch_cancelled", "message": "The batch was cancelled before this line was run."}


def _line(
    result: Mapping[str, Any], *, response: dict[str, Any] | None = None, error: dict[str, str] | None = None
) -> dict[str, Any]:
    return {"id": result["job_id"], "custom_id": result["custom_id"], "response": response, "error": error}


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"
