"""Parts of lines: by number, and no larger than is good for those who read them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from genmill.batches import BatchOrder, Intake, Ledger, Line, LineParts, Place
from genmill.batches import parts as parts_module
from genmill.batches.parts import PART_BYTES
from genmill.storage import Storage, StoredObject
from tests.conftest import SettingsFactory

LARGE = 12
"""So many lines of LARGE_BYTES are in three parts."""
LARGE_BYTES = 400_000


def parse(raw: Mapping[str, Any], place: Place) -> Line:
    return Line(str(place.number), "captions", {"prompt": "x" * raw["size"]})


@pytest.fixture
def batch_id(make_settings: SettingsFactory, ledger: Ledger, storage: Storage) -> str:
    """LARGE large lines, then 600 small ones."""
    rows = [{"size": LARGE_BYTES}] * LARGE + [{"size": 1}] * 600
    chunks: Iterator[bytes] = (json.dumps(row).encode() + b"\n" for row in rows)
    return Intake(ledger, storage, make_settings()).create(chunks, parse, BatchOrder("a", 60))[0].batch_id


def test_large_lines_end_a_part(batch_id: str, storage: Storage) -> None:
    starts = [("000000", 5), ("000000-005", 5), ("000000-010", 490), ("000001", 112)]
    for name, count in starts:
        body = storage.get(f"batches/{batch_id}/lines/{name}.jsonl").body
        assert (name, len(body.splitlines())) == (name, count)
        assert len(body) <= PART_BYTES


@pytest.mark.parametrize("order", [1, -1])
def test_a_line_is_found_by_its_number_also_among_large_ones(batch_id: str, order: int, storage: Storage) -> None:
    parts = LineParts(storage)
    for after in [0, 3, 4, 5, 9, 10, 499, 500, 611][::order]:
        assert parts.read(batch_id, after, 1)[0].custom_id == f"{after + 1}"
    assert [line.custom_id for line in parts.read(batch_id, 3, 500)] == ["4", "5"]
    assert parts.read(batch_id, 612, 1) == []
    assert [line.custom_id for line in parts.all(batch_id)] == [f"{number}" for number in range(1, 613)]


def test_what_is_read_on_is_not_read_from_the_start_again(
    batch_id: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the feeder does, while parts of other batches take all places."""
    parts, read = LineParts(storage), list[str]()
    get = storage.get
    monkeypatch.setattr(storage, "get", lambda key: [read.append(key), get(key)][1])
    for after in (0, 5, 10):
        parts.read(batch_id, after, 1)
        parts._held.clear()
    assert [key.rsplit("/", 1)[1] for key in read[:2]] == ["000000.jsonl", "000000.jsonl"]
    assert len(read) == 5  # each part, and the one before it to come there


def test_many_threads_may_read_while_parts_push_each_other_out(
    batch_id: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As requests for a batch's lines do, beside each other."""
    monkeypatch.setattr(parts_module, "PARTS_HELD", 1)
    parts, often = LineParts(storage), 400
    small = dict(enumerate((b"a\n", b"b\n", b"c\n")))
    monkeypatch.setattr(
        storage, "get", lambda key: StoredObject(small[int(key.removesuffix(".jsonl")[-3:])], "text/plain")
    )
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            asked = [number % 3 for number in range(8 * often)]
            found = list(pool.map(lambda number: parts._part(batch_id, number), asked))
    finally:
        sys.setswitchinterval(usual_s)
    assert found == [[small[number].strip()] for number in asked]
    assert len(parts._held) == 1
