"""`python -m genmill.demo.publish`: the last demo's picture and figures into docs/ and the README's table."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genmill.demo.report import SAID
from genmill.demo.run import REPORT, SHEET

BEGIN, END = "<!-- figures of docs/demo.json -->", "<!-- end -->"
TOLD = (
    "jobs",
    "failed",
    "fidelity",
    "max_abs_diff_vs_alone",
    "callbacks_verified",
    "mean_batch",
    "max_batch",
    "fleet_s",
    "one_at_a_time_s",
    "speedup_vs_one_at_a_time",
    "p50_s",
    "p95_s",
    "wall_s",
)


def figures_table(report: Mapping[str, Any]) -> str:
    """The README's table, made from a report and from nothing else."""
    figures, machine = report["figures"], report["machine"]
    rows = [f"| {SAID[name]} | {figures[name]:.3g} |" for name in TOLD]
    where = f"{machine['cores']} cores of {machine['cpu']}, {machine['device']}, {machine['dtype']}"
    return "\n".join([f"| `{report['command']}` on {where} | |", "|---|---:|", *rows])


def with_table(readme: str, table: str) -> str:
    head, rest = readme.split(BEGIN)
    return f"{head}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}"


def main(out: Path = Path("out/demo"), root: Path = Path()) -> None:
    report = json.loads((out / REPORT).read_text(encoding="utf-8"))
    report.pop("samples")
    shutil.copyfile(out / SHEET, root / "docs" / "demo.png")
    (root / "docs" / "demo.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    readme = root / "README.md"
    readme.write_text(with_table(readme.read_text(encoding="utf-8"), figures_table(report)), encoding="utf-8")


if __name__ == "__main__":
    main()
