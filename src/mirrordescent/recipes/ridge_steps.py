"""Recipe of ``photo-prior-denoise``: step sizes and momenta for denoising with a learned prior.

The gap of a strongly convex problem is proven by f(x) − min f ≤ ‖∇f(x)‖²/(2μ). So the schedules
are learned such that ‖∇f‖ is small after a given number of steps:

.. code-block:: none

    loss = mean of log(‖∇f(x_k)‖²/‖∇f(x₀)‖²) over problems and a few k

It is differentiated through all steps. The derivative of ∇f is the Hessian, which is symmetric.

The method has no mirror map. Its control has the same steps with one step size and one momentum
for all k, learned alike. It shows what the schedules achieve.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Generator, Tensor, nn

from mirrordescent import data, zoo
from mirrordescent._internal.files import Damaged, read_whole, write_whole
from mirrordescent._internal.progress import ProgressBar
from mirrordescent.learn import Draw, ProblemFamily, Recipe
from mirrordescent.learn.checkpoint import RunFolder
from mirrordescent.learn.families import draw_seeds
from mirrordescent.learn.recipe import CONTROL, Numbers, Stage
from mirrordescent.learn.tables import changed
from mirrordescent.methods.ridge_momentum import RidgeMomentum
from mirrordescent.methods.tangent_bound import TangentBound
from mirrordescent.problems import Composite, LearnedRidges, RidgePrior
from mirrordescent.recipes.prior_recipes import PriorPictures
from mirrordescent.schedules import Prefix, Scalar
from mirrordescent.solving import gap, solve
from mirrordescent.trees import sum_per_sample

ENTRY = "photo-prior-denoise"
CONTROL_ENTRY = ENTRY + CONTROL
PRIOR = "photo-prior"
"""Entry whose denoising problems are solved."""
NOISE = (0.015, 0.15)
"""Smallest and largest noise level of the problems."""
LENGTH = 11
"""Number of learned step sizes and momenta; the last ones are repeated."""
FIRST_STEP = 1.3
FIRST_MOMENTUM = 0.55
"""Step size, in units of 1/L, and momentum with which learning begins."""
RANGE = {"t": (0.05, 4.0), "momentum": (0.01, 1.5)}
"""Smallest and largest step sizes and momenta."""
FIRST_BOUND = 7
"""Number of steps before the first bound of the entry."""
TOLERANCE = 1e-3
"""Relative gap whose number of steps is reported."""


def noisy_crops(directory: Path | None) -> ProblemFamily:
    """Return noisy crops of BSDS500 with the prior."""
    prior = cast(RidgePrior, zoo.load(PRIOR))
    training = data.bsds500("train", directory)
    return PriorPictures(training, data.bsds500("val", directory), prior, noise=NOISE)


class _Gradient(torch.autograd.Function):
    """∇f(x), with the Hessian of f as its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, problem: Composite) -> Tensor:
        ctx.save_for_backward(x)
        ctx.problem = problem
        return problem.grad(x)

    @staticmethod
    def backward(ctx: Any, *vectors: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        (v,) = vectors
        term = cast(LearnedRidges, ctx.problem.parts[0])
        return v + term.hessian_product(x, v), None


def gradient_losses(method: RidgeMomentum, draw: Draw, targets: Sequence[int]) -> Tensor:
    """Return log(‖∇f(x_k)‖²/‖∇f(x₀)‖²), a mean over the targets k, for every problem: (batch,)."""
    problem = cast(Composite, draw.problem)
    state = method.init(draw.x0, problem)
    total = torch.zeros(len(state.x))
    first = None
    for k in range(max(targets) + 1):
        g = _Gradient.apply(state.x, problem)  # type: ignore[no-untyped-call]
        square = sum_per_sample(g.square()).log()
        first = square.detach() if first is None else first
        if k in targets:
            total = total + square - first
        if k < max(targets):
            state = method.update(state, g)
    return total / len(targets)


@dataclass(frozen=True)
class StepSettings:
    """Settings of the learning of schedules.

    Args:
        meta_steps: Number of updates of the parameters.
        batch: Number of problems of an update.
        targets: Numbers k of steps after which the gradient counts.
        learning_rate: First learning rate of Adam, which decays to 0.
        save_every: Number of meta-steps between checkpoints.
        seed: Seed of the problems.
    """

    meta_steps: int = 130
    batch: int = 2
    targets: tuple[int, ...] = (8, 11)
    learning_rate: float = 0.05
    save_every: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.targets or min(self.targets) < 1:
            raise ValueError(f"targets must be numbers of at least 1, got {self.targets}")
        if min(self.meta_steps, self.batch, self.save_every) < 1:
            raise ValueError("meta_steps, batch and save_every must be at least 1")


class GradientStage(Stage):
    """Learning of step sizes and momenta that make gradients small.

    Args:
        settings: Settings.
    """

    name = "schedules"

    def __init__(self, settings: StepSettings) -> None:
        self.settings = settings
        self.seed = settings.seed

    def changed(self, settings: Mapping[str, Any]) -> GradientStage:
        return GradientStage(changed(self.settings, settings, "settings"))

    def run(self, module: Any, family: ProblemFamily, **work: Any) -> tuple[nn.Module, Numbers]:
        """Learn the schedules of a :class:`TangentBound` around a :class:`RidgeMomentum`."""
        settings = self.settings
        method = cast(RidgeMomentum, module.method)
        optimiser = torch.optim.Adam(method.parameters(), lr=settings.learning_rate)
        file = Path(work["folder"]) / "steps.safetensors"
        folder = RunFolder(work["folder"])
        with folder.lock(), ProgressBar("learning", settings.meta_steps, work["progress"]) as bar:
            done = self._load(file, method, optimiser) if work["resume"] else 0
            loss = math.nan
            for step in range(done, settings.meta_steps):
                share = step / settings.meta_steps
                for group in optimiser.param_groups:
                    group["lr"] = settings.learning_rate * (1 + math.cos(math.pi * share)) / 2
                generator = torch.Generator().manual_seed(settings.seed + 1 + step)
                draw = family.draw(draw_seeds(settings.batch, generator))
                optimiser.zero_grad()
                mean = gradient_losses(method, draw, settings.targets).mean()
                torch.autograd.backward([mean])
                optimiser.step()
                _clamp(method)
                loss = float(mean.detach())
                if (step + 1) % settings.save_every == 0 or step + 1 == settings.meta_steps:
                    self._save(file, method, optimiser, step + 1)
                bar.update(step + 1, f"loss {loss:.3f}")
        record = {"stage": self.name, "settings": asdict(settings), "last_loss": loss}
        return module, record

    def _save(
        self, file: Path, method: nn.Module, optimiser: torch.optim.Optimizer, done: int
    ) -> None:
        tensors = {f"value.{name}": value for name, value in method.state_dict().items()}
        for index, moments in optimiser.state_dict()["state"].items():
            for key, value in moments.items():
                tensors[f"moment.{index}.{key}"] = value
        metadata = {"settings": json.dumps(asdict(self.settings)), "done": str(done)}
        write_whole(tensors, metadata, file)

    def _load(self, file: Path, method: nn.Module, optimiser: torch.optim.Optimizer) -> int:
        """Restore a checkpoint, and return the number of meta-steps before it."""
        if not file.exists():
            return 0
        try:
            tensors, metadata = read_whole(file)
        except Damaged as error:
            raise ValueError(f"{error}: delete it, or use --no-resume") from error
        if metadata["settings"] != json.dumps(asdict(self.settings)):
            raise ValueError(
                f"{file} was written with other settings: give the same settings, another folder, "
                "or --no-resume"
            )
        moments: dict[int, dict[str, Tensor]] = {}
        values = {}
        for name, tensor in tensors.items():
            kind, _, key = name.partition(".")
            if kind == "value":
                values[key] = tensor
            else:
                index, _, entry = key.partition(".")
                moments.setdefault(int(index), {})[entry] = tensor
        method.load_state_dict(values)
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": moments, "param_groups": groups})
        return int(metadata["done"])


@torch.no_grad()
def _clamp(method: RidgeMomentum) -> None:
    """Move step sizes and momenta into their ranges."""
    for name, limits in RANGE.items():
        for parameter in getattr(method, name).parameters():
            parameter.clamp_(*limits)


@torch.no_grad()
def steps_to_a_proof(method: Any, draw: Draw, use: Numbers) -> Numbers:
    """Count the steps to a proven relative gap on held-out problems.

    The proven gaps are (‖∇f(x_k)‖²/(2μ))/(f(x₀) − f(x_k) + ‖∇f(x_k)‖²/(2μ)).
    """
    problem = cast(Composite, draw.problem)
    run = TangentBound(method.method, first=1)
    found = solve(problem, run, draw.x0, iterations=60, check_every=1, stop=gap(TOLERANCE))
    start = problem.value(cast(Tensor, draw.x0))
    convexity = problem.strong_convexity()
    state = method.method.init(draw.x0, problem)
    gaps: dict[str, float] = {}
    for k in range(1, LENGTH + 2):
        state = method.method.update(state, problem.grad(state.x))
        bound = sum_per_sample(problem.grad(state.x).square()) / (2 * convexity)
        decrease = start - problem.value(state.x) + bound
        gaps[str(k)] = float(f"{float((bound / decrease).mean()):.3g}")
    return {
        "problems": len(start),
        f"steps to {TOLERANCE:g}": found.steps.tolist(),
        "statuses": [str(status) for status in found.statuses],
        "mean proven gap": gaps,
    }


def scheduled(generator: Generator, family: ProblemFamily) -> TangentBound:
    """Return the method with one step size and one momentum for every step."""
    t = Prefix([FIRST_STEP] * LENGTH, extension="last")
    momentum = Prefix([FIRST_MOMENTUM] * LENGTH, extension="last")
    return TangentBound(RidgeMomentum(t, momentum), FIRST_BOUND)


def constant(generator: Generator, family: ProblemFamily) -> TangentBound:
    """Return the method with one step size and one momentum for all steps."""
    t = Scalar(nn.Parameter(torch.tensor(FIRST_STEP)))
    momentum = Scalar(nn.Parameter(torch.tensor(FIRST_MOMENTUM)))
    return TangentBound(RidgeMomentum(t, momentum), FIRST_BOUND)


_DESCRIPTIONS = {
    ENTRY: "Accelerated gradient steps for denoising with photo-prior, with a proof of the gap.",
    CONTROL_ENTRY: f"The control of {ENTRY}: one step size and one momentum, learned alike.",
}
RIDGE_STEP_RECIPES = {
    name: Recipe(
        name,
        description,
        noisy_crops,
        scheduled if name == ENTRY else constant,
        [GradientStage(StepSettings())],
        on=f"prior_denoising of BSDS500 crops with {PRIOR}, noise from {NOISE[0]} to {NOISE[1]}",
        data="The training part of BSDS500, for non-commercial research and educational purposes. "
        "No picture is part of the entry.",
        evaluate=steps_to_a_proof,
        problems=12,
    )
    for name, description in _DESCRIPTIONS.items()
}
"""Recipes of the steps and of their control."""
