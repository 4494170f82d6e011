"""Trains the shapes model, a small Stable Diffusion, and saves it: `python -m training.shapes`."""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline
from transformers import CLIPTokenizer

from genmill.shapes.checker import matches
from genmill.shapes.grammar import draw_captions
from training import autoencoder, denoiser
from training.course import Course, Plan
from training.words import build_clip_tokenizer

HOME: Final = Path(__file__).parent
OUT: Final = HOME.parent / "genmill" / "models" / "shapes"
WORK: Final = HOME.parent / "out" / "training"


def assemble(painter: denoiser.Painter, vae: AutoencoderKL, tokenizer: CLIPTokenizer) -> StableDiffusionPipeline:
    """A pipeline of the three networks, with no safety checker."""
    return StableDiffusionPipeline(
        vae=vae,
        text_encoder=painter.text_encoder,
        tokenizer=tokenizer,
        unet=painter.unet,
        scheduler=denoiser.build_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        image_encoder=None,
        requires_safety_checker=False,
    )


def save(pipeline: StableDiffusionPipeline, out: Path) -> None:
    """Writes the pipeline's weights in half precision, leaving its own as they are."""
    rounded = StableDiffusionPipeline(
        **{**pipeline.components, **_rounded_networks(pipeline)}, requires_safety_checker=False
    )
    part = out.with_suffix(".part")
    rounded.save_pretrained(part, safe_serialization=True)
    if out.exists():
        shutil.rmtree(out)
    part.rename(out)


@torch.no_grad()
def sample_fidelity(pipeline: StableDiffusionPipeline, count: int, seed: int) -> float:
    """Share of `count` drawn captions that the checker finds in their pictures, at 20 steps."""
    captions = draw_captions(count, np.random.default_rng(seed))
    pipeline.set_progress_bar_config(disable=True)
    generators = [torch.Generator().manual_seed(seed * 10_000 + index) for index in range(count)]
    images = pipeline(
        [str(caption) for caption in captions], num_inference_steps=20, guidance_scale=4.0, generator=generators
    ).images
    return float(np.mean([matches(image, caption) for image, caption in zip(images, captions, strict=True)]))


def train(plans: tuple[Plan, Plan], seed: int, work: Path, out: Path) -> dict[str, float]:
    """Both stages, one after the other; a usable model lies in `out` after each checkpoint of the second."""
    vae, autoencoder_s = autoencoder.train_autoencoder(plans[0], seed, work)
    began = time.monotonic()
    vae.register_to_config(scaling_factor=denoiser.measure_scale(vae, seed))
    stored = denoiser.store_latents(vae, seed, work)
    encoding_s = time.monotonic() - began
    tokenizer = build_clip_tokenizer()
    tokens = denoiser.prompt_tokens(tokenizer)
    scheduler = denoiser.build_scheduler()
    torch.manual_seed(seed)
    course = Course("denoiser", denoiser.Painter(tokenizer), plans[1], seed, work)

    def report(running: Course) -> str:
        pipeline = assemble(running.average, vae, tokenizer)  # type: ignore[arg-type]  # a course holds any module
        save(pipeline, out)
        return f"fidelity {sample_fidelity(pipeline, 64, seed=1):.3f}"

    course.run(
        lambda rng: denoiser.velocity_loss(course.model, scheduler, stored, tokens, rng),  # type: ignore[arg-type]  # a course holds any module
        report,
    )
    save(assemble(course.average, vae, tokenizer), out)  # type: ignore[arg-type]  # a course holds any module
    return {"autoencoder_s": autoencoder_s, "encoding_s": encoding_s, "denoiser_s": course.elapsed_s}


def main() -> None:
    """Reads the arguments, trains, and records what the stages took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=WORK, help="checkpoints and stored latents; resumed from")
    parser.add_argument("--out", type=Path, default=OUT)
    _add_bounds(parser, "autoencoder", autoencoder.PLAN)
    _add_bounds(parser, "denoiser", denoiser.PLAN)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    given.work.mkdir(parents=True, exist_ok=True)
    plans = _bounded(autoencoder.PLAN, given, "autoencoder"), _bounded(denoiser.PLAN, given, "denoiser")
    taken = train(plans, given.seed, given.work, given.out)
    record = HOME / "results" / "shapes-training.json"
    record.parent.mkdir(exist_ok=True)
    record.write_text(json.dumps({"seed": given.seed, **taken}, indent=2) + "\n")
    print(taken)


def _rounded_networks(pipeline: StableDiffusionPipeline) -> dict[str, Any]:
    return {name: copy.deepcopy(getattr(pipeline, name)).half() for name in ("vae", "unet", "text_encoder")}


def _add_bounds(parser: argparse.ArgumentParser, name: str, plan: Plan) -> None:
    parser.add_argument(f"--{name}-steps", type=int, default=plan.steps)
    parser.add_argument(f"--{name}-budget-s", type=float, default=plan.budget_s)


def _bounded(plan: Plan, given: argparse.Namespace, name: str) -> Plan:
    bounds = vars(given)
    return Plan(**{**_fields(plan), "steps": bounds[f"{name}_steps"], "budget_s": bounds[f"{name}_budget_s"]})


def _fields(plan: Plan) -> dict[str, Any]:
    return {field: getattr(plan, field) for field in Plan.__slots__}


if __name__ == "__main__":
    main()
