"""How every entry of the zoo was learned: one command each, under 45 minutes on two cores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from mirrordescent import data
from mirrordescent.learn import (
    DenoisingFamily,
    Draw,
    InpaintingFamily,
    Objective,
    Pooled,
    ProblemFamily,
    Settings,
    SVMFamily,
    learn,
)
from mirrordescent.methods import LPD, MD, SMD, Method
from mirrordescent.mirrors import Conjugate, ConvICNN, DenseICNN, LearnedPair
from mirrordescent.references import certify
from mirrordescent.schedules import Prefix
from mirrordescent.solve import solve
from mirrordescent.zoo.network_recipes import NETWORK_RECIPES
from mirrordescent.zoo.storage import save_entry

HORIZON = 10
REPORTED = (1, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Recipe:
    """What an entry is for, and how it is learned."""

    description: str
    dataset: Literal["bsds500", "mnist"] | None
    family: Callable[[Path | None], ProblemFamily]
    method: Callable[[Generator], Method[Any]]
    settings: Settings


def photographs_with_holes(directory: Path | None) -> ProblemFamily:
    """Crops of BSDS500, a fifth of the pixels missing, noise 0.05, λ = 0.15."""
    training, held_out = (data.pictures("bsds500", split, directory) for split in ("train", "test"))
    return Pooled(InpaintingFamily(training, held_out, size=32), 256)


def noisy_ellipses(directory: Path | None) -> ProblemFamily:
    """Crops of tomographic reconstructions of ellipses, λ = 0.15."""
    (_, training), (_, held_out) = data.noisy_phantoms(256, seed=1), data.noisy_phantoms(32, seed=2)
    return Pooled(DenoisingFamily(list(training), list(held_out), size=48), 256)


def fours_and_nines(directory: Path | None) -> ProblemFamily:
    """The support vector machine on features of MNIST's 4 and 9, from random starts."""
    features = data.four_nine_features("mnist", directory=directory)
    return Pooled(SVMFamily(features.train, features.train_labels), 1024, tolerance=1e-6)


def steps(first: float) -> Prefix:
    """Return step sizes to be learned, continued by c/k."""
    return Prefix(torch.full((HORIZON,), first), "reciprocal")


def small_network(channels: int, generator: Generator) -> ConvICNN:
    """One layer with quadratic terms: as good here as two layers, at half the cost."""
    return ConvICNN(channels, filters=16, layers=1, generator=generator)


def image_pair(channels: int) -> Callable[[Generator], Method[Any]]:
    """LMD with two small convolutional networks."""
    return lambda g: MD(LearnedPair(small_network(channels, g), small_network(channels, g)), steps(0.3))


def image_conjugate(channels: int) -> Callable[[Generator], Method[Any]]:
    """Dual-stored mirror descent with one small convolutional network and a learned start."""
    return lambda g: SMD(Conjugate(small_network(channels, g), start="scaled"), steps(0.3))


# The paper's loss. Learned on log gaps a pair is more consistent, and primal-stored LMD then stays stable longer.
PAIR = Settings(meta_steps=1200, horizon=HORIZON, learning_rate=2e-3, validation_horizons=(1.0,))
CONJUGATE = Settings(meta_steps=2500, horizon=HORIZON, learning_rate=3e-3, objective=Objective(weights="log_gap"))
PRIMAL_DUAL = Settings(meta_steps=300, horizon=15, learning_rate=2e-2, validation_horizons=(1.0, 3.0))

