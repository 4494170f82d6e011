"""Figures of the saved models: fidelity by setting, what the autoencoder keeps, the gain from batching."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import diffusers
import numpy as np
import torch
from diffusers import StableDiffusionImg2ImgPipeline, StableDiffusionPipeline
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer

from genmill.shapes.checker import LEAST_OVERLAP, Finding, inspect
from genmill.shapes.grammar import Caption, draw_captions
from genmill.shapes.render import render_one
from training.autoencoder import measure_kept
from training.captions import measure_grammar

SEED: Final = 7
AT_ONCE: Final = 25

SCHEDULERS: Final = (
    "EulerDiscreteScheduler",
    "EulerAncestralDiscreteScheduler",
    "DPMSolverMultistepScheduler",
    "UniPCMultistepScheduler",
    "PNDMScheduler",
    "HeunDiscreteScheduler",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """How pictures are asked for; the defaults are those recommended for the model."""

    size: int = 64
    steps: int = 20
    guidance: float = 4.0
    scheduler: str = "DDIMScheduler"
    strength: float | None = None

    def __str__(self) -> str:
        """The setting in words; `strength` only for image to image."""
        start = "" if self.strength is None else f", from another image at strength {self.strength}"
        name = self.scheduler.removesuffix("Scheduler").removesuffix("Discrete")
        return f"{self.size} px, {self.steps} steps, guidance {self.guidance:g}, {name}{start}"


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Shares of pictures in which the checker found each part of the caption, and the caption."""

    setting: str
    count: int
    colour: float
    shape: float
    ground: float
    whole: float


def settings() -> Iterator[Setting]:
    """The default first, then one change at a time."""
    yield Setting()
    yield Setting(size=96)
    yield from (Setting(steps=steps) for steps in (8, 12, 30, 50))
    yield from (Setting(guidance=guidance) for guidance in (1.0, 2.0, 3.0, 5.0, 7.0, 9.0))
    yield from (Setting(scheduler=name) for name in SCHEDULERS)
    yield from (Setting(scheduler=name, steps=8) for name in SCHEDULERS)
    yield from (Setting(scheduler="PNDMScheduler", steps=steps) for steps in (30, 50))
    yield from (Setting(scheduler="PNDMScheduler", steps=steps, guidance=2.0) for steps in (8, 12, 20))
    yield from (Setting(size=size, strength=0.8) for size in (64, 96))


def sizes(pipeline: StableDiffusionPipeline, path: Path) -> dict[str, Any]:
    """Parameters of each network and bytes of all files."""
    return {
        "parameters": {name: _parameters(getattr(pipeline, name)) for name in ("unet", "vae", "text_encoder")},
        "bytes": _bytes(path),
    }


def fidelities(pipeline: StableDiffusionPipeline, count: int, count_others: int) -> list[dict[str, Any]]:
    """Fidelity at each of the settings; the first is tried on `count` captions."""
    figures = []
    for index, setting in enumerate(settings()):
        figures.append(asdict(measure_fidelity(pipeline, setting, count_others if index else count)))
        print(figures[-1], flush=True)
    return figures


def kept_by_autoencoder(pipeline: StableDiffusionPipeline) -> dict[str, Any]:
    """What 1,000 reconstructions of each size keep of their captions."""
    return {str(size): asdict(measure_kept(pipeline.vae, 1000, size, SEED)) for size in (64, 96)}


def captions_figures(path: Path, count: int) -> dict[str, Any]:
    """Everything measured of the captions model."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path)
    return {
        "parameters": _parameters(model),
        "bytes": _bytes(path),
        "count": count,
        "in_grammar": measure_grammar(model, tokenizer, count, SEED),
    }


def load_shapes(path: Path) -> StableDiffusionPipeline:
    """The saved pipeline in single precision, without progress bars."""
    pipeline = StableDiffusionPipeline.from_pretrained(path, dtype=torch.float32, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def measure_fidelity(pipeline: StableDiffusionPipeline, setting: Setting, count: int) -> Fidelity:
    """What the checker finds in the pictures of `count` drawn captions."""
    captions = draw_captions(count, np.random.default_rng(SEED))
    findings = [inspect(image) for image in draw(pipeline, setting, captions)]
    pairs = [(finding.caption, caption) for finding, caption in zip(findings, captions, strict=True)]
    return Fidelity(
        setting=str(setting),
        count=count,
        colour=_share(found.colour == asked.colour for found, asked in pairs),
        shape=_share(found.shape == asked.shape for found, asked in pairs),
        ground=_share(found.ground == asked.ground for found, asked in pairs),
        whole=_share(map(_is_right, findings, captions)),
    )


def draw(pipeline: StableDiffusionPipeline, setting: Setting, captions: Sequence[Caption]) -> list[Image.Image]:
    """One picture for each caption, by its own seed."""
    scheduler = getattr(diffusers, setting.scheduler).from_config(pipeline.scheduler.config)
    components = {**pipeline.components, "scheduler": scheduler}
    if setting.strength is None:
        drawer = StableDiffusionPipeline(**components, requires_safety_checker=False)
    else:
        drawer = StableDiffusionImg2ImgPipeline(**components, requires_safety_checker=False)
    drawer.set_progress_bar_config(disable=True)
    pictures: list[Image.Image] = []
    for first in range(0, len(captions), AT_ONCE):
        part = captions[first : first + AT_ONCE]
        pictures += drawer(**_arguments(setting, part, first)).images
    return pictures


@torch.no_grad()
def measure_batching(pipeline: StableDiffusionPipeline, rounds: int = 100) -> dict[str, Any]:
    """The denoiser's milliseconds a row at several batch sizes on two threads.

    The sizes take turns and the best of `rounds` counts, so that a busy machine disturbs them alike."""
    torch.set_num_threads(2)
    best = dict.fromkeys((1, 2, 4, 8, 16, 32, 64), float("inf"))
    for _ in range(rounds):
        for rows in best:
            best[rows] = min(best[rows], _forward_ms(pipeline, rows) / rows)
    return {
        "ms_per_row": {str(rows): value for rows, value in best.items()},
        "gain_2_to_32": best[2] / best[32],
    }


def _forward_ms(pipeline: StableDiffusionPipeline, rows: int) -> float:
    latents, times = torch.randn(rows, 4, 8, 8), torch.full((rows,), 500)
    words = torch.randn(rows, pipeline.tokenizer.model_max_length, pipeline.unet.config.cross_attention_dim)
    began = time.perf_counter()
    pipeline.unet(latents, times, words)
    return (time.perf_counter() - began) * 1000


def _arguments(setting: Setting, captions: Sequence[Caption], first: int) -> dict[str, Any]:
    generators = [torch.Generator().manual_seed(SEED * 100_000 + first + i) for i in range(len(captions))]
    arguments: dict[str, Any] = {
        "prompt": [str(caption) for caption in captions],
        "num_inference_steps": setting.steps,
        "guidance_scale": setting.guidance,
        "generator": generators,
    }
    if setting.strength is None:
        return {**arguments, "height": setting.size, "width": setting.size}
    rng = np.random.default_rng([SEED, first])
    starts = [render_one(caption, setting.size, rng) for caption in draw_captions(len(captions), rng)]
    return {**arguments, "image": starts, "strength": setting.strength}


def _is_right(finding: Finding, caption: Caption) -> bool:
    return finding.caption == caption and finding.overlap >= LEAST_OVERLAP


def _share(hits: Any) -> float:
    return float(np.mean(list(hits)))


def _parameters(network: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
