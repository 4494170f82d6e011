"""One plain pipeline call for several images, in a greenlet that parks at the end of each step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers import DiffusionPipeline, SchedulerMixin

from genmill.errors import GenerationFailed
from genmill.inputs import ImageInput
from worker.engines.base import EngineJob, Undeveloped
from worker.engines.berths import Steps
from worker.engines.meter import Meter, Share, Stopwatch
from worker.engines.pictures import outputs_of
from worker.engines.pipelines import parameters_of
from worker.engines.task import Task

PER_IMAGE = ("prompt", "negative_prompt", "generator")
"""Arguments of which a call for several images takes a list."""

_STEP_END = "callback_on_step_end"


@dataclass(slots=True, eq=False)
class Entry:
    """One image of a job. Entries with equal `key` may share a call. When it is over, `output` or `error` is set."""

    job: EngineJob
    input: ImageInput
    index: int
    key: Hashable
    step: int = 0
    steps: int = 0
    output: Undeveloped | None = None
    error: Exception | None = None
    meter: Meter = field(default_factory=Meter)

    @property
    def is_over(self) -> bool:
        return self.output is not None or self.error is not None

    @property
    def shape(self) -> str:
        """Of its picture, by which curves and caps are kept."""
        asked = self.input
        return f"{asked.width}x{asked.height}" + (f"x{asked.num_frames}" if asked.num_frames > 1 else "")


class Miscounted(GenerationFailed):
    """The pipeline did not make one picture for each prompt."""


def key_of(asked: ImageInput) -> Hashable:
    """What images of one call have in common: all but prompts and seeds. Without a negative prompt some pipelines do
    something else than with an empty one."""
    own = {"prompt", "negative_prompt", "seed", "num_images", "init_image", "strength"}
    return (bool(asked.negative_prompt), *asked.model_dump(exclude=own).values())


def joined(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The arguments of one call for all. A single one stays as it is: not all pipelines take lists."""
    if len(calls) == 1:
        return dict(calls[0])
    lists = {name: [call[name] for call in calls] for name in PER_IMAGE if name in calls[0]}
    return {**calls[0], **lists}


class SharedCall:
    """A call of a pipeline copy for `entries`, some of which may have `left`. It parks in the pipeline's own callbacks
    at the end of a step; a pipeline without any, in its progress bar. `has_rested`: it has waited for an urgent call.
    """

    def __init__(
        self, pipe: DiffusionPipeline, arguments: Mapping[str, Any], entries: Sequence[Entry], scheduler: Any = None
    ) -> None:
        """With the pipeline's own scheduler where none is given."""
        callbacks = [name for name in parameters_of(pipe) if name.endswith(_STEP_END)]
        self.entries = entries
        self.left: set[Entry] = set()
        self.has_rested = False
        self._parks, self._device = 0, pipe.device
        self._steps = Steps(entries[0].input.steps, None if callbacks else self._park)
        self._pipe = _own_copy(pipe, self._steps)
        if scheduler is not None:
            vars(self._pipe)["scheduler"] = scheduler
        self._arguments = {**arguments, **{name: self._callback(name == _STEP_END) for name in callbacks}}
        with torch.inference_mode():  # the modes that it begins with are the engine's, not its caller's
            self._task = Task(self._work)

    @property
    def is_over(self) -> bool:
        return self._task.is_over

    @property
    def is_amid_steps(self) -> bool:
        """The last thing that it did was a step and nothing else."""
        return not self.is_over and self._parks > 1

    @property
    def error(self) -> Exception | None:
        return self._task.error

    @property
    def outputs(self) -> list[Any]:
        """One for each entry, of a call that is over and has no error."""
        outputs: list[Any] = self._task.result
        return outputs

    @property
    def staying(self) -> list[Entry]:
        return [entry for entry in self.entries if entry not in self.left]

    def go_on(self) -> Stopwatch:
        """One step further, or to its end. What that takes is charged to all entries, in equal parts.

        Raises torch.AcceleratorError when the device is lost."""
        watch = Stopwatch(self._device)
        with torch.inference_mode():
            self._task.go_on()
        watch.stop()
        is_step, size, forward = not self.is_over or not self._parks, len(self.entries), object()
        for entry in self.entries:
            entry.step, entry.steps = min(self._steps.done, self._steps.total), self._steps.total
            entry.meter.shares.append(Share(watch, 1 / size, size, is_step, forward))
        return watch

    def end(self) -> None:
        self._task.end()

    def _work(self) -> list[Any]:
        outputs = outputs_of(self._pipe(**self._arguments))
        prompts = len(self.entries)
        if len(outputs) < prompts or len(outputs) > prompts > 1:
            raise Miscounted(f"the pipeline made {len(outputs)} pictures of {prompts} prompts")
        return outputs[:prompts]

    def _park(self) -> None:
        self._parks += 1
        self._task.parent.switch()

    def _callback(self, is_counting: bool) -> Callable[..., dict[str, Any]]:
        """Of combined pipelines only the last, which draws the picture, counts."""

        def step_ended(pipe: Any, index: int, _timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            if is_counting:  # samplers of second order take two turns for most steps
                turns = getattr(pipe, "num_timesteps", None) or self._steps.total
                self._steps.done = self._steps.total * (index + 1) // turns
            self._park()
            return tensors

        return step_ended


def _own_copy(pipe: DiffusionPipeline, steps: Steps) -> DiffusionPipeline:
    """Shared weights, own schedulers. Not by setattr, which would write them into the pipeline's config."""
    own = copy.copy(pipe)
    schedulers = {name: part for name, part in pipe.components.items() if isinstance(part, SchedulerMixin)}
    vars(own).update({name: copy.deepcopy(part) for name, part in schedulers.items()})
    vars(own)["progress_bar"] = steps
    return own
