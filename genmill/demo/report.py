"""The demo's report: JSON for programs, a table for people."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from genmill import __version__
from genmill.demo.measure import PROMISES

SAID = {
    "jobs": "jobs submitted: images, images from images, texts",
    "succeeded": "jobs that succeeded",
    "failed": "jobs that failed",
    "forwards": "forwards of the image model's denoiser",
    "mean_batch": "images in a forward, on average",
    "max_batch": "images in a forward, at most",
    "fidelity": "share of image jobs whose pixels show the caption",
    "text_fidelity": "share of texts that lie in the grammar",
    "max_abs_diff_vs_alone": "largest difference of a pixel from the same job alone",
    "callbacks_verified": "webhooks verified, one id for each job",
    "speedup_vs_one_at_a_time": "times as fast as plain pipeline calls",
    "fleet_s": "seconds for all image jobs on the fleet, mean of two rounds",
    "one_at_a_time_s": "seconds for the same as plain calls, between the rounds",
    "p50_s": "seconds from submission to end, median",
    "p95_s": "seconds from submission to end, 95th percentile",
    "wall_s": "seconds for the whole demo",
}


def machine(receipts: Sequence[Mapping[str, Any]], plain: Mapping[str, Any]) -> dict[str, Any]:
    """What the figures were measured on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    engine = receipts[0] if receipts else {}
    return {
        "cpu": _cpu_name(),
        "cores": cores,
        "memory_gib": _memory_gib(),
        "system": platform.system(),
        "python": platform.python_version(),
        "genmill": __version__,
        "device": engine.get("device"),
        "dtype": engine.get("dtype"),
        "versions": dict(engine.get("versions", {})),
        "torch_threads": plain.get("threads"),
    }


def write_report(
    path: Path, figures: Mapping[str, float], samples: Mapping[str, Any], on: Mapping[str, Any]
) -> dict[str, Any]:
    """One JSON of the form that every benchmark here has."""
    command = " ".join(["genmill", *sys.argv[1:]])
    report = {"figures": dict(figures), "samples": dict(samples), "machine": dict(on), "command": command}
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def summary(figures: Mapping[str, float]) -> Table:
    bounds = {promise.figure: promise for promise in PROMISES}
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("figure", "value", "promise", ""):
        grid.add_column(column, justify="right" if column in ("value", "promise") else "left")
    for name, meaning in SAID.items():
        promise = bounds.get(name)
        bound = "" if promise is None else f"{'>=' if promise.is_least else '<='} {promise.bound:g}"
        style = "" if promise is None else "red" if promise.shortfall(figures) else "green"
        grid.add_row(name, Text(f"{figures[name]:.4g}", style), bound, meaning)
    return grid


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError):
        return None
