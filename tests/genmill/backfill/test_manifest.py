"""The manifest: what it says survives whatever ends the run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from genmill.backfill.manifest import FolderTaken, Manifest, ManifestDamaged


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text("some lines\n")
    return path


def end(seq: int, state: str = "succeeded") -> dict[str, Any]:
    return {"seq": seq, "custom_id": f"c{seq}", "state": state, "files": []}


def test_a_later_run_knows_batch_place_and_counts(tmp_path: Path, source: Path) -> None:
    with Manifest(tmp_path / "out", source) as manifest:
        assert (manifest.batch_id, manifest.seen("b1")) == (None, 0)
        manifest.begin("b1")
        manifest.enter("b1", [end(1), end(2, "failed"), end(3)])
    with Manifest(tmp_path / "out", source) as manifest:
        assert (manifest.batch_id, manifest.seen("b1"), manifest.failed) == ("b1", 3, 1)
        assert manifest.ends["succeeded"] == 2


def test_a_batch_is_known_to_who_is_interrupted_while_it_is_written(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with Manifest(tmp_path / "out", source) as manifest:
        monkeypatch.setattr("genmill.backfill.manifest.os.fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            manifest.begin("b1")
        assert manifest.batch_id == "b1"


def test_what_failed_counts_until_it_is_run_again(tmp_path: Path, source: Path) -> None:
    with Manifest(tmp_path / "out", source) as manifest:
        manifest.begin("b1")
        manifest.enter("b1", [end(1), end(2, "failed")])
        manifest.begin("b2")
        assert (manifest.failed, manifest.ends["succeeded"]) == (0, 1)
        manifest.enter("b2", [end(1)])
    with Manifest(tmp_path / "out", source) as manifest:
        assert (manifest.batch_id, manifest.failed, manifest.ends["succeeded"]) == ("b2", 0, 2)
        assert (manifest.seen("b1"), manifest.seen("b2")) == (2, 1)


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_what_a_kill_left_of_a_record_is_cut_off(cut: int, tmp_path: Path, source: Path) -> None:
    with Manifest(tmp_path / "out", source) as manifest:
        manifest.begin("b1")
        manifest.enter("b1", [end(1)])
        whole = manifest.path.read_bytes()
        manifest.enter("b1", [end(2)])
        path = manifest.path
    path.write_bytes(path.read_bytes()[:-cut])
    with Manifest(tmp_path / "out", source) as manifest:
        assert manifest.seen("b1") == 1
        assert path.read_bytes() == whole
        manifest.enter("b1", [end(2)])
    with Manifest(tmp_path / "out", source) as manifest:
        assert manifest.seen("b1") == 2


def test_one_run_at_a_time_and_one_source_a_folder(tmp_path: Path, source: Path) -> None:
    with Manifest(tmp_path / "out", source) as manifest:
        manifest.begin("b1")
        with pytest.raises(FolderTaken, match="another genmill backfill"):
            Manifest(tmp_path / "out", source)
    source.write_text("other lines\n")
    with pytest.raises(FolderTaken, match="is of other lines than"):
        Manifest(tmp_path / "out", source)


def test_a_change_in_the_middle_of_a_long_file_is_a_change(tmp_path: Path, source: Path) -> None:
    source.write_bytes(b"a" * 4_000_000)
    with Manifest(tmp_path / "out", source) as manifest:
        manifest.begin("b1")
    source.write_bytes(b"a" * 2_000_000 + b"b" + b"a" * 1_999_999)
    with pytest.raises(FolderTaken):
        Manifest(tmp_path / "out", source)


def test_lines_that_were_refused_may_be_mended_in_the_same_folder(tmp_path: Path, source: Path) -> None:
    with Manifest(tmp_path / "out", source):
        pass
    source.write_text("better lines\n")
    with Manifest(tmp_path / "out", source) as manifest:
        manifest.begin("b1")
    with Manifest(tmp_path / "out", source) as manifest:
        assert manifest.batch_id == "b1"


def test_a_stream_is_kept_and_may_come_again_or_be_left_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Manifest(out, io.BytesIO(b"refused\n")) as manifest:
        assert manifest.source.read_bytes() == b"refused\n"
    with Manifest(out, io.BytesIO(b"one\ntwo\n")) as manifest:
        manifest.begin("b1")
    for again in (b"", b"one\ntwo\n"):
        with Manifest(out, io.BytesIO(again)) as manifest:
            assert (manifest.batch_id, manifest.source.read_bytes()) == ("b1", b"one\ntwo\n")
    with pytest.raises(FolderTaken, match="is of other lines than stdin has now"):
        Manifest(out, io.BytesIO(b"one\nthree\n"))
    assert sorted(path.name for path in out.iterdir()) == ["input.jsonl", "manifest.jsonl"]
    assert manifest.source.read_bytes() == b"one\ntwo\n"


def test_a_stream_of_another_run_at_the_same_time_changes_nothing(tmp_path: Path) -> None:
    with Manifest(tmp_path / "out", io.BytesIO(b"mine\n")) as manifest:
        theirs = io.BytesIO(b"theirs\n")
        with pytest.raises(FolderTaken):
            Manifest(tmp_path / "out", theirs)
        assert theirs.tell() == 0
        assert manifest.source.read_bytes() == b"mine\n"


@pytest.mark.parametrize(
    ("number", "row"),
    [
        (1, b"{}"), (1, b"null"), (1, b"\x00\x00"), (1, b'{"source": 7}'), (2, b"[]"), (2, b'{"source": "x"}'),
        (2, b'{"batch": null}'), (2, "{}".encode("utf-16")), (3, b'{"batch": "b1", "seq": "1"}'), (3, b"<<<<<<< HEAD"),
    ],
)  # fmt: skip
def test_a_damaged_manifest_is_named_with_its_line(number: int, row: bytes, tmp_path: Path, source: Path) -> None:
    with Manifest(tmp_path / "out", source) as manifest:
        manifest.begin("b1")
        manifest.enter("b1", [end(1)])
    rows = manifest.path.read_bytes().splitlines()
    rows[number - 1] = row
    manifest.path.write_bytes(b"\n".join(rows) + b"\n")
    with pytest.raises(ManifestDamaged, match=rf"line {number} of .*manifest.jsonl is damaged"):
        Manifest(tmp_path / "out", source)
    assert manifest.path.read_bytes().splitlines() == rows


def test_what_a_kill_left_of_a_file_goes_with_the_next_run_of_the_same_source(tmp_path: Path, source: Path) -> None:
    out = tmp_path / "out"
    with Manifest(out, source):
        left = out / ".tmp-x1"
        left.write_bytes(b"half")
        with pytest.raises(FolderTaken):
            Manifest(out, source)
        assert left.exists()
    with Manifest(out, source):
        assert sorted(path.name for path in out.iterdir()) == ["manifest.jsonl"]
