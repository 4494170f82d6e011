"""Plain `pipeline()` calls, one after another: the yardstick for what batching changes and what it gains.

`python -m worker.engines.plain MODELS_TOML < calls.json > report.json`, as the demo and benchmarks run it; this is
the only use of a pipeline without the rendezvous. Nothing is patched: each call gets the pipeline as it was loaded,
with the job's scheduler, on a thread count and device that the worker would take as well.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from genmill.inputs import ImageInput
from genmill.registry import ModelSpec, load_registry
from worker.engines.devices import pick_device
from worker.engines.pipelines import call_arguments, image_to_image, load_pipeline, parameters_of
from worker.engines.schedulers import make_scheduler


class Pipeline(Protocol):
    """What is used of a diffusers pipeline."""

    scheduler: Any

    def __call__(self, **arguments: Any) -> Any: ...
    def set_progress_bar_config(self, **options: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class PlainCall:
    """One image job. `init_image` is the decoded RGB picture of an image to image job."""

    input: ImageInput
    init_image: Image.Image | None = None


@dataclass(frozen=True, slots=True)
class PlainResult:
    """Pictures as floats in 0..1, [height, width, 3] each, and how long the calls took."""

    pictures: tuple[NDArray[np.float32], ...]
    seconds: float


class PlainRunner:
    """One loaded model. The text to image and the image to image pipeline share their weights."""

    def __init__(self, spec: ModelSpec, device: str | None = None) -> None:
        """Raises ModelUnavailable."""
        pipe = load_pipeline(spec, pick_device(device))
        self._arguments = spec.arguments
        self._own_scheduler = pipe.scheduler
        self._pipes: dict[bool, Any] = {False: pipe}

    def run(self, call: PlainCall) -> PlainResult:
        """The job's images, one pipeline call for each, exactly as its client would make them."""
        start = time.perf_counter()
        pictures = tuple(self._picture(call, index) for index in range(call.input.num_images))
        return PlainResult(pictures, time.perf_counter() - start)

    def _picture(self, call: PlainCall, index: int) -> NDArray[np.float32]:
        pipe = self._pipe(call.init_image is not None)
        pipe.scheduler = make_scheduler(
            self._own_scheduler, call.input.scheduler, from_image=call.init_image is not None
        )
        arguments = call_arguments(parameters_of(pipe), call.input, index, call.init_image, self._arguments)
        output = pipe(**arguments).images[0]
        picture: NDArray[np.float32] = output.detach().float().cpu().permute(1, 2, 0).numpy()
        return picture

    def _pipe(self, has_init_image: bool) -> Any:
        if has_init_image not in self._pipes:
            self._pipes[True] = image_to_image(self._pipes[False])
        pipe: Pipeline = self._pipes[has_init_image]
        pipe.set_progress_bar_config(disable=True)
        return pipe


def run_plain(spec: ModelSpec, calls: Sequence[PlainCall], device: str | None = None) -> Iterator[PlainResult]:
    """Results in the order of the calls. One call of each kind and size warms up first, outside of any timing."""
    runner = PlainRunner(spec, device)
    shapes = {(call.input.width, call.input.height, call.init_image is not None): call for call in calls}
    for call in shapes.values():
        runner.run(PlainCall(call.input.model_copy(update={"steps": 4}), call.init_image))
    for call in calls:
        yield runner.run(call)


def main(arguments: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given`: {model, device, calls: [{input, init_image: path or null}], pictures: folder for NAME.npy}."""
    spec = load_registry(Path(arguments[0])).get(given["model"])
    calls = [_call(spec, entry) for entry in given["calls"]]
    seconds = []
    for number, result in enumerate(run_plain(spec, calls, given.get("device"))):
        np.save(Path(given["pictures"]) / f"{number}.npy", np.stack(result.pictures))
        seconds.append(result.seconds)
        print(f"plain {number + 1}/{len(calls)}", file=sys.stderr, flush=True)
    return {"seconds": seconds, "torch": torch.__version__, "threads": torch.get_num_threads()}


def _call(spec: ModelSpec, entry: Mapping[str, Any]) -> PlainCall:
    job_input = spec.parse_input(entry["input"])
    if not isinstance(job_input, ImageInput):
        raise TypeError(f"model {spec.name} makes no images")
    path = entry.get("init_image")
    return PlainCall(job_input, Image.open(path).convert("RGB") if path else None)


@contextmanager
def _stdout_for_the_report() -> Iterator[io.TextIOBase]:
    """Whatever a library prints goes to stderr."""
    report, sys.stdout = sys.stdout, sys.stderr
    yield report  # type: ignore[misc]  # sys.stdout is a TextIO by its stubs
    sys.stdout = report


if __name__ == "__main__":
    with _stdout_for_the_report() as output:
        report = main(sys.argv[1:], json.load(sys.stdin))
        output.write(json.dumps(report) + "\n")
