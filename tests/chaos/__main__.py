"""`make chaos`: every case with up to 1,000 jobs, those of kills with CHAOS_SEEDS seeds.

Writes bench/results/chaos.json. With CHAOS_CASES, names of cases with commas between, only these are run and nothing
is written.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.report import machine
from tests.chaos.cases import CASES, run_case
from tests.chaos.judge import Outcome

OUT = Path("bench/results/chaos.json")


def main() -> int:
    seeds, jobs = int(os.environ.get("CHAOS_SEEDS", "3")), int(os.environ.get("CHAOS_JOBS", "1000"))
    first = int(os.environ.get("CHAOS_FIRST_SEED", time.time_ns() % 1_000_000))
    chosen = os.environ.get("CHAOS_CASES")
    about, outcomes = machine(), []
    for name in chosen.split(",") if chosen else CASES:
        for seed in range(first, first + (seeds if CASES[name].is_kill else 1)):
            with tempfile.TemporaryDirectory(prefix="genmill-chaos-", ignore_cleanup_errors=True) as folder:
                outcomes.append(run_case(name, seed, jobs, Path(folder)))
            print(json.dumps(asdict(outcomes[-1])), flush=True)
    figures = figures_of(outcomes)
    if not chosen:
        command = f"CHAOS_SEEDS={seeds} CHAOS_JOBS={jobs} CHAOS_FIRST_SEED={first} python -m tests.chaos"
        samples = [asdict(outcome) for outcome in outcomes]
        report = {"figures": figures, "samples": samples, "machine": about, "command": command}
        OUT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=2))
    return int(figures["cases_failed"] > 0)


def figures_of(outcomes: Sequence[Outcome]) -> Mapping[str, int]:
    return {
        "cases": len(outcomes),
        "cases_failed": sum(outcome.is_failed for outcome in outcomes),
        "jobs": sum(outcome.jobs for outcome in outcomes),
        "jobs_lost": sum(outcome.lost for outcome in outcomes),
        "double_commits": sum(outcome.double_commits for outcome in outcomes),
    }


if __name__ == "__main__":
    sys.exit(main())
