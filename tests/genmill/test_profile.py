"""`genmill profile`: what it asks for, what it prints and writes, how it fails."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from genmill.cli import profile as command
from genmill.cli.app import main
from genmill.errors import ChildFailed

REPORT = {
    "rows": [
        {"optimizations": "none", "size": 64, "batch": batch, "ms_per_step": 10.0 + batch, "per_s": 3.0 * batch,
         "utilisation": 0.5, "memory_mb": 300.0}
        for batch in (1, 2)
    ],
    "summary": [{"optimizations": "none", "size": 64, "best_per_s": 6.0, "knee": 2, "recommended_batch": 2}],
    "refused": {"fused_qkv": "cannot fuse"},
    "machine": {"device": "cpu"},
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the measuring process is asked, and how its threads wait; it answers REPORT."""
    heard: list[dict[str, Any]] = []

    def answer(
        _name: str, _arguments: list[str], given: dict[str, Any], tell: Any, *, env: dict[str, str]
    ) -> dict[str, Any]:
        heard.append({**given, "spin_count": env["GOMP_SPINCOUNT"], "path": env["PATH"]})
        tell("profile none 64 1")
        return REPORT

    monkeypatch.setattr(command, "run_module", answer)
    return heard


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["profile", *arguments])
    printed = capsys.readouterr()
    return int(caught.value.code or 0), printed.out, printed.err


def test_it_asks_for_what_the_model_may_have(asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "shapes")
    assert code == 0
    assert asked[0]["batches"] == [1, 2, 4, 8, 16, 32]
    assert (asked[0]["sizes"], asked[0]["optimizations"]) == ([64], [[], ["channels_last"], ["fused_qkv"]])
    assert (asked[0]["spin_count"], asked[0]["path"]) == ("1000", os.environ["PATH"])
    assert "fused_qkv: cannot fuse" in out
    assert out.splitlines()[1].split() == ["none", "64", "1", "11.00", "3.00", "50%", "300"]

    run(capsys, "captions", "--quick", "--batches", "1,8")
    assert asked[1]["optimizations"] == [[]]
    assert (asked[1]["batches"], asked[1]["sizes"], asked[1]["quick"]) == ((1, 8), (8, 32), True)


def test_json_and_pictures_are_written(
    asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "new" / "shapes.json"
    code, out, _ = run(capsys, "shapes", "-o", str(path), "--json")
    assert code == 0
    assert json.loads(path.read_text())["rows"] == json.loads(out)["rows"] == REPORT["rows"]

    pytest.importorskip("matplotlib")
    picture = tmp_path / "shapes.png"
    assert run(capsys, "shapes", "-o", str(picture))[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("shapes", "--batches", "1,x"), "1,2,4"),
        (("shapes", "--batches", "0"), "at least 1"),
        (("shapes", "-o", "x.gif"), ".json or .png"),
        (("shapes", "--optimization", "magic"), "channels_last"),
        (("nothing",), "nothing"),
    ],
)
def test_bad_arguments_are_named(
    asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    code, _, err = run(capsys, *arguments)
    assert code in (2, 3)
    assert said in err
    assert asked == []


def test_a_machine_without_torch_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> dict[str, Any]:
        raise ChildFailed("ModuleNotFoundError: No module named 'torch'")

    monkeypatch.setattr(command, "run_module", fail)
    code, _, err = run(capsys, "shapes")
    assert code == 3
    assert "genmill[worker]" in err
