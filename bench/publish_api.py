"""The table of docs/api.md, from bench/results/api.json and from nothing else: `python -m bench.publish_api`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bench.publish_queue import DOCS, RESULTS, with_figures


def figures_table(report: Mapping[str, Any]) -> str:
    runs = "; ".join(
        f"{part}: `{told['run']['command']}` at {told['run']['commit']}" for part, told in report["parts"].items()
    )
    rows = [f"| `{name}` | {value:,.4g} |" for name, value in report["figures"].items()]
    return "\n".join(["| figure | |", "|---|---:|", *rows, "", f"Of these runs: {runs}.", "", findings_table(report)])


def findings_table(report: Mapping[str, Any]) -> str:
    """What schemathesis found, in its own words."""
    counts: dict[tuple[str, str], int] = {}
    for one in report["parts"]["contract"]["findings"]:
        kind = (one["code"], one["title"])
        counts[kind] = counts.get(kind, 0) + one["count"]
    rows = [f"| {code} | {title} | {count} |" for (code, title), count in sorted(counts.items())]
    return "\n".join(["| schemathesis found | | |", "|---|---|---:|", *rows])


def main() -> None:
    page, name = DOCS / "api.md", "api.json"
    report = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    page.write_text(with_figures(page.read_text(encoding="utf-8"), name, figures_table(report)), encoding="utf-8")


if __name__ == "__main__":
    main()
