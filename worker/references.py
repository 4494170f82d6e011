"""Inputs that refer to what other jobs made: filled in when the job is claimed, those have succeeded by then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from genmill import keys
from genmill.errors import InputUnavailable, InvalidJob, JobFailure
from genmill.jobs import Claim, JobRecord
from genmill.references import Reference, put, read
from genmill.store import Store
from worker.engines.base import Failed


def filled(claims: Sequence[Claim], store: Store) -> tuple[list[Claim], list[Failed]]:
    """The claims with all that their inputs refer to, and failures of those whose source has it no more. One round
    trip where any refers to something, else none. Raises RedisError."""
    references, failures = dict[str, dict[str, Reference]](), list[Failed]()
    for claim in claims:
        try:
            references[claim.job_id] = _references_of(claim)
        except (ValueError, TypeError, AttributeError) as err:  # nothing that the API wrote
            failures.append(Failed(claim.job_id, InvalidJob(f"the stored references cannot be read: {err}")))
    sources = sorted({one.job_id for found in references.values() for one in found.values()})
    records = dict(zip(sources, store.get_many(sources), strict=True)) if sources else {}
    ready = list[Claim]()
    for claim in (claim for claim in claims if claim.job_id in references):
        try:
            ready.append(_with_outputs(claim, references[claim.job_id], records))
        except JobFailure as err:
            failures.append(Failed(claim.job_id, err))
    return ready, failures


def _references_of(claim: Claim) -> dict[str, Reference]:
    if claim.batch_key in (keys.CALL_BATCH_KEY, keys.CALLBACKS) or not claim.call[1]:
        return {}
    return read(claim.call[1][0])


def _with_outputs(claim: Claim, references: Mapping[str, Reference], records: Mapping[str, JobRecord | None]) -> Claim:
    """Raises InputUnavailable, InvalidJob."""
    if not references:
        return claim
    function, (request, *others), kwargs = claim.call
    given = request["input"]
    for place, reference in references.items():
        record = records[reference.job_id]
        is_own = record is not None and record.tenant == claim.tenant
        output = _output(reference, record.result if record and is_own else None, place)
        try:
            given = put(given, place, output)
        except (ValueError, LookupError) as err:
            raise InvalidJob(f"the stored input has no place {place!r}: {err}") from None
    return replace(claim, call=(function, [{**request, "input": given}, *others], kwargs))


def _output(reference: Reference, result: Any, place: str) -> str:
    """The text, or where the image is stored. Raises InputUnavailable."""
    try:
        return str(result["text"]["text"] if reference.index is None else result["outputs"][reference.index]["key"])
    except (KeyError, IndexError, TypeError):
        raise InputUnavailable(f"{place}: {reference.source} has no {reference.path}, or has it no more") from None
