"""The port between the worker's loop and the models: jobs in, events out, one event for each job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from genmill.errors import JobFailure
from genmill.inputs import JobInput
from genmill.keys import JobClass
from genmill.registry import Batching

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class EngineJob:
    """A claimed job as an engine sees it. Its images are decoded, RGB and of any size; white of the mask is painted
    anew.

    An urgent one (p0) is not held up by yielding ones (p3): those may have to rest once for it, the one with the
    latest virtual deadline first, and take fewer steps while it takes its own. One that `is_reproducible` shares no
    forward, so that its result does not depend by a bit on who else is on board. `is_streamed`, `has_preview`: its
    progress comes with text deltas, with previews. One that `is_rehearsal` warms up a shape, and its pictures teach
    nothing."""

    job_id: str
    input: JobInput
    init_image: Image | None = None
    job_class: str = JobClass.P1
    vd_ms: float = 0.0
    is_reproducible: bool = False
    is_rehearsal: bool = False
    is_streamed: bool = False
    has_preview: bool = False
    mask_image: Image | None = None
    control_image: Image | None = None

    @property
    def is_urgent(self) -> bool:
        return self.job_class == JobClass.P0

    @property
    def is_yielding(self) -> bool:
        return self.job_class == JobClass.P3


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the run of one job was like: facts for its client, and the cost to charge.

    `batch_*` count the rows-sharing jobs (images or sequences) in the forwards that this job took part in.
    `forwards_share` adds 1 / batch over the job's forwards: summed over all jobs it counts the forwards. `gpu_ms` is
    the job's share of their time. `loras`: the adapters that it ran with, each with its weight.
    """

    model: str
    revision: str
    dtype: str
    device: str
    seed: int
    forwards: int
    batch_min: int
    batch_mean: float
    batch_max: int
    forwards_share: float
    gpu_ms: float
    step_ms: float
    versions: dict[str, str] = field(default_factory=dict)
    loras: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Video:
    """More than one frame, all of one size, shown at `fps` frames a second."""

    frames: tuple[Image, ...]
    fps: int


@dataclass(frozen=True, slots=True)
class Undeveloped:
    """A picture, or a video of so many frames, whose pixels are still to be made: the worker calls `develop`, once, in
    another thread than the engine's. It raises JobFailure for an output that is none, and whatever goes wrong."""

    develop: Callable[[], Image | Video]
    frames: int = 1


@dataclass(frozen=True, slots=True)
class TextOutput:
    """`tokens`, where logprobs were asked for: {token, logprob, top: [{token, logprob}]} of each token written, those
    of a stop string or of the end of text among them."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    tokens: tuple[Mapping[str, Any], ...] | None = None


class TextDelta(NamedTuple):
    """Text that goes on at `offset`, in characters."""

    offset: int
    text: str


Sketch = Callable[[], "Image"]
"""Draws a preview; called once, in another thread than the engine's."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Step `step` of `steps` is done (for text: tokens)."""

    job_id: str
    step: int
    steps: int
    delta: TextDelta | None = None
    sketch: Sketch | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """`images` (a picture or a video for each of num_images) or `text`, never both."""

    job_id: str
    receipt: Receipt
    images: tuple[Image | Video | Undeveloped, ...] = ()
    text: TextOutput | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """`gpu_ms` is what the job had cost until then."""

    job_id: str
    error: JobFailure
    gpu_ms: float = 0.0


Event = Progress | Finished | Failed


class Left(NamedTuple):
    """How far a job had come that left before its end, and what that had cost."""

    step: int
    gpu_ms: float = 0.0


Curve = Mapping[str, Any]
"""`ms` of a forward by its rows, and `knee_rows`: how many take about the least time."""


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """What a model takes of a device of this name: for itself, and its forwards at their peak, over what was held
    before, by part and shape of a row, and by rows. Bytes. `measured_with`: in which circumstances; engines leave it
    to the worker."""

    device: str
    model_bytes: NonNegativeInt
    peaks: Mapping[str, Mapping[PositiveInt, NonNegativeInt]] = field(default_factory=dict)
    measured_with: Mapping[str, str] = field(default_factory=dict)


_MEMORY = TypeAdapter(ModelMemory)


def write_memory(memory: ModelMemory) -> str:
    return _MEMORY.dump_json(memory).decode()


def read_memory(raw: bytes) -> ModelMemory | None:
    """What `write_memory` wrote; None for anything else, such as another version's."""
    try:
        return _MEMORY.validate_json(raw)
    except ValidationError:
        return None


@dataclass(frozen=True, slots=True)
class Device:
    """Where a worker's models run. `memory_bytes` is all that it has, None where caps are settings; `host_bytes` are
    the host's for models that are out of use, of all the workers there, `host_devices` how many such devices it has,
    seen by this process or not. `dtype`: of models whose entry says "auto"."""

    name: str
    memory_bytes: int | None = None
    host_bytes: int = 0
    host_devices: int = 1
    dtype: str = "float32"


class Engine(Protocol):
    """One loaded model. All methods are called from the one thread that runs the worker's loop."""

    batching: Batching

    def free_slots(self) -> int:
        """Rows (images or sequences) that may still join the running batch."""
        ...

    def urgent_slots(self) -> int:
        """Rows that urgent jobs may take besides, because others would rest for them."""
        ...

    def admit(self, jobs: Sequence[EngineJob]) -> None:
        """Take jobs on board; a bad one shows as `Failed` from a later step, never as an exception here."""
        ...

    def step(self) -> list[Event]:
        """One iteration for everybody on board. Returns at once with [] when nobody is."""
        ...

    def evict(self, job_id: str) -> Left | None:
        """Drop a job between steps; None when it is not on board."""
        ...

    def is_idle(self) -> bool:
        """Nobody on board."""
        ...

    def curves(self) -> Mapping[str, Curve]:
        """How long forwards take, by device and shape joined by a blank; empty until something is known."""
        ...

    def memory(self) -> ModelMemory:
        """What it takes, as far as that was measured."""
        ...

    def recall(self, memory: ModelMemory) -> None:
        """What another process has measured of the same model on such a device; own measurements replace it."""
        ...

    def parked_bytes(self) -> int:
        """What it holds of the host's memory while it is parked."""
        ...

    def park(self) -> None:
        """Move the weights to the host's memory; nobody is on board. Until `unpark` only `close` may follow.

        Raises RuntimeError where the host has no room; then only `close` may follow."""
        ...

    def unpark(self) -> None:
        """Move the weights back to the device. Raises RuntimeError where that has no room; then only `close` may
        follow."""
        ...

    def close(self) -> None:
        """Free the model's memory; the engine is not used again."""
        ...


@runtime_checkable
class TakesAdapters(Protocol):
    """What an engine has besides whose jobs may ask for adapters."""

    def load_adapter(self, name: str) -> int:
        """Have it in memory for as long as the model. Returns the bytes that it takes besides, 0 where it was there.
        Raises ModelUnavailable; the engine goes on without it."""
        ...


def is_device_lost(error: BaseException) -> bool:
    """The context is gone: the process must end, and leases give its jobs back. By name, for rooms without torch."""
    return any(kind.__name__ == "AcceleratorError" for kind in type(error).__mro__)


@dataclass(frozen=True, slots=True)
class Returned:
    """A plain function's return value, JSON serialisable. Only the call and delivery stations send it."""

    job_id: str
    value: object = None


@dataclass(frozen=True, slots=True)
class Postponed:
    """The job cannot go on now and should be tried again after `delay_s`; nothing is wrong with it."""

    job_id: str
    delay_s: float
    error: JobFailure


StationEvent = Event | Returned | Postponed
