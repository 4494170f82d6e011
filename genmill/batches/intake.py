"""Taking a batch in: its lines are checked as they stream by and stored in parts; only a whole batch is enrolled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from redis.exceptions import RedisError

from genmill.batches.custom_ids import CustomIds
from genmill.batches.ledger import Enrolment, Ledger
from genmill.batches.lines import Line
from genmill.batches.parts import LINES_A_PART, PART_BYTES, LineParts, ResultParts, folder_of, input_key
from genmill.batches.reading import read_object, split_lines
from genmill.batches.records import BatchRecord, new_batch_id
from genmill.batches.results import succeeded_lines
from genmill.errors import BatchInvalid, FieldFault, GenmillError, InvalidRequest, StorageUnavailable
from genmill.inputs import ImageInput
from genmill.registry import MOST_FAULTS
from genmill.settings import Settings
from genmill.storage import Storage


@dataclass(frozen=True, slots=True)
class Place:
    """Which line of which tenant's batch is parsed; images that it brings along are stored under `input_key`."""

    tenant: str
    batch_id: str
    number: int

    def input_key(self, role: str) -> str:
        return input_key(self.batch_id, self.number, role)


class LineParser(Protocol):
    """A dialect's lines, such as {custom_id, model, input} or {custom_id, method, url, body}."""

    def __call__(self, raw: Mapping[str, Any], place: Place) -> Line:
        """Raises InvalidRequest with the faults of this line."""


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """What is asked of a batch as a whole. `kind` names the dialect, `about` is what it wants to keep."""

    tenant: str
    expires_in_s: int
    kind: str = "native"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    is_rerun: bool = False
    webhook: str | None = None
    mark: str = ""
    """Whatever else tells batches with the same lines apart, such as their default class."""


class Intake:
    """Memory stays flat: one part of lines, one file of digests, MOST_FAULTS faults. Of a batch that is refused, or
    known already, nothing stays."""

    def __init__(self, ledger: Ledger, storage: Storage, settings: Settings) -> None:
        self._ledger, self._storage, self._settings = ledger, storage, settings
        self._lines, self._results = LineParts(storage), ResultParts(storage)

    def create(self, chunks: Iterable[bytes], parse: LineParser, order: BatchOrder) -> tuple[BatchRecord, bool]:
        """Returns (the batch, whether it is new): of the same lines that run, or ran without a failure, there is one.
        Where they ran with failures, or were called off, the new batch has the lines that did not succeed.

        Raises BatchInvalid with numbered faults, BodyTooLarge, LimitReached, StorageUnavailable, InvalidRequest.
        """
        with self._cleared_unless_kept() as draft:
            total, digest = self._store(chunks, parse, draft, order)
            enrolment = self._enroll(draft, order, total, digest)
        if enrolment.is_unfinished:
            return self.resume(self._ledger.own(enrolment.batch_id, order.tenant), order)
        return self._taken_in(enrolment, order)

    def resume(self, old: BatchRecord, order: BatchOrder) -> tuple[BatchRecord, bool]:
        """A batch of the lines of `old` that have not succeeded; `old` itself while it runs, or when none are left."""
        if not old.state.is_terminal or old.succeeded == old.total:
            return self._taken_in(Enrolment(old.batch_id, is_new=False), order)
        with self._cleared_unless_kept() as draft:
            total = self._store_rest(old, draft)
            enrolment = self._enroll(draft, replace(order, is_rerun=False), total, old.body, old)
        return self._taken_in(enrolment, order)

    def _taken_in(self, enrolment: Enrolment, order: BatchOrder) -> tuple[BatchRecord, bool]:
        """Raises InvalidRequest where the batch that there is would call another webhook than the one asked for."""
        record = self._ledger.own(enrolment.batch_id, order.tenant)
        if order.webhook is not None and record.webhook != order.webhook:
            detail = f"{record.batch_id} has these lines already, and {'another' if record.webhook else 'no'} webhook"
            raise InvalidRequest(detail, faults=(FieldFault("/webhook", detail, "that of the batch", "another"),))
        return record, enrolment.is_new

    @contextmanager
    def _cleared_unless_kept(self) -> Iterator[_Draft]:
        """What is stored goes, unless the batch is enrolled, or may be. What neither stays nor goes here, such as when
        the process dies, the scheduler clears away."""
        draft = _Draft(new_batch_id(), self._lines, self._ledger)
        draft.hold()
        try:
            yield draft
        finally:
            if not draft.is_kept:
                self._clear(draft.batch_id)

    def _clear(self, batch_id: str) -> None:
        with suppress(StorageUnavailable, RedisError):
            self._storage.delete_prefix(folder_of(batch_id))
            self._ledger.forget(batch_id)

    def _store(self, chunks: Iterable[bytes], parse: LineParser, draft: _Draft, order: BatchOrder) -> tuple[int, str]:
        """Returns (number of lines, digest of them all)."""
        limits, body = self._settings, hashlib.sha256(f"{order.kind}\n{order.mark}\n".encode())
        faults = _Faults()
        with CustomIds() as custom_ids:
            rows = split_lines(chunks, limits.batch_max_line_bytes, limits.batch_max_bytes)
            for number, raw in _numbered(rows, limits.batch_max_lines):
                body.update((raw or b"").strip() + b"\n")
                try:
                    given = read_object(raw, limits.batch_max_line_bytes)
                    line = parse(given, Place(order.tenant, draft.batch_id, draft.total + 1))
                except InvalidRequest as err:
                    faults.add(number, err)
                    continue
                custom_ids.add(line.custom_id, number)
                draft.add(line, is_stored=not faults.count)
            faults.add_twice(custom_ids.twice(MOST_FAULTS))
        faults.refuse_any(draft.total)
        draft.flush()
        return draft.total, body.hexdigest()

    def _store_rest(self, old: BatchRecord, draft: _Draft) -> int:
        succeeded = succeeded_lines(old, self._ledger, self._results)
        for number, line in enumerate(self._lines.all(old.batch_id), start=1):
            if succeeded[number >> 3] & (1 << (number & 7)):
                continue
            draft.add(self._with_own_images(line, draft))
        if draft.total == 0:
            raise StorageUnavailable(f"the lines of {old.batch_id} are not there any more")
        draft.flush()
        return draft.total

    def _with_own_images(self, line: Line, draft: _Draft) -> Line:
        """The earlier batch takes its images along when it goes."""
        if line.input.get("init_image") is None and line.input.get("control") is None:
            return line
        asked, places = ImageInput.model_validate(line.input), {}
        for role, image in asked.images().items():
            places[role] = input_key(draft.batch_id, draft.total + 1, role)
            self._storage.put(places[role], self._storage.get(image).body, "image/png")
        return replace(line, input=asked.with_images(places).model_dump(mode="json"))

    def _enroll(
        self, draft: _Draft, order: BatchOrder, total: int, digest: str, old: BatchRecord | None = None
    ) -> Enrolment:
        fields = {
            "total": total, "kind": order.kind, "resume_of": old.batch_id if old else "",
            "skipped": old.total + old.skipped - total if old else 0, "metadata": json.dumps(dict(order.metadata)),
            "about": json.dumps(dict(order.about)), "hook": order.webhook or "",
        }  # fmt: skip
        with draft.kept_unless_refused():
            enrolment = self._ledger.enroll(
                draft.batch_id, order.tenant, digest, fields, expires_in_s=order.expires_in_s,
                resumes=old.batch_id if old else "", is_rerun=order.is_rerun,
            )  # fmt: skip
        draft.is_kept = enrolment.is_new
        return enrolment


