"""What a pipeline call returned, as pictures and videos."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image

from genmill.errors import GenerationFailed, OutputInvalid
from genmill.inputs import USUAL_FPS
from worker.engines.base import Video


def outputs_of(result: Any) -> list[Any]:
    """One output for each prompt of a call: pictures, or each the frames of a video. Raises GenerationFailed."""
    for name in ("images", "frames"):
        if (outputs := getattr(result, name, None)) is not None:
            return list(outputs)
    raise GenerationFailed(f"{type(result).__name__} holds neither images nor frames")


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
    """[H, W, 3], rounded as diffusers does."""
    picture = picture.detach().cpu().float()  # on the device a copy may not fit
    if picture.numel() == 0 or not bool(picture.isfinite().all()):
        raise OutputInvalid
    pixels: np.ndarray[Any, np.dtype[np.uint8]] = (picture.permute(1, 2, 0).numpy() * 255).round().astype("uint8")
    return pixels
