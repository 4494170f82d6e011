"""`genmill profile MODEL`: what a model does on this machine, by batch and size."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from genmill.cli.options import with_json
from genmill.cli.screen import Screen, table
from genmill.environment import WORKER_THREADS
from genmill.errors import ChildFailed, SettingsInvalid
from genmill.registry import ModelKind, ModelSpec, Optimization, load_registry
from genmill.settings import load_settings
from genmill.up.modules import run_module

MODULE = "worker.profile"
"""Named, not imported: only the worker's room may touch torch."""
BATCHES = (1, 2, 4, 8, 16, 32, 64)
PROMPT_TOKENS = (8, 32)
TRIED = (Optimization.CHANNELS_LAST, Optimization.FUSED_QKV)
"""Besides none and the model's own; `compiled` takes minutes, and is tried when it is asked for."""


class Numbers(click.ParamType):  # type: ignore[type-arg]  # generic in click
    """Whole numbers with commas between them."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 1,2,4", param, ctx)
        if not numbers or min(numbers) < 1:
            self.fail(f"{value!r}: every number must be at least 1", param, ctx)
        return numbers


@click.command(short_help="Measure a model: speed and memory by batch and size.")
@click.argument("model")
@click.option("--batches", type=Numbers(), help="Batch sizes, such as 1,2,4; default: powers of two that it may have.")
@click.option("--sizes", type=Numbers(), help="Edges in pixels, or tokens of a prompt; default: the model's own.")
@click.option(
    "--optimization", "optimizations", type=click.Choice([one.value for one in Optimization]), multiple=True,
    help="One to try besides none; may be given several times. Default: those that need no compiler.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="One pass instead of three.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="A .json or .png to write.")
@with_json
def profile(
    model: str, *, batches: tuple[int, ...] | None, sizes: tuple[int, ...] | None, optimizations: tuple[str, ...],
    quick: bool, output: Path | None, screen: Screen,
) -> None:  # fmt: skip
    """Measure MODEL: milliseconds a step, images or tokens a second, utilisation and memory, by batch and size.

    Tells the knee, up to which a larger batch takes no longer, and the batch to set as max_batch.
    """
    if output is not None and output.suffix not in (".json", ".png"):
        raise click.BadParameter(f"{output.name}: the suffix must be .json or .png", param_hint="--output")
    if output is not None and output.suffix == ".png" and find_spec("matplotlib") is None:
        raise SettingsInvalid("a picture needs matplotlib: install genmill[bench], or name a .json")
    settings = load_settings()
    spec = load_registry(settings.models).get(model)
    asked = {
        "model": spec.name, "device": settings.device, "quick": quick,
        "batches": batches or [size for size in BATCHES if size <= spec.max_batch],
        "sizes": sizes or _sizes(spec), "optimizations": _sets(spec, optimizations),
    }  # fmt: skip
    report = _measure(asked, settings.models, screen)
    if output is not None:
        _write(report, spec, output)
    screen.show(report, lambda: _tables(report, spec))
    if output is not None:
        screen.say(f"wrote {output}")


def _sizes(spec: ModelSpec) -> Sequence[int]:
    if spec.kind is ModelKind.TEXT:
        return PROMPT_TOKENS
    return [int(spec.defaults.get("width", 512))]


def _sets(spec: ModelSpec, asked: tuple[str, ...]) -> list[list[str]]:
    """None, each that is tried, and what the model's entry names; a text model has none."""
    if spec.kind is ModelKind.TEXT:
        return [[]]
    sets = [[], *([one] for one in asked or [tried.value for tried in TRIED])]
    own = [one.value for one in spec.optimizations]
    return sets if own in sets else [*sets, own]


def _measure(asked: Mapping[str, Any], models: Path, screen: Screen) -> dict[str, Any]:
    """The report of a process of its own, whose threads wait as the fleet's do. Raises SettingsInvalid without torch,
    ChildFailed."""
    total = len(asked["batches"]) * len(asked["sizes"]) * len(asked["optimizations"])
    columns = (TextColumn("{task.description:<32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen.err, disable=screen.is_json) as progress:
        line = progress.add_task("loading the model", total=total)

        def hear(text: str) -> None:
            if text.startswith("profile "):
                progress.update(line, advance=1, description=text.removeprefix("profile "))

        try:
            answer = run_module(MODULE, [str(models)], asked, hear, env={**os.environ, **WORKER_THREADS})
        except ChildFailed as error:
            if "No module named" in error.detail:
                raise SettingsInvalid(f"{error.detail}: install genmill[worker] to measure a model") from error
            raise ChildFailed(f"{asked['model']} could not be measured: {error.detail}") from error
    report: dict[str, Any] = {"model": asked["model"], **answer, "command": " ".join(sys.argv[1:])}
    return report


def _tables(report: Mapping[str, Any], spec: ModelSpec) -> RenderableType:
    unit = "tokens/s" if spec.kind is ModelKind.TEXT else "images/s"
    rows = [
        [
            row["optimizations"], str(row["size"]), str(row["batch"]), f"{row['ms_per_step']:.2f}",
            f"{row['per_s']:.2f}", "" if row["utilisation"] is None else f"{row['utilisation']:.0%}",
            f"{row['memory_mb']:.0f}",
        ]
        for row in report["rows"]
    ]  # fmt: skip
    measured = table("optimizations", "size", "batch", "ms/step", unit, "busy", "MB", rows=rows)
    sums = [
        [one["optimizations"], str(one["size"]), f"{one['best_per_s']:.2f}", str(one["knee"]),
         str(one["recommended_batch"])]
        for one in report["summary"]
    ]  # fmt: skip
    parts: list[RenderableType] = [
        measured, "", table("optimizations", "size", f"best {unit}", "knee", "batch to take", rows=sums),
    ]  # fmt: skip
    parts += [f"{label}: {why}" for label, why in report["refused"].items()]
    return Group(*parts)


def _write(report: Mapping[str, Any], spec: ModelSpec, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.suffix == ".json":
        output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        return
    import matplotlib as mpl  # noqa: PLC0415 - an extra of its own

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - after the choice of its backend

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for one in report["summary"]:
        own = [
            row for row in report["rows"] if (row["optimizations"], row["size"]) == (one["optimizations"], one["size"])
        ]
        batches, label = [row["batch"] for row in own], f"{one['optimizations']}, {one['size']}"
        left.plot(batches, [row["ms_per_step"] for row in own], marker="o", label=label)
        right.plot(batches, [row["per_s"] for row in own], marker="o", label=label)
    for axes, title in ((left, "ms a step"), (right, "tokens/s" if spec.kind is ModelKind.TEXT else "images/s")):
        axes.set(xlabel="batch", title=title, xscale="log", ylim=(0, None))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
    right.legend()
    figure.suptitle(f"{spec.name} on {report['machine']['device']}")
    figure.savefig(output, dpi=110)
