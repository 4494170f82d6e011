"""What pipelines return, in all their forms, as pictures and videos."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from genmill.errors import GenerationFailed, OutputInvalid
from worker.engines.base import Video
from worker.engines.pictures import as_output, outputs_of

RED = torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand(3, 4, 6)


def film(*frames: torch.Tensor) -> torch.Tensor:
    return torch.stack(frames)


@pytest.mark.parametrize(
    "output",
    [RED, RED.half(), RED[None], RED.permute(1, 2, 0).numpy(), Image.new("RGB", (6, 4), "red"), [RED]],
)
def test_every_form_of_a_picture_is_one(output: Any) -> None:
    image = as_output(output, None)
    assert isinstance(image, Image.Image)
    assert (image.size, image.getpixel((0, 0))) == ((6, 4), (255, 0, 0))


@pytest.mark.parametrize(
    "output",
    [
        film(RED, RED / 2),
        film(RED, RED / 2).permute(0, 2, 3, 1).numpy(),
        [Image.new("RGB", (6, 4), "red"), Image.new("RGB", (6, 4), (128, 0, 0))],
    ],
)
def test_every_form_of_a_video_is_one(output: Any) -> None:
    video = as_output(output, None)
    assert isinstance(video, Video)
    assert [frame.getpixel((5, 3)) for frame in video.frames] == [(255, 0, 0), (128, 0, 0)]
    assert video.fps == 16


def test_a_video_may_begin_in_the_dark_but_not_stay_there() -> None:
    dark = torch.zeros_like(RED)
    assert isinstance(as_output(film(dark, RED), 8), Video)
    with pytest.raises(OutputInvalid, match="all black video"):
        as_output(film(dark, dark), 8)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_one_frame_that_is_no_number_spoils_the_video(bad: float) -> None:
    with pytest.raises(OutputInvalid):
        as_output(film(RED, RED, torch.full_like(RED, bad)), 8)


def test_outputs_are_found_under_either_name() -> None:
    assert len(outputs_of(SimpleNamespace(images=np.zeros((2, 4, 4, 3))))) == 2
    assert len(outputs_of(SimpleNamespace(frames=film(RED, RED)[None]))) == 1
    with pytest.raises(GenerationFailed, match="holds neither images nor frames"):
        outputs_of(SimpleNamespace(audios=[]))
