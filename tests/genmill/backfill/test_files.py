"""Names of output files, and how they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genmill.backfill.files import LONGEST_NAME, file_stem, write_outputs


@pytest.mark.parametrize(
    ("custom_id", "stem"),
    [("cat-1", "cat-1"), ("a/b", "a%2Fb"), ("..", "%2E."), ("a b+c", "a%20b%2Bc"), ("ü", "%C3%BC")],
)
def test_names_are_readable_and_stay_in_the_folder(custom_id: str, stem: str) -> None:
    assert file_stem(custom_id) == stem


@given(st.text(min_size=1, max_size=256), st.text(min_size=1, max_size=256))
def test_different_ids_have_different_names(one: str, other: str) -> None:
    assert (file_stem(one) == file_stem(other)) == (one == other)
    assert "/" not in file_stem(one)
    assert not file_stem(one).startswith(".")
    assert len(file_stem(one)) <= LONGEST_NAME


def test_several_outputs_are_numbered_and_one_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    outputs = [{"url": f"u{n}", "content_type": "image/png", "bytes": 2} for n in range(2)]
    result = {"custom_id": "c", "outputs": outputs}
    (tmp_path / "c+0.png").write_bytes(b"ok")
    (tmp_path / "c+1.png").write_bytes(b"half of something longer")
    fetched: list[str] = []

    def fetch(url: str) -> bytes:
        fetched.append(url)
        return url.encode()

    assert write_outputs(result, tmp_path, fetch) == ["c+0.png", "c+1.png"]
    assert fetched == ["u1"]
    assert (tmp_path / "c+1.png").read_bytes() == b"u1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c+0.png", "c+1.png"]


def test_a_download_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fetch(url: str) -> bytes:
        raise OSError(url)

    result = {"custom_id": "c", "outputs": [{"url": "u", "content_type": "image/png"}]}
    with pytest.raises(OSError, match="u"):
        write_outputs(result, tmp_path, fetch)
    assert list(tmp_path.iterdir()) == []
