"""`make chaos`: every case with 1,000 jobs, those of kills with CHAOS_SEEDS seeds; writes bench/results/chaos.json."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from bench.report import machine
from tests.chaos.cases import CASES, KILLS, run_case

OUT = Path("bench/results/chaos.json")


def main() -> int:
    seeds, jobs = int(os.environ.get("CHAOS_SEEDS", "3")), int(os.environ.get("CHAOS_JOBS", "1000"))
    first = int(os.environ.get("CHAOS_FIRST_SEED", time.time_ns() % 1_000_000))
    about, outcomes = machine(), []
    for case in CASES:
        for seed in range(first, first + (seeds if case in KILLS else 1)):
            with tempfile.TemporaryDirectory(prefix="genmill-chaos-", ignore_cleanup_errors=True) as folder:
                outcome = run_case(case, seed, jobs, Path(folder))
            outcomes.append(outcome)
            print(json.dumps(asdict(outcome)), flush=True)
    figures = {
        "cases": len(outcomes),
        "cases_failed": sum(bool(o.broken or o.lost or o.double_commits) for o in outcomes),
        "jobs": sum(o.jobs for o in outcomes),
        "jobs_lost": sum(o.lost for o in outcomes),
        "double_commits": sum(o.double_commits for o in outcomes),
    }
    report = {
        "figures": figures, "samples": [asdict(outcome) for outcome in outcomes], "machine": about,
        "command": f"CHAOS_SEEDS={seeds} CHAOS_JOBS={jobs} CHAOS_FIRST_SEED={first} python -m tests.chaos",
    }  # fmt: skip
    OUT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))
    return int(figures["cases_failed"] > 0)


if __name__ == "__main__":
    sys.exit(main())
