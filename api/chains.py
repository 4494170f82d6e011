"""Jobs that wait for others: what a request names of them, checked as far as that can be before those have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from api.services import Services
from genmill.batches.records import line_of
from genmill.errors import FieldFault, InvalidRequest
from genmill.references import Reference, is_text, take_out
from genmill.registry import ModelKind, summary
from genmill.store import Source

MOST_DEPENDENCIES = 16


def dependencies_of(ids: Sequence[str], references: Mapping[str, Reference]) -> dict[str, str]:
    """All jobs that a request depends on, with the pointer to where it first names each. Raises InvalidRequest."""
    _refuse_lines(ids)
    pointers = {job_id: f"/depends_on/{number}" for number, job_id in reversed([*enumerate(ids)])}
    for place, reference in references.items():
        pointers.setdefault(reference.job_id, f"/input/{place}/from")
    if len(pointers) > MOST_DEPENDENCIES:
        detail = f"a job depends on at most {MOST_DEPENDENCIES} others, got {len(pointers)}"
        fault = FieldFault("/depends_on", detail, f"{MOST_DEPENDENCIES} jobs", f"{len(pointers)} jobs")
        raise InvalidRequest(detail, faults=(fault,))
    return pointers


def check_sources(references: Mapping[str, Reference], tenant: str, services: Services) -> None:
    """Raises InvalidRequest where a job makes nothing that could stand in the place. One that is not there, or not the
    tenant's, is refused when the job is stored, unless the request turns out to be a repeated one."""
    ids = {reference.job_id for reference in references.values()}
    sources = services.store.sources.sources([*ids]) if ids else {}
    faults = []
    for place, reference in references.items():
        source = sources.get(reference.job_id)
        if source is not None and source.tenant == tenant:
            faults += _faults(place, reference, source, services)
    if faults:
        raise InvalidRequest(summary(tuple(faults)), faults=tuple(faults))


def refuse_dependencies(line: Mapping[str, Any]) -> None:
    """For a line of a batch, which waits for no other job. Raises InvalidRequest."""
    given = line.get("input")
    places = take_out(given)[1] if isinstance(given, Mapping) else {}
    pointers = [f"/input/{place}" for place in places] + (["/depends_on"] if "depends_on" in line else [])
    detail = "a line of a batch waits for no other job; POST /v1/jobs takes jobs that do"
    faults = tuple(FieldFault(pointer, detail, "no other job") for pointer in pointers)
    if faults:
        raise InvalidRequest(detail, faults=faults)


def _refuse_lines(ids: Sequence[str]) -> None:
    """Of a line that was collected a trace stays, not the job, so nothing can wait for one. Told by the id alone."""
    detail = "{} is a line of a batch, which leaves when it is collected, so no job can wait for it"
    faults = tuple(
        FieldFault(f"/depends_on/{number}", detail.format(job_id), "a job of POST /v1/jobs", job_id)
        for number, job_id in enumerate(ids)
        if line_of(job_id)
    )
    if faults:
        raise InvalidRequest(summary(faults), faults=faults)


def _faults(place: str, reference: Reference, source: Source, services: Services) -> list[FieldFault]:
    made, kind = _made_by(source, services)
    wanted = ModelKind.TEXT if is_text(place) else ModelKind.IMAGE
    asked = ModelKind.TEXT if reference.index is None else ModelKind.IMAGE
    pointer, value = f"/input/{place}", str(reference)
    if line_of(source.job_id):
        detail = f"{reference.source} is a line of a batch, whose result goes to the results of the batch"
        return [FieldFault(f"{pointer}/from", detail, "a job of POST /v1/jobs", value)]
    if kind is not wanted:
        detail = f"{place} takes {_article(wanted)}, {reference.source} makes {made}"
        return [FieldFault(pointer, detail, wanted, value)]
    if asked is not wanted:
        limit = "text" if wanted is ModelKind.TEXT else "outputs/0"
        return [FieldFault(f"{pointer}/path", f"{reference.source} makes {made}: its path is {limit}", limit, value)]
    count = source.rows
    if reference.index is not None and reference.index >= count:
        detail = f"{reference.source} makes {made}, there is no {reference.path}"
        return [FieldFault(f"{pointer}/path", detail, f"outputs/0..{count - 1}", reference.path)]
    return []


def _made_by(source: Source, services: Services) -> tuple[str, ModelKind | None]:
    """What a job makes, in words and as a kind; no kind where nothing can refer to it."""
    spec = services.registry.by_batch_key(source.batch_key)
    if spec is None:
        return "what no model of this fleet makes", None
    if spec.kind is ModelKind.TEXT:
        return "a text", spec.kind
    if (source.request.get("input") or {}).get("num_frames", 1) > 1:
        return "videos", None
    return f"{source.rows} {'image' if source.rows == 1 else 'images'}", spec.kind


def _article(kind: ModelKind) -> str:
    return "a text" if kind is ModelKind.TEXT else "an image"
