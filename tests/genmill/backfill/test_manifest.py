"""The manifest: what it says survives whatever ends the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from genmill.backfill.manifest import FolderTaken, Manifest


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
    with pytest.raises(FolderTaken, match="has changed since"):
        Manifest(tmp_path / "out", source)


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
