"""Tables and picture of docs/engines.md, from bench/results/engine.json alone: `python -m bench.publish_engine`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.publish_queue import DOCS, RESULTS, figures_table, with_figures

NAME = "engine.json"
SERVERS = {"serial": "one call after another", "static": "static batches", "rendezvous": "rendezvous"}
KINDS = {
    "mixed": "no two alike",
    "mixed_two_sizes": "no two alike, two sizes",
    "few_kinds": "twelve kinds",
    "homogeneous": "all alike",
}
LOADS = ("60", "90")


def throughput_table(figures: Mapping[str, float]) -> str:
    head = [
        "| jobs | " + " | ".join(SERVERS.values()) + " | over static | over serial | images in a forward |",
        "|---|" + "---:|" * (len(SERVERS) + 3),
    ]
    rows = []
    for kind, title in KINDS.items():
        rates = [f"{figures[f'{kind}_{server}_jobs_per_s']:.2f}" for server in SERVERS]
        gains = [f"{figures[f'{kind}_vs_{other}']:.2f}" for other in ("static", "serial")]
        rows.append("| " + " | ".join([title, *rates, *gains, f"{figures[f'{kind}_mean_batch']:.1f}"]) + " |")
    return "\n".join([*head, *rows])


def latency_table(figures: Mapping[str, float]) -> str:
    head = [
        "| load | p50 static | p50 rendezvous | p95 static | p95 rendezvous | p95 over static |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    rows = []
    for load in LOADS:
        waits = [
            f"{figures[f'p{percent}_{load}_{server}_s']:.2f} s"
            for percent in ("50", "95")
            for server in ("static", "rendezvous")
        ]
        rows.append("| " + " | ".join([f"{load} %", *waits, f"{figures[f'p95_{load}_vs_static']:.2f}"]) + " |")
    return "\n".join([*head, *rows])


def draw(figures: Mapping[str, float], path: Path) -> None:
    """Bars of jobs a second, for each kind of traffic and server."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    canvas, axes = plt.subplots(figsize=(8, 3.2))
    width, colours = 0.27, ("#d0d0d0", "#9a9a9a", "#1f6f8b")
    for place, (server, colour) in enumerate(zip(SERVERS, colours, strict=True)):
        rates = [figures[f"{kind}_{server}_jobs_per_s"] for kind in KINDS]
        at = [number + (place - 1) * width for number in range(len(KINDS))]
        bars = axes.bar(at, rates, width * 0.92, color=colour, label=SERVERS[server])
        axes.bar_label(bars, [f"{rate:.1f}" for rate in rates], padding=2, fontsize=8)
    axes.set_xticks(range(len(KINDS)), list(KINDS.values()))
    axes.set_ylabel("jobs a second")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    canvas.tight_layout()
    canvas.savefig(path, dpi=110)


def tables(report: Mapping[str, Any]) -> str:
    figures = report["figures"]
    return "\n\n".join([throughput_table(figures), latency_table(figures), figures_table(report)])


def main() -> None:
    page = DOCS / "engines.md"
    report = json.loads((RESULTS / NAME).read_text(encoding="utf-8"))
    page.write_text(with_figures(page.read_text(encoding="utf-8"), NAME, tables(report)), encoding="utf-8")
    draw(report["figures"], DOCS / "engines.png")


if __name__ == "__main__":
    main()
