"""Figures of a demo run, and which of them fall short of what genmill promises. Pure: no clock, no network."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from genmill.demo.drive import Outcome
from genmill.demo.plain import PlainRun
from genmill.shapes import checker, grammar

ALONE = 8
"""Image jobs whose pixels are compared with those of the same job run alone."""

HALF_A_LEVEL = 0.5 / 255
"""What rounding to 8 bits may move a pixel."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A figure and its bound; `is_least` tells on which side."""

    figure: str
    bound: float
    is_least: bool

    def shortfall(self, figures: Mapping[str, float]) -> str | None:
        value = figures[self.figure]
        holds = value >= self.bound if self.is_least else value <= self.bound
        if holds:
            return None
        return f"{self.figure} is {value:g}, promised is {'at least' if self.is_least else 'at most'} {self.bound:g}"


PROMISES = (
    Promise("failed", 0, is_least=False),
    Promise("fidelity", 0.85, is_least=True),
    Promise("max_abs_diff_vs_alone", 1e-3, is_least=False),
    Promise("max_batch", 8, is_least=True),
    Promise("speedup_vs_one_at_a_time", 2.5, is_least=True),
    Promise("callbacks_refused", 0, is_least=False),
    Promise("wall_s", 90, is_least=False),
)


def shortfalls(figures: Mapping[str, float]) -> list[str]:
    """One line for each promise that was not kept."""
    promises = (*PROMISES, Promise("callbacks_verified", figures["jobs"], is_least=True))
    return [line for promise in promises if (line := promise.shortfall(figures)) is not None]


Round = Sequence[Outcome]
"""All jobs, once through the fleet."""


def figures_of(
    rounds: Sequence[Round], plain: PlainRun, message_ids: Mapping[str, set[str]], refused: int, wall_s: float
) -> dict[str, float]:
    """All figures of the report, by name: of the first round, but for failures and webhooks, which count in any, and
    for the fleet's time, which is the mean over the rounds."""
    outcomes = rounds[0]
    done = [outcome for outcome in outcomes if outcome.has_succeeded]
    images = [outcome for outcome in done if outcome.job.is_image]
    receipts = [outcome.view["receipt"] for outcome in images]
    row_forwards = sum(receipt["forwards"] for receipt in receipts)
    forwards = sum(receipt["forwards_share"] for receipt in receipts)
    waits = [total for outcome in done if (total := outcome.view["timings"]["total_s"]) is not None]
    fleet_s = fmean(map(fleet_seconds, rounds))
    sample = images[:: max(1, len(images) // ALONE)][:ALONE]
    return {
        "jobs": len(outcomes),
        "succeeded": len(done),
        "failed": sum(not outcome.has_succeeded for one in rounds for outcome in one),
        "forwards": round(forwards),
        "mean_batch": round(row_forwards / forwards, 2) if forwards else 0.0,
        "max_batch": max((receipt["batch_max"] for receipt in receipts), default=0),
        "fidelity": _share([shows_caption(outcome) for outcome in images]),
        "text_fidelity": _share([is_in_grammar(outcome) for outcome in done if not outcome.job.is_image]),
        "max_abs_diff_vs_alone": max((difference(o, plain) for o in sample), default=1.0),
        "max_abs_diff_of_all": max((difference(o, plain) for o in images), default=1.0),
        "callbacks_verified": min(_told_once(one, message_ids) for one in rounds),
        "callbacks_refused": refused,
        "speedup_vs_one_at_a_time": round(plain.total_s / fleet_s, 2) if fleet_s else 0.0,
        "fleet_s": round(fleet_s, 2),
        "one_at_a_time_s": round(plain.total_s, 2),
        "p50_s": round(percentile(waits, 50), 3),
        "p95_s": round(percentile(waits, 95), 3),
        "wall_s": round(wall_s, 1),
    }


def samples_of(rounds: Sequence[Round], plain: PlainRun) -> dict[str, Any]:
    """What each round took, and of the first one line for each job: what was asked, how it went, what came out."""
    return {
        "fleet_s": [round(fleet_seconds(one), 3) for one in rounds],
        "one_at_a_time_s": round(plain.total_s, 3),
        "jobs": [_sample(outcome, plain) for outcome in rounds[0]],
    }


def fleet_seconds(outcomes: Round) -> float:
    """From the first submission to the end of the last image, by the fleet's own clock."""
    images = [outcome for outcome in outcomes if outcome.job.is_image and outcome.has_succeeded]
    if not images:
        return 0.0
    first = min(_time(outcome.view["queued_at"]) for outcome in images)
    last = max(_time(outcome.view["ended_at"]) for outcome in images)
    return (last - first).total_seconds()


def shows_caption(outcome: Outcome) -> bool:
    """Whether every image of the job shows what the prompt says."""
    caption = outcome.job.caption
    return caption is not None and all(checker.matches(pixels_of(body), caption) for body in outcome.bodies)


def is_in_grammar(outcome: Outcome) -> bool:
    """Whether the prompt with its continuation is a caption."""
    return grammar.is_caption(whole_text(outcome))


def whole_text(outcome: Outcome) -> str:
    """Prompt and continuation as one text."""
    return f"{outcome.job.input['prompt']}{outcome.view['text']['text']}".strip()


def difference(outcome: Outcome, plain: PlainRun) -> float:
    """Largest distance of a delivered pixel, in 0..1, from the float of the same job run alone, past 8-bit rounding.

    0 means that every byte is the correct rounding of the plain call's float; a value that lies on the border
    between two bytes may round either way, and counts with the tiny difference that it shows.
    """
    alone = plain.pictures[outcome.job.number]
    delivered = pixels_of(outcome.bodies[0]).astype(np.float64) / 255
    if delivered.shape != alone.shape:
        return 1.0
    return float(max(0.0, np.abs(delivered - alone).max() - HALF_A_LEVEL))


def pixels_of(body: bytes) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(body)).convert("RGB"))


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else 0.0


def _told_once(outcomes: Sequence[Outcome], message_ids: Mapping[str, set[str]]) -> int:
    return sum(len(message_ids.get(outcome.view["id"], ())) == 1 for outcome in outcomes)


def _share(hits: Sequence[bool]) -> float:
    return round(sum(hits) / len(hits), 3) if hits else 0.0


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _sample(outcome: Outcome, plain: PlainRun) -> dict[str, Any]:
    view, job = outcome.view, outcome.job
    sample: dict[str, Any] = {
        "number": job.number,
        "tenant": job.tenant,
        "priority": job.priority,
        "state": view["state"],
        "input": dict(job.input),
        "timings": view["timings"],
        "error": view["error"],
    }
    if not outcome.has_succeeded:
        return sample
    receipt = view["receipt"]
    sample["batch"] = {name: receipt[name] for name in ("forwards", "batch_min", "batch_mean", "batch_max")}
    if job.is_image:
        facts = {"shows_caption": shows_caption(outcome), "diff_vs_alone": difference(outcome, plain)}
        return {**sample, **facts, "alone_s": round(plain.seconds[job.number], 3)}
    return {**sample, "text": whole_text(outcome), "is_in_grammar": is_in_grammar(outcome)}
