"""Measures the saved models, keeps the figures, and puts them into docs/models.md: `python -m training.evaluate`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

import torch

from training import captions, gauge, shapes

HOME: Final = Path(__file__).parent
RESULTS: Final = HOME / "results" / "evaluation.json"
CARD: Final = HOME.parent / "docs" / "models.md"

PARTS: Final = ("fidelity", "autoencoder", "batching", "captions")

Figures = dict[str, Any]
Rows = list[tuple[str, ...]]


def card_tables(figures: Figures) -> dict[str, str]:
    """Markdown tables of the figures, by the name of the marker in the card that they belong between."""
    shapes_, captions_ = figures["shapes"], figures["captions"]
    return {
        "shapes-size": _table(("Part", "Parameters"), _sizes(shapes_)),
        "shapes-training": _table(("Stage", "Seconds"), _stages(figures["training"]["shapes"])),
        "shapes-autoencoder": _kept_table(shapes_["autoencoder"]),
        "shapes-fidelity": _fidelity_table(shapes_["fidelity"]),
        "shapes-batching": _table(("Rows in one forward", "Milliseconds a row"), _batching(shapes_["batching"])),
        "captions": _table(("Figure", "Value"), _captions(captions_, figures["training"]["captions"])),
    }


def fill_card(text: str, tables: dict[str, str]) -> str:
    """`text` with each table between its markers; `ValueError` names a marker that is missing."""
    for name, table in tables.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        if begin not in text or end not in text:
            raise ValueError(f"the card has no place for {name}")
        before, rest = text.split(begin, 1)
        after = rest.split(end, 1)[1]
        text = f"{before}{begin}\n{table}\n{end}{after}"
    return text


def main() -> None:
    """Measures the parts asked for, keeps the figures of the others, and rewrites the card's tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=Path, default=shapes.OUT)
    parser.add_argument("--captions", type=Path, default=captions.OUT)
    parser.add_argument("--count", type=int, default=200, help="captions at the default settings")
    parser.add_argument("--count-others", type=int, default=100, help="captions at each other setting")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS, help="what to measure anew")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    figures = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"shapes": {}}
    _measure(given, figures)
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    CARD.write_text(fill_card(CARD.read_text(), card_tables(figures)))


def _measure(given: argparse.Namespace, figures: Figures) -> None:
    """Puts the figures of the parts asked for, and the recorded times of training, into `figures`."""
    pipeline = gauge.load_shapes(given.shapes)
    figures["shapes"] |= gauge.sizes(pipeline, given.shapes)
    if "fidelity" in given.parts:
        figures["shapes"]["fidelity"] = gauge.fidelities(pipeline, given.count, given.count_others)
    if "autoencoder" in given.parts:
        figures["shapes"]["autoencoder"] = gauge.kept_by_autoencoder(pipeline)
    if "batching" in given.parts:
        figures["shapes"]["batching"] = gauge.measure_batching(pipeline)
    if "captions" in given.parts:
        figures["captions"] = gauge.captions_figures(given.captions, given.count)
    figures["training"] = {
        name: json.loads((HOME / "results" / f"{name}-training.json").read_text()) for name in ("shapes", "captions")
    }


def _table(head: tuple[str, ...], rows: Rows) -> str:
    lines = [head, ("---",) + ("---:",) * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _sizes(figures: Figures) -> Rows:
    parts = [(name.replace("_", " "), f"{count:,}") for name, count in figures["parameters"].items()]
    return [*parts, ("files on disk", f"{figures['bytes'] / 1e6:.1f} MB")]


def _stages(taken: Figures) -> Rows:
    return [(name.removesuffix("_s"), f"{value:.0f}") for name, value in taken.items() if name.endswith("_s")]


def _batching(figures: Figures) -> Rows:
    rows = [(count, f"{value:.2f}") for count, value in figures["ms_per_row"].items()]
    return [*rows, ("gain from 2 to 32", f"{figures['gain_2_to_32']:.1f}x")]


def _captions(figures: Figures, taken: Figures) -> Rows:
    return [
        ("parameters", f"{figures['parameters']:,}"),
        ("files on disk", f"{figures['bytes'] / 1e6:.2f} MB"),
        (f"of {figures['count']} continuations in the grammar", f"{figures['in_grammar']:.3f}"),
        ("seconds of training", f"{taken['captions_s']:.0f}"),
    ]


def _kept_table(figures: Figures) -> str:
    head = ("Size", "Colour", "Shape", "Ground", "All three")
    return _table(head, [(f"{size} px", *_shares(kept)) for size, kept in figures.items()])


def _fidelity_table(figures: list[Figures]) -> str:
    head = ("Setting", "Captions", "Colour", "Shape", "Ground", "All three")
    return _table(head, [(row["setting"], str(row["count"]), *_shares(row)) for row in figures])


def _shares(row: Figures) -> tuple[str, ...]:
    return tuple(f"{row[part]:.3f}" for part in ("colour", "shape", "ground", "whole"))


if __name__ == "__main__":
    main()