class _Draft:
    """A batch that is written and not enrolled yet."""

    def __init__(self, batch_id: str, parts: LineParts, ledger: Ledger) -> None:
        self.batch_id, self.total, self.is_kept = batch_id, 0, False
        self._parts, self._ledger = parts, ledger
        self._rows: list[bytes] = []
        self._stored, self._row_bytes = 0, 0

    def add(self, line: Line, *, is_stored: bool = True) -> None:
        self.total += 1
        if not is_stored:
            return
        row = line.as_json()
        if self._rows and self._row_bytes + len(row) > PART_BYTES:
            self.flush()
        self._rows.append(row)
        self._row_bytes += len(row)
        if (self._stored + len(self._rows)) % LINES_A_PART == 0:
            self.flush()

    def hold(self) -> None:
        """What is stored of it now stays while the rest comes."""
        self._ledger.reserve(self.batch_id)

    def flush(self) -> None:
        self.hold()
        if self._rows:
            self._parts.write(self.batch_id, self._stored, self._rows)
            self._stored += len(self._rows)
            self._rows, self._row_bytes = [], 0

    @contextmanager
    def kept_unless_refused(self) -> Iterator[None]:
        """Around the enrolment: when no answer comes, it may have been made, and its lines stay."""
        self.is_kept = True
        try:
            yield
        except GenmillError:
            self.is_kept = False
            raise


class _Faults:
    """The first MOST_FAULTS, by line, and the number of lines that have some."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[FieldFault] = []

    def add(self, line: int, error: InvalidRequest) -> None:
        self.count += 1
        if len(self._kept) < MOST_FAULTS:
            self._kept += [replace(one, line=line) for one in error.faults or (FieldFault("/", error.detail),)]

    def add_twice(self, pairs: list[tuple[int, int]]) -> None:
        for line, first in pairs:
            detail = f"custom_id is that of line {first}"
            fault = FieldFault("/custom_id", detail, "once in a batch", f"line {first}")
            self.add(line, InvalidRequest(detail, faults=(fault,)))

    def refuse_any(self, good: int) -> None:
        """Raises BatchInvalid."""
        if not self.count and good:
            return
        if not self.count:
            detail = "the batch has no lines"
            raise BatchInvalid(detail, faults=(FieldFault("/", detail, "at least 1 line", "0 lines"),))
        kept = tuple(sorted(self._kept, key=lambda fault: fault.line or 0)[:MOST_FAULTS])
        lines = "1 line is" if self.count == 1 else f"{self.count} lines are"
        raise BatchInvalid(f"{lines} not valid; the first, line {kept[0].line}: {kept[0].detail}", faults=kept)


def _numbered(rows: Iterable[bytes | None], most: int) -> Iterator[tuple[int, bytes | None]]:
    """Numbers are those of the file, empty lines counted and left out. Raises BatchInvalid past `most` lines."""
    count = 0
    for number, raw in enumerate(rows, start=1):
        if raw is not None and not raw.strip():
            continue
        count += 1
        if count > most:
            detail = f"the batch has more than {most} lines"
            raise BatchInvalid(detail, faults=(FieldFault("/", detail, f"{most} lines", f"over {most} lines"),))
        yield number, raw
