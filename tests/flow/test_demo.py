"""`genmill demo` whole: real models, real processes, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from PIL import Image

from tests.fleet import eventually

RUN = """
import signal
import sys
from genmill.cli.app import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # heard, also where a shell runs the tests in the background
main(sys.argv[1:])
"""
TIMED = ("speedup_vs_one_at_a_time", "wall_s")
"""Promises that a busy test machine may break; `make demo` on an idle one holds them."""


def start(out: Path) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GENMILL_", "RQ_"))}
    return subprocess.Popen(
        [sys.executable, "-c", RUN, "demo", "--json", "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip


def alive(family: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.alone
def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    process = start(tmp_path)
    told, errors = process.communicate(timeout=420)

    assert process.returncode in (0, 1), errors
    report = json.loads(told)
    broken = [reason for reason in report["shortfalls"] if not reason.startswith(TIMED)]
    assert broken == [], errors
    assert report["figures"]["jobs"] == report["figures"]["succeeded"] == 56
    assert json.loads((tmp_path / "report.json").read_text())["figures"] == report["figures"]
    with Image.open(tmp_path / "contact-sheet.png") as sheet:
        assert sheet.width > 1000


def test_an_interrupted_demo_leaves_no_process_behind(tmp_path: Path) -> None:
    process = start(tmp_path)
    own = psutil.Process(process.pid)
    eventually(lambda: any("rq" in " ".join(child.cmdline()) for child in own.children(recursive=True)), within_s=60)
    family = own.children(recursive=True)

    process.send_signal(signal.SIGINT)
    _told, errors = process.communicate(timeout=60)

    assert process.returncode == 130, errors
    eventually(lambda: not alive(family))
