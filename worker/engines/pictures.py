"""What a pipeline call returned, as pictures and videos."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from genmill.errors import GenerationFailed, OutputInvalid
from genmill.inputs import USUAL_FPS
from worker.engines.base import Undeveloped, Video
from worker.engines.overlap import HostCopy

_OF_NUMPY = frozenset({torch.float32, torch.float16})


def outputs_of(result: Any) -> list[Any]:
    """One output for each prompt of a call: pictures, or each the frames of a video. Raises GenerationFailed."""
    for name in ("images", "frames"):
        if (outputs := getattr(result, name, None)) is not None:
            return list(outputs)
    raise GenerationFailed(f"{type(result).__name__} holds neither images nor frames")


def undeveloped(output: Any, fps: int | None, then: Callable[[torch.Tensor], None] | None = None) -> Undeveloped:
    """One output of a pipeline, its pixels to be made by `as_output` in another thread. What lies on the device begins
    its way to the host now. `then` gets the floats, if they are a picture."""
    there = HostCopy(output.detach()) if isinstance(output, torch.Tensor) else output
    return Undeveloped(partial(_develop, there, fps, then), _frames_in(there))


def _develop(there: Any, fps: int | None, then: Callable[[torch.Tensor], None] | None) -> Image.Image | Video:
    floats = as_floats(there.tensor() if isinstance(there, HostCopy) else there)
    made = as_output(floats, fps)
    if then is not None:
        then(floats)
    return made


def _frames_in(there: Any) -> int:
    if isinstance(there, HostCopy | np.ndarray):
        return 1 if len(there.shape) == 3 else there.shape[0]
    return len(there) if isinstance(there, list) else 1


def as_output(output: Any, fps: int | None) -> Image.Image | Video:
    """A picture, or a video of more than one frame, from floats in 0..1: [3, H, W] or [frames, 3, H, W].

    Raises OutputInvalid for NaN or infinities in any frame, for no pixels, and where all are black."""
    floats = as_floats(output)
    frames = [floats] if floats.dim() == 3 else list(floats)
    pixels = [_pixels(frame) for frame in frames]
    if not any(frame.any() for frame in pixels):  # a video may well begin in the dark
        what = "image" if len(pixels) == 1 else "video"
        raise OutputInvalid(f"The model produced an all black {what}.")
    images = tuple(Image.fromarray(frame) for frame in pixels)
    return images[0] if len(images) == 1 else Video(images, fps or USUAL_FPS)


def as_floats(output: Any) -> torch.Tensor:
    """[3, H, W] or [frames, 3, H, W] of whatever a pipeline makes: tensors, arrays with the channels last, PIL."""
    if isinstance(output, torch.Tensor):
        return output
    if isinstance(output, list):
        return torch.stack([as_floats(frame) for frame in output])
    if isinstance(output, Image.Image):
        output = np.asarray(output.convert("RGB"), dtype=np.float32) / 255
    return torch.from_numpy(np.asarray(output)).movedim(-1, -3)


def _pixels(picture: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """[H, W, 3], rounded as diffusers does. By numpy, in the one thread that calls: torch's own threads are the
    forwards'."""
    picture = picture.detach().cpu()  # on the device a copy may not fit
    numbers = (picture if picture.dtype in _OF_NUMPY else picture.float()).permute(1, 2, 0).numpy()
    numbers = numbers.astype(np.float32, copy=False)
    if numbers.size == 0 or not np.isfinite(numbers).all():
        raise OutputInvalid
    return (numbers * 255).round().astype(np.uint8)
