"""`make compat`: the scenarios of the unmodified clients; writes bench/results/compat.json."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from bench.report import machine

OUT = Path("bench/results/compat.json")


class Tally:
    """Counts the scenarios that ran, and keeps the names of those that failed; what is skipped is none."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def figures(self) -> dict[str, int]:
        return {"scenarios": len(self.passed | self.failed), "failed": len(self.failed)}


def main() -> int:
    tally, about = Tally(), machine()
    code = int(pytest.main([str(Path(__file__).parent)], plugins=[tally]))
    report = {
        "figures": tally.figures(),
        "failures": sorted(tally.failed),
        "clients": {name: version(name) for name in ("replicate", "openai")},
        "machine": about,
        "command": "python -m tests.compat",
    }
    OUT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report["figures"], indent=2))
    return code


if __name__ == "__main__":
    sys.exit(main())
