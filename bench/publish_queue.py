"""Tables and picture of docs/queue.md, and the table of docs/batches.md, from bench/results and from nothing else:
`python -m bench.publish_queue`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs"
BEGIN, END = "<!-- figures of bench/results/{name} -->", "<!-- end of {name} -->"


def rates_table(report: Mapping[str, Any]) -> str:
    rows = [
        f"| {name} | {rate['enqueue']:,.0f} | {rate['consume']:,.0f} | {_kill(report['kill'], name)} |"
        for name, rate in sorted(report["rates_per_s"].items(), key=lambda item: item[1]["consume"])
    ]
    head = ["| queue | enqueued a second | consumed a second | a job whose worker is killed |", "|---|---:|---:|---|"]
    return "\n".join([*head, *rows, "", figures_table(report)])


def figures_table(report: Mapping[str, Any]) -> str:
    rows = [f"| `{name}` | {value:,.4g} |" for name, value in report["figures"].items()]
    return "\n".join([f"| `{report['command']}` | |", "|---|---:|", *rows])


def with_figures(text: str, name: str, table: str) -> str:
    begin, end = BEGIN.format(name=name), END.format(name=name)
    head, rest = text.split(begin)
    return f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def draw(report: Mapping[str, Any], path: Path) -> None:
    """Bars of the rates at which jobs are consumed, on a logarithmic scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rates = sorted((rate["consume"], name) for name, rate in report["rates_per_s"].items())
    figure, axes = plt.subplots(figsize=(8, 0.32 * len(rates) + 1))
    colours = ["#1f6f8b" if name.startswith("genmill") else "#b8b8b8" for _, name in rates]
    bars = axes.barh([name for _, name in rates], [rate for rate, _ in rates], color=colours)
    axes.bar_label(bars, [f"{rate:,.0f}" for rate, _ in rates], padding=3, fontsize=8)
    axes.set_xscale("log")
    axes.set_xlabel("no-op jobs a second, one worker process, one Redis")
    axes.margins(x=0.1)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _kill(kill: Mapping[str, str], name: str) -> str:
    return kill["genmill" if name.startswith("genmill") else name]


TABLES = {
    "queue": {"queue": rates_table, "claim": figures_table, "fairness": figures_table, "chaos": figures_table},
    "batches": {"backfill": figures_table},
}
"""By page and by the name of the results."""


def main() -> None:
    for name, tables in TABLES.items():
        page = DOCS / f"{name}.md"
        text = page.read_text(encoding="utf-8")
        for results, table in tables.items():
            report = json.loads((RESULTS / f"{results}.json").read_text(encoding="utf-8"))
            text = with_figures(text, f"{results}.json", table(report))
        page.write_text(text, encoding="utf-8")
    draw(json.loads((RESULTS / "queue.json").read_text(encoding="utf-8")), DOCS / "queue.png")


if __name__ == "__main__":
    main()
