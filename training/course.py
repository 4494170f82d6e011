"""One training run: optimiser, learning rate, averaged weights, checkpoints, and a bound on steps and time."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

LossOfStep = Callable[[np.random.Generator], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how fast to train; the run ends at `steps` or `budget_s`, whichever comes first."""

    steps: int
    budget_s: float
    learning_rate: float
    weight_decay: float = 0.01
    warm_up_steps: int = 100
    average_decay: float = 0.998
    checkpoint_every: int = 250


class Course:
    """Trains `model` in place and keeps `average`, the running mean of its weights that is to be used."""

    def __init__(self, name: str, model: torch.nn.Module, plan: Plan, seed: int, folder: Path) -> None:
        self.name, self.model, self.plan, self.seed = name, model, plan, seed
        self.average = copy.deepcopy(model).eval().requires_grad_(False)
        self.optimiser = torch.optim.AdamW(
            model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.99), weight_decay=plan.weight_decay
        )
        self.step, self.elapsed_s = 0, 0.0
        self.path = folder / f"{name}.pt"

    @property
    def progress(self) -> float:
        """Share of the plan that is done, by steps or by time: 0 to 1."""
        return max(self.step / self.plan.steps, self.elapsed_s / self.plan.budget_s)

    def run(self, loss_of_step: LossOfStep, report: Callable[[Course], str] = lambda _: "") -> None:
        """Trains from the last checkpoint, if any, to the plan's end; `report` adds to the log at checkpoints."""
        self.resume()
        losses = []
        while self.progress < 1:
            began = time.monotonic()
            losses.append(self._take(loss_of_step))
            self.elapsed_s += time.monotonic() - began
            if self.step % self.plan.checkpoint_every == 0 or self.progress >= 1:
                self.save()
                self._log(float(np.mean(losses)), report(self))
                losses.clear()

    def save(self) -> None:
        """Writes a checkpoint in one move, so that an interruption leaves the earlier one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_suffix(".part")
        torch.save(self._state(), part)
        part.replace(self.path)

    def resume(self) -> None:
        """Takes up the last checkpoint; without one, begins at step 0."""
        if not self.path.exists():
            return
        state = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.elapsed_s = state["step"], state["elapsed_s"]
        print(f"{self.name}: resumed at step {self.step}", flush=True)

    def _state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "elapsed_s": self.elapsed_s,
        }

    def _take(self, loss_of_step: LossOfStep) -> float:
        torch.manual_seed(self.seed * 1_000_003 + self.step)
        for group in self.optimiser.param_groups:
            group["lr"] = self._learning_rate()
        loss = loss_of_step(np.random.default_rng([self.seed, self.step]))
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # of torch
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        self._move_average()
        return float(loss.detach())

    def _learning_rate(self) -> float:
        """Linear warm-up, then half a cosine down to nothing."""
        warm = min(1.0, (self.step + 1) / self.plan.warm_up_steps)
        return self.plan.learning_rate * warm * (1 + float(np.cos(np.pi * min(self.progress, 1)))) / 2

    def _move_average(self) -> None:
        decay = min(self.plan.average_decay, (1 + self.step) / (10 + self.step))
        averaged = [weight.data for weight in self.average.parameters()]
        torch._foreach_lerp_(averaged, [weight.data for weight in self.model.parameters()], 1 - decay)

    def _log(self, loss: float, remark: str) -> None:
        rate = self._learning_rate()
        print(f"{self.name} {self.step} {self.elapsed_s:.0f}s loss {loss:.5f} lr {rate:.1e} {remark}", flush=True)
