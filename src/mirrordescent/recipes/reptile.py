"""Reptile: learn a start from which a few gradient steps solve the problems of a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

import torch
from torch import Tensor, nn

from mirrordescent._internal.progress import ProgressBar
from mirrordescent.learn.checkpoint import Progress, RunFolder
from mirrordescent.learn.families import ProblemFamily, draw_seeds
from mirrordescent.learn.recipe import Numbers, Stage
from mirrordescent.learn.tables import changed, plain
from mirrordescent.methods.baselines import GD
from mirrordescent.oracles import Exact
from mirrordescent.problems import Problem
from mirrordescent.problems.network_training import Initialisation
from mirrordescent.trees import tree_map

Start: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class Reptile(Stage):
    """Learn a start by θ ← θ + ε_k · mean_b(θ̃_b − θ), k = 0, …, K−1.

    θ̃_b is the result of ``inner_steps`` steps of gradient descent from θ on a random problem b. The
    step size ε_k falls linearly from ``epsilon`` to 0. As a stage of a recipe, it learns an
    :class:`~mirrordescent.problems.network_training.Initialisation`.

    Args:
        steps: Number K of steps.
        batch: Number of problems per step, solved together.
        inner_steps: Number of gradient steps on a problem.
        inner_step_size: Size of these steps.
        epsilon: First step size ε_0.
        seed: Seed of the problems.
        save_every: Steps between checkpoints.
        looks: Number of times that the loss on held-out problems is measured, evenly over the run.
        held_out: Number of held-out problems.

    Reference: Nichol, Achiam, Schulman, arXiv:1803.02999, Algorithm 1.
    """

    name: ClassVar[str] = "reptile"  # type: ignore[misc]

    steps: int
    batch: int = 1
    inner_steps: int = 10
    inner_step_size: float = 1e-2
    epsilon: float = 0.1
    seed: int = 0
    save_every: int = 500
    looks: int = 0
    held_out: int = 50

    def __post_init__(self) -> None:
        if min(self.steps, self.inner_steps, self.batch, self.save_every) < 1:
            raise ValueError("steps, inner_steps, batch and save_every must be at least 1")
        if not 0 < self.epsilon <= 1:
            raise ValueError(f"epsilon must be in (0, 1], got {self.epsilon}")

    def learn(
        self,
        family: ProblemFamily,
        start: Start,
        *,
        folder: str | Path | None = None,
        resume: bool = True,
        progress: bool | None = None,
    ) -> Start:
        """Return θ after the last step.

        Args:
            family: Source of the problems; their own starts are not used.
            start: Initial θ, name → tensor, without a batch dimension.
            folder: Folder for checkpoints; None writes nothing.
            resume: Whether to continue the run in the folder.
            progress: Whether to show a progress bar; by default on a terminal.
        """
        return self._learned(family, start, folder, resume, progress)[0]

    @torch.no_grad()
    def _learned(
        self,
        family: ProblemFamily,
        start: Start,
        folder: str | Path | None,
        resume: bool,
        progress: bool | None,
    ) -> tuple[Start, Tensor]:
        """Return θ after the last step, and the curve (looks, 2) of problems and losses."""
        theta = dict(start)
        generator = torch.Generator().manual_seed(self.seed)
        state = Progress(plain(self))
        held_out = family.validation(self.held_out).problem if self.looks else None
        curve = torch.empty(0, 2, dtype=torch.float64)
        store = None if folder is None else RunFolder(folder)
        if store is not None and resume and (saved := store.load(state.settings)):
            state = saved[0]
            theta = saved[1]["theta"]
            curve = saved[1]["curve"]["measured"]
            generator.set_state(saved[1]["generator"]["state"])
        with ProgressBar("reptile", self.steps, progress) as bar:
            for k in range(state.meta_step, self.steps):
                if held_out is not None and k % max(1, self.steps // self.looks) == 0:
                    curve = self._looked(curve, k, held_out, theta)
                reached = self._descended(
                    family.draw(draw_seeds(self.batch, generator)).problem, theta
                )
                rate = self.epsilon * (1 - k / self.steps)
                theta = {
                    name: torch.lerp(leaf, reached[name].mean(0), rate)
                    for name, leaf in theta.items()
                }
                state.meta_step = k + 1
                if held_out is not None and state.meta_step == self.steps:
                    curve = self._looked(curve, self.steps, held_out, theta)
                if store is not None and (
                    state.meta_step % self.save_every == 0 or state.meta_step == self.steps
                ):
                    store.save(
                        state,
                        theta=theta,
                        generator={"state": generator.get_state()},
                        curve={"measured": curve},
                    )
                bar.update(state.meta_step, f"ε = {rate:.3g}")
        return theta, curve

    def run(self, module: Any, family: ProblemFamily, **work: Any) -> tuple[nn.Module, Numbers]:
        """Learn an initialisation."""
        if oracle := work.pop("oracle", None):
            raise TypeError(
                f"Reptile descends along exact gradients, and cannot use {type(oracle).__name__}"
            )
        theta, curve = self._learned(
            family, module.network, work["folder"], work["resume"], work["progress"]
        )
        record: Numbers = {"stage": self.name, "settings": plain(self)}
        if self.looks:
            record["loss_against_problems"] = {
                f"{int(count)}": round(loss, 4) for count, loss in curve.tolist()
            }
        return Initialisation(theta), record

    def changed(self, settings: Mapping[str, Any]) -> Reptile:
        """Return a copy with some fields changed."""
        return changed(self, settings, "settings")

    def _descended(self, problem: Problem, theta: Start) -> Start:
        """Return θ̃ for every problem of a batch."""
        method = GD(self.inner_step_size)
        count = problem.batch or self.batch
        state = method.init(tree_map(lambda leaf: leaf.expand(count, *leaf.shape), theta), problem)
        for _ in range(self.inner_steps):
            state = method.step(problem, state, Exact())
        return cast(Start, method.answer(state))

    def _looked(self, curve: Tensor, k: int, held_out: Problem, theta: Start) -> Tensor:
        """Add the mean loss of the inner steps from θ on held-out problems."""
        loss = float(held_out.value(self._descended(held_out, theta)).mean())
        return torch.cat([curve, curve.new_tensor([[k * self.batch, loss]])])
