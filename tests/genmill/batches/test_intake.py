"""Taking batches in: line by line, with numbered faults, and nothing half stored."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError  # noqa: A004 - redis's own

from genmill import keys
from genmill.batches import BatchOrder, Intake, Ledger, Line, LineParts, Place
from genmill.batches.custom_ids import CustomIds
from genmill.batches.reading import split_lines
from genmill.errors import BatchInvalid, BatchNotFound, BodyTooLarge, LimitReached, StorageUnavailable
from genmill.registry import MOST_FAULTS
from genmill.storage import Storage
from tests.batches import Create, lines_of
from tests.conftest import SettingsFactory

Parse = Callable[[Mapping[str, Any], Place], Line]


def stored(redis: Redis, folder: Path) -> set[str]:
    files = {str(path) for path in (folder / "outputs").rglob("*") if path.is_file()}
    return {str(key) for key in redis.keys("*")} | files


def test_lines_are_kept_in_order_over_parts(create: Create, line_parts: LineParts) -> None:
    batch = create(lines_of(1_201))
    assert batch.total == 1_201
    assert [line.custom_id for line in line_parts.all(batch.batch_id)] == [f"line-{n}" for n in range(1, 1_202)]
    assert [line.custom_id for line in line_parts.read(batch.batch_id, 999, 3)] == ["line-1000"]
    assert [line.custom_id for line in line_parts.read(batch.batch_id, 1_000, 2)] == ["line-1001", "line-1002"]
    assert line_parts.read(batch.batch_id, 1_201, 5) == []


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_chunks_may_be_cut_anywhere(size: int, intake: Intake, parse: Parse, line_parts: LineParts) -> None:
    body = lines_of(20) + b"\n\r\n" + lines_of(1, first=99).rstrip()
    chunks = (body[at : at + size] for at in range(0, len(body), size))
    batch, is_new = intake.create(chunks, parse, BatchOrder("a", 60))
    assert (batch.total, is_new) == (21, True)
    assert [line.custom_id for line in line_parts.all(batch.batch_id)][-1] == "line-99"


def test_every_bad_line_is_numbered_with_field_limit_and_value(create: Create, redis: Redis, tmp_path: Path) -> None:
    rows = [
        b"not json", b"[1]", b'{"custom_id": "a", "prompt": "' + b"x" * 1_990 + b'"}',
        b'{"custom_id": "b", "prompt": 7}', b'{"custom_id": "c", "prompt": "ok"}',
        b'{"custom_id": "d", "prompt": "ok", "seed": NaN}', b"", b'{"custom_id": "c", "prompt": "ok"}',
    ]  # fmt: skip
    before = stored(redis, tmp_path)
    with pytest.raises(BatchInvalid) as caught:
        create(b"\n".join(rows))
    faults = caught.value.faults
    assert [fault.line for fault in faults] == [1, 2, 3, 4, 6, 8]
    assert faults[2].limit == "2000 bytes"
    assert (faults[3].pointer, faults[3].value) == ("/input/prompt", "7")
    assert (faults[5].pointer, faults[5].value) == ("/custom_id", "line 5")
    assert caught.value.detail.startswith("6 lines are not valid; the first, line 1: ")
    assert stored(redis, tmp_path) == before


def test_only_the_first_faults_are_kept_and_all_are_counted(create: Create) -> None:
    with pytest.raises(BatchInvalid) as caught:
        create(b"{}x\n" * 250)
    assert [fault.line for fault in caught.value.faults] == list(range(1, MOST_FAULTS + 1))
    assert caught.value.detail.startswith("250 lines are not valid")


@pytest.mark.parametrize("body", [b"", b"\n\n  \n"])
def test_a_batch_without_lines_is_refused(body: bytes, create: Create) -> None:
    with pytest.raises(BatchInvalid, match="no lines"):
        create(body)


def test_too_many_lines_or_bytes_leave_nothing(
    create: Create, make_settings: SettingsFactory, ledger: Ledger, storage: Storage, parse: Parse, redis: Redis,
    tmp_path: Path,
) -> None:  # fmt: skip
    before = stored(redis, tmp_path)
    with pytest.raises(BatchInvalid, match="more than 3000 lines"):
        create(lines_of(3_001))
    small = Intake(ledger, storage, make_settings(batch_max_bytes=1_000))
    with pytest.raises(BodyTooLarge) as caught:
        small.create([lines_of(100)], parse, BatchOrder("a", 60))
    assert caught.value.faults[0].limit == "1000 bytes"
    assert stored(redis, tmp_path) == before


def test_a_source_that_breaks_off_leaves_nothing(intake: Intake, parse: Parse, redis: Redis, tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield lines_of(700)
        raise StorageUnavailable

    before = stored(redis, tmp_path)
    with pytest.raises(StorageUnavailable):
        intake.create(broken(), parse, BatchOrder("a", 60))
    assert stored(redis, tmp_path) == before


def test_the_same_lines_are_one_batch(create: Create, redis: Redis, tmp_path: Path) -> None:
    body = lines_of(5)
    first = create(body)
    before = stored(redis, tmp_path)
    assert create(body).batch_id == first.batch_id
    assert create(body.replace(b"\n", b"\r\n")).batch_id == first.batch_id
    assert stored(redis, tmp_path) == before
    others = [create(body, tenant="b"), create(lines_of(6)), create(body, mark="p1"), create(body, is_rerun=True)]
    assert len({first.batch_id, *(other.batch_id for other in others)}) == 5


def test_a_tenant_has_only_so_many_batches(
    make_settings: SettingsFactory, redis: Redis, storage: Storage, parse: Parse, tmp_path: Path
) -> None:
    settings = make_settings(batch_max_active=2)
    ledger = Ledger(redis, settings)
    intake = Intake(ledger, storage, settings)
    for count in (1, 2):
        intake.create([lines_of(count)], parse, BatchOrder("a", 60))
    before = stored(redis, tmp_path)
    with pytest.raises(LimitReached) as caught:
        intake.create([lines_of(3)], parse, BatchOrder("a", 60))
    assert (caught.value.faults[0].limit, caught.value.faults[0].value) == ("2", "2")
    assert stored(redis, tmp_path) == before
    assert intake.create([lines_of(3)], parse, BatchOrder("b", 60))[1]


def test_lines_that_came_too_slowly_are_not_enrolled(
    intake: Intake, parse: Parse, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, redis: Redis
) -> None:
    monkeypatch.setattr(ledger, "reserve", lambda _batch_id: None)  # as if the scheduler had cleared it away
    with pytest.raises(StorageUnavailable, match="too slowly"):
        intake.create([lines_of(3)], parse, BatchOrder("a", 60))
    assert redis.keys("gm:batch*") == []


def test_a_batch_whose_enrolment_lost_its_answer_keeps_its_lines(
    intake: Intake, parse: Parse, ledger: Ledger, line_parts: LineParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll = ledger.enroll

    def lose_answer(*args: Any, **options: Any) -> None:
        enroll(*args, **options)
        raise ConnectionError("the answer got lost")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "enroll", lose_answer)
        with pytest.raises(ConnectionError):
            intake.create([lines_of(3)], parse, BatchOrder("a", 60))
    batch, is_new = intake.create([lines_of(3)], parse, BatchOrder("a", 60))
    assert not is_new
    assert len(list(line_parts.all(batch.batch_id))) == 3


def test_everything_of_a_batch_has_a_time_to_live(create: Create, redis: Redis) -> None:
    create(lines_of(3))
    untimed = {key.decode() for key in redis.scan_iter("gm:*") if redis.ttl(key) < 0}
    assert untimed == {keys.PREFIXES["batches"], keys.PREFIXES["shelf"]}


def test_batches_of_others_are_not_there(create: Create, ledger: Ledger) -> None:
    batch = create(lines_of(1))
    for batch_id, tenant in [(batch.batch_id, "b"), ("batch_x", "a"), (batch.batch_id + "-1", "a")]:
        with pytest.raises(BatchNotFound):
            ledger.own(batch_id, tenant)
    assert ledger.page("b", None, 5) == []


def test_lists_come_in_pages_newest_first(create: Create, ledger: Ledger) -> None:
    made = [create(lines_of(count)).batch_id for count in (1, 2, 3)]
    first = ledger.page("a", None, 2)
    rest = ledger.page("a", first[-1].batch_id, 2)
    assert sorted(record.batch_id for record in [*first, *rest]) == sorted(made)
    assert (len(first), len(rest)) == (2, 1)


def test_custom_ids_that_come_twice_are_found_with_their_first_line() -> None:
    with CustomIds() as custom_ids:
        for line in range(1, 5_001):
            custom_ids.add(f"id {line if line % 1_000 else 1_000}", line)
        assert custom_ids.twice(3) == [(2_000, 1_000), (3_000, 1_000), (4_000, 1_000)]
        assert len(custom_ids.twice(100)) == 4


def test_memory_stays_flat_while_lines_stream_by(
    intake: Intake, make_settings: SettingsFactory, ledger: Ledger, storage: Storage
) -> None:
    """Ten times the lines, the same memory: a part of lines and a buffer, not the file."""

    def parse(raw: Mapping[str, Any], place: Place) -> Line:
        return Line(str(raw["custom_id"]), "captions", {"prompt": raw["prompt"]})

    def peak_bytes(count: int) -> int:
        chunks = (json.dumps({"custom_id": f"{n}", "prompt": "x" * 500}).encode() + b"\n" for n in range(count))
        tracemalloc.start()
        large.create(chunks, parse, BatchOrder("a", 60))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    large = Intake(ledger, storage, make_settings())
    peak_bytes(600)  # what is loaded once
    assert peak_bytes(12_000) < peak_bytes(1_200) + 3_000_000  # the lines alone are 6 MB


def test_a_line_over_the_limit_is_never_held() -> None:
    chunks = [b"ab\n", *[b"y" * 1_000] * 50, b"\nlast"]
    assert list(split_lines(chunks, 1_500, 10**6)) == [b"ab", None, b"last"]
