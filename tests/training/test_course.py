"""A training run's bounds, averages and checkpoints."""

from pathlib import Path

import numpy as np
import pytest
import torch

from training.course import Course, Plan

PLAN = Plan(steps=40, budget_s=1000, learning_rate=0.05, warm_up_steps=5, checkpoint_every=10)


def course(folder: Path, plan: Plan = PLAN) -> Course:
    """A run that fits one line."""
    torch.manual_seed(0)
    return Course("line", torch.nn.Linear(3, 1), plan, 1, folder)


def fit(running: Course) -> None:
    def loss(rng: np.random.Generator) -> torch.Tensor:
        inputs = torch.from_numpy(rng.normal(size=(16, 3)).astype(np.float32))
        return (running.model(inputs)[:, 0] - inputs @ torch.tensor([1.0, -2.0, 3.0])).square().mean()

    running.run(loss)


def weights(running: Course) -> list[torch.Tensor]:
    return [*running.model.parameters(), *running.average.parameters()]


def test_a_run_ends_at_its_steps_and_moves_the_average(tmp_path: Path) -> None:
    running = course(tmp_path)
    before = [weight.clone() for weight in running.average.parameters()]
    fit(running)
    assert running.step == PLAN.steps
    assert any((old != new).any() for old, new in zip(before, running.average.parameters(), strict=True))


def test_an_interrupted_run_goes_on_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = course(tmp_path / "whole")
    fit(whole)
    cut = course(tmp_path / "cut")

    class PowerCut(Exception):
        """Nobody catches it."""

    def cut_off(self: Course, loss: float, remark: str) -> None:
        raise PowerCut

    with monkeypatch.context() as patched:
        patched.setattr(Course, "_log", cut_off)
        with pytest.raises(PowerCut):
            fit(cut)
    assert cut.step == PLAN.checkpoint_every
    resumed = course(tmp_path / "cut")
    fit(resumed)
    for one, other in zip(weights(whole), weights(resumed), strict=True):
        torch.testing.assert_close(one, other)


def test_a_run_ends_when_its_time_is_up(tmp_path: Path) -> None:
    running = course(tmp_path, Plan(steps=10**9, budget_s=0.05, learning_rate=0.05))
    fit(running)
    assert running.elapsed_s >= 0.05
    assert running.progress >= 1
    assert (tmp_path / "line.pt").exists()