RECIPES: dict[str, Recipe] = {
    "photo-inpaint": Recipe(
        "a pair of networks for total-variation inpainting of photographs",
        "bsds500", photographs_with_holes, image_pair(3), PAIR,
    ),
    "photo-inpaint-conjugate": Recipe(
        "one network, an exact map, for total-variation inpainting of photographs",
        "bsds500", photographs_with_holes, image_conjugate(3), CONJUGATE,
    ),
    "photo-inpaint-lpd": Recipe(
        "the learned primal-dual scheme for total-variation inpainting of photographs",
        "bsds500", photographs_with_holes, lambda g: LPD(), PRIMAL_DUAL,
    ),
    "ellipse-denoise": Recipe(
        "a pair of networks for total-variation denoising of tomographic reconstructions",
        None, noisy_ellipses, image_pair(1), PAIR,
    ),
    "ellipse-denoise-conjugate": Recipe(
        "one network, an exact map, for total-variation denoising of tomographic reconstructions",
        None, noisy_ellipses, image_conjugate(1), CONJUGATE,
    ),
    "ellipse-denoise-lpd": Recipe(
        "the learned primal-dual scheme for total-variation denoising of tomographic reconstructions",
        None, noisy_ellipses, lambda g: LPD(), PRIMAL_DUAL,
    ),
    "mnist49-svm": Recipe(
        "a pair of networks for training a support vector machine on 50 features",
        "mnist", fours_and_nines,
        lambda g: MD(LearnedPair(DenseICNN(51, generator=g), DenseICNN(51, generator=g)), steps(0.1)),
        Settings(
            meta_steps=800, batch=32, horizon=HORIZON, learning_rate=2e-3, validation_horizons=(1.0,),
            objective=Objective(penalty_points="all"),
        ),
    ),
    "mnist49-svm-conjugate": Recipe(
        "one network, an exact map, for training a support vector machine on 50 features",
        "mnist", fours_and_nines,
        lambda g: SMD(Conjugate(DenseICNN(51, generator=g), start="scaled"), steps(0.1)),
        Settings(
            meta_steps=800, batch=32, horizon=HORIZON, learning_rate=2e-3, objective=Objective(weights="log_gap"),
        ),
    ),
}  # fmt: skip


def train(name: str, runs: Path, directory: Path | None = None, out: Path | None = None) -> Path:
    """Learn an entry by its recipe, or go on where a run stopped, and write it with its card; return the file."""
    if name not in RECIPES and name not in NETWORK_RECIPES:
        raise ValueError(f"there is no recipe for {name!r}; there are {', '.join([*RECIPES, *NETWORK_RECIPES])}")
    path = (out or Path(__file__).parent / "entries") / f"{name}.safetensors"
    if name in NETWORK_RECIPES:
        module, card = NETWORK_RECIPES[name].learn(name, runs, directory)
        save_entry(module, path, card)
        return path
    recipe = RECIPES[name]
    family = recipe.family(directory)
    method = recipe.method(torch.Generator().manual_seed(recipe.settings.seed))
    result = learn(family, method, recipe.settings, folder=runs / name)
    held_out = family.validation(recipe.settings.validation_batch)
    card = {
        "name": name,
        "kind": "method",
        "description": recipe.description,
        "family": (recipe.family.__doc__ or "").strip(),
        "data": data.describe(recipe.dataset) if recipe.dataset else "generated",
        "settings": asdict(recipe.settings),
        "parameters": sum(p.numel() for p in method.parameters()),
        "best_meta_step": result.best_step,
        "skipped_meta_steps": result.skipped,
        "held_out": evaluate(method, held_out),
    }
    t = getattr(method, "t", None)
    if isinstance(t, Prefix):
        card["step_sizes"] = [round(size, 5) for size in t.values.tolist()]
    save_entry(method, path, card)
    return path


@torch.no_grad()
def evaluate(method: Method[Any], draw: Draw) -> dict[str, Any]:
    """Return the mean certified gap on held-out problems along a run, as trained, and the inconsistency of a pair."""
    lower = certify(draw.problem).lower
    start = draw.problem.value(draw.x0)
    solution = solve(draw.problem, method, draw.x0, iterations=max(REPORTED), trace=REPORTED)

    def gap(values: Tensor) -> float:
        return float((values.double() - lower).mean())

    found: dict[str, Any] = {
        "problems": len(start),
        "gap": {"start": gap(start)} | {str(k): gap(solution.trace.at(k)) for k in REPORTED},
        "statuses": [str(status) for status in solution.statuses],
    }
    mirror = getattr(method, "mirror", None)
    if isinstance(mirror, LearnedPair):
        size = torch.as_tensor(draw.x0).flatten(1).abs().sum(1)
        found["relative_inconsistency"] = float((mirror.inconsistency(draw.x0) / size).mean())
    return found
