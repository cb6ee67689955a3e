"""Recipes of the learned step sizes for restoration with a learned prior.

``photo-prior-denoise``, ``photo-prior-inpaint`` and ``photo-prior-deblur`` are step sizes and
momenta of :class:`~mirrordescent.methods.RidgeMomentum`. The last two take their steps in the
spectral geometry of the prior.

The gap of a strongly convex problem is proven by f(x) − min f ≤ ‖∇f(x)‖²/(2μ). So the schedules
are learned such that ‖∇f‖ is small after a given number of steps:

.. code-block:: none

    loss = mean of log(‖∇f(x_k)‖²/‖∇f(x₀)‖²) over problems and a few k

It is differentiated through all steps. The derivative of ∇f is the Hessian, which is symmetric.

Each control is learned with the same settings. The control of a spectral geometry has P = I/L. The
control of ``photo-prior-denoise``, which has no geometry, has one step size and one momentum for
all k.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from mirrordescent.recipes.damaged_pictures import Damage, DamagedPictures
from mirrordescent.recipes.prior_recipes import PriorPictures
from mirrordescent.schedules import Prefix, Scalar, Schedule
from mirrordescent.solving import gap, solve
from mirrordescent.trees import sum_per_sample

PRIOR = "photo-prior"
"""Entry whose problems are solved."""
NOISE = (0.015, 0.15)
"""Smallest and largest noise level of denoising."""
RANGE = {"t": (0.05, 4.0), "momentum": (0.01, 1.5)}
"""Smallest and largest step sizes and momenta."""
TOLERANCE = 1e-3
"""Relative gap whose number of steps is reported."""
REPORTED = 12
"""Number of steps after which proven gaps are reported."""
LONGEST = 3000
"""Number of steps after which a run of the evaluation ends."""
TERMS = (
    "The training part of BSDS500, for non-commercial research and educational purposes. "
    "No picture is part of the entry."
)


def noisy_crops(directory: Path | None) -> ProblemFamily:
    """Return noisy crops of BSDS500 with the prior."""
    prior = cast(RidgePrior, zoo.load(PRIOR))
    training = data.bsds500("train", directory)
    return PriorPictures(training, data.bsds500("val", directory), prior, noise=NOISE)


def damaged_crops(task: Damage) -> Callable[[Path | None], ProblemFamily]:
    """Return the function that reads BSDS500 and damages its crops."""

    def family(directory: Path | None) -> ProblemFamily:
        prior = cast(RidgePrior, zoo.load(PRIOR))
        training = data.bsds500("train", directory)
        return DamagedPictures(training, data.bsds500("val", directory), prior, task)

    return family


class _Gradient(torch.autograd.Function):
    """∇f(x), with the Hessian of f as its derivative. Terms that are not ridges are quadratic."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, problem: Composite) -> Tensor:
        ctx.save_for_backward(x)
        ctx.problem = problem
        return problem.grad(x)

    @staticmethod
    def backward(ctx: Any, *vectors: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        (v,) = vectors
        ridges = [part for part in ctx.problem.parts if isinstance(part, LearnedRidges)]
        others = [part for part in ctx.problem.parts if not isinstance(part, LearnedRidges)]
        quadratic = Composite(ctx.problem.smooth, others)
        product = quadratic.grad(v) - quadratic.grad(torch.zeros_like(v))
        for term in ridges:
            product = product + term.hessian_product(x, v)
        return product, None


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

    meta_steps: int = 800
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
    found = solve(problem, run, draw.x0, iterations=LONGEST, check_every=1, stop=gap(TOLERANCE))
    start = problem.value(cast(Tensor, draw.x0))
    convexity = problem.strong_convexity()
    state = method.method.init(draw.x0, problem)
    gaps: dict[str, float] = {}
    for k in range(1, REPORTED + 1):
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


@dataclass(frozen=True)
class Steps:
    """The steps with which learning begins.

    Args:
        length: Number of step sizes and momenta; later steps use the last pair. If the length
            exceeds the last target of learning, the last pair is not learned and stays safe.
        t: Step size.
        momentum: Momentum.
        share: Weight of the prior in the geometry; 0 for the identity.
        scheduled: Whether every step has its own step size and momentum.
        first_bound: Number of steps before the first bound.
    """

    length: int
    t: float
    momentum: float
    share: float = 0.0
    scheduled: bool = True
    first_bound: int = 0

    def method(self, generator: Generator | None, family: ProblemFamily) -> TangentBound:
        """Return the method."""
        t = self._schedule(self.t)
        momentum = self._schedule(self.momentum)
        return TangentBound(RidgeMomentum(t, momentum, self.share), self.first_bound)

    def _schedule(self, value: float) -> Schedule:
        if self.scheduled:
            return Prefix([value] * self.length, extension="last")
        return Scalar(nn.Parameter(torch.tensor(value)))


DENOISING = Steps(12, 1.3, 0.55, first_bound=7)
INPAINTING = Steps(41, 1.0, 0.9, share=1.0, first_bound=20)
DEBLURRING = Steps(81, 1.0, 0.93, share=1.0, first_bound=30)
LATER = StepSettings(meta_steps=150, targets=(20, 40), learning_rate=0.04)
"""Settings for inpainting, which needs more steps."""
LATEST = StepSettings(meta_steps=150, targets=(40, 80), learning_rate=0.04)
"""Settings for deblurring, which needs most."""


@dataclass(frozen=True)
class StepTask:
    """Problems for which steps are learned.

    Args:
        family: Function that reads the pictures, given their directory.
        settings: Settings of learning.
        on: Description of the problems.
    """

    family: Callable[[Path | None], ProblemFamily]
    settings: StepSettings
    on: str


DENOISE = StepTask(
    noisy_crops,
    StepSettings(),
    f"prior_denoising of BSDS500 crops with {PRIOR}, noise from {NOISE[0]} to {NOISE[1]}",
)
INPAINT = StepTask(
    damaged_crops("holes"),
    LATER,
    f"prior_restoration of BSDS500 crops with {PRIOR}: missing pixels, lines and blocks",
)
DEBLUR = StepTask(
    damaged_crops("blur"),
    LATEST,
    f"prior_restoration of BSDS500 crops with {PRIOR}: Gaussian and motion blur",
)


def steps_recipe(name: str, task: StepTask, steps: Steps, description: str) -> Recipe:
    """Return the recipe of an entry.

    Args:
        name: Name of the entry.
        task: Problems.
        steps: First steps.
        description: One sentence for its card.
    """
    return Recipe(
        name,
        description,
        task.family,
        steps.method,
        [GradientStage(task.settings)],
        on=task.on,
        data=TERMS,
        evaluate=steps_to_a_proof,
        problems=12,
    )


def without_geometry(steps: Steps) -> Steps:
    """Return the first steps of a control with the identity as its geometry."""
    return replace(steps, share=0.0, t=1.3)


RIDGE_STEP_RECIPES = {
    recipe.name: recipe
    for recipe in (
        steps_recipe(
            "photo-prior-denoise",
            DENOISE,
            DENOISING,
            "Accelerated gradient steps for denoising with photo-prior, with a proof of the gap.",
        ),
        steps_recipe(
            "photo-prior-denoise" + CONTROL,
            DENOISE,
            replace(DENOISING, scheduled=False),
            "The control of photo-prior-denoise, with one step size and one momentum.",
        ),
        steps_recipe(
            "photo-prior-inpaint",
            INPAINT,
            INPAINTING,
            "Accelerated steps in the geometry of photo-prior, for missing pixels, with a proof.",
        ),
        steps_recipe(
            "photo-prior-inpaint" + CONTROL,
            INPAINT,
            without_geometry(INPAINTING),
            "The control of photo-prior-inpaint, with the identity as its geometry.",
        ),
        steps_recipe(
            "photo-prior-deblur",
            DEBLUR,
            DEBLURRING,
            "Accelerated steps in the geometry of photo-prior, for blur, with a proof of the gap.",
        ),
        steps_recipe(
            "photo-prior-deblur" + CONTROL,
            DEBLUR,
            without_geometry(DEBLURRING),
            "The control of photo-prior-deblur, with the identity as its geometry.",
        ),
    )
}
"""Recipes of the steps and of their controls."""
