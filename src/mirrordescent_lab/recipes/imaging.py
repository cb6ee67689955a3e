"""How every entry of the zoo was learned: one command each, under 45 minutes on two cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Generator, Tensor

from mirrordescent import data, zoo
from mirrordescent.kernels import BuildError
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
from mirrordescent.learn.config import parse_change, settings_from
from mirrordescent.learn.device import OnDevice
from mirrordescent.methods import AMD, LPD, MD, SMD, Equipped, Fused, Method
from mirrordescent.mirrors import Conjugate, ConvICNN, DenseICNN, LearnedPair, Stencil
from mirrordescent.names import require_known
from mirrordescent.oracles import Rounded
from mirrordescent.references import certify
from mirrordescent.schedules import PowerLaws, Prefix
from mirrordescent.solve import solve
from mirrordescent.zoo.storage import save_entry
from mirrordescent_lab.recipes.networks import NETWORK_RECIPES
from mirrordescent_lab.recipes.tomography import TOMOGRAPHY, counts_of_ellipses

HORIZON = 10
REPORTED = (1, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Recipe:
    """What an entry is for, and how it is learned.

    Args:
        description: in a sentence.
        dataset: the collection the data come from; None if they are generated.
        family: what it is learned on.
        method: what is learned.
        settings: how.
        finer, refinement: what is made of it then, to be learned on, and how.
    """

    description: str
    dataset: Literal["bsds500", "mnist"] | None
    family: Callable[[Path | None], ProblemFamily]
    method: Callable[[Generator], Method[Any]]
    settings: Settings
    finer: Callable[[Any], Method[Any]] | None = None
    refinement: Settings | None = None


def photographs_with_holes(directory: Path | None) -> ProblemFamily:
    """Crops of BSDS500, a fifth of the pixels missing, noise 0.05, λ = 0.15."""
    training, held_out = (data.pictures("bsds500", split, directory) for split in ("train", "test"))
    return Pooled(InpaintingFamily(training, held_out, size=32), 256)


def photographs_from_both_starts(directory: Path | None) -> ProblemFamily:
    """Larger crops of BSDS500, damaged alike; half of them start with their holes filled."""
    training, held_out = (data.pictures("bsds500", split, directory) for split in ("train", "test"))
    return Pooled(InpaintingFamily(training, held_out, size=64, fill="alternate"), 128, tolerance=1e-5)


def noisy_ellipses_and_photographs(directory: Path | None) -> ProblemFamily:
    """Crops of tomographic reconstructions of ellipses and of grey BSDS500 with noise 0.05, λ = 0.15."""

    def noisy(split: Literal["train", "test"], seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        grey = [picture.mean(0, keepdim=True) for picture in data.pictures("bsds500", split, directory)]
        photographs = [picture + 0.05 * torch.randn(picture.shape, generator=generator) for picture in grey]
        return photographs + list(data.noisy_phantoms(len(grey), seed=seed)[1])

    return Pooled(DenoisingFamily(noisy("train", 1), noisy("test", 2), size=64), 128, tolerance=1e-5)


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


def image_stencil(generator: Generator) -> Method[Any]:
    """AMD in which all is learned: one number of the map, and what happens in every step.

    One power from step 20 to beyond the horizon: where every step was free, the last ones grew greedy, and those after
    the horizon had to pay for it.
    """
    counts = [1, 2, 3, 4, 5, 6, 8, 10, 14, 20, 100]
    k = torch.tensor(counts, dtype=torch.get_default_dtype())
    curvature = 0.2 * k**2.2
    mirror = Stencil(0.7)
    method = AMD(
        mirror,
        PowerLaws(counts, 0.28 / (0.1 + curvature), power=1.0),
        regulariser=mirror,  # one filter of the gradient then serves both steps
        storage="primal",
        mixing=PowerLaws(counts, (2.7 / k).clamp(max=0.8), power=1.0, bound=1.0),
        dual_weight=PowerLaws(counts, 2.5 * k, power=-1.0),
    )
    return Equipped(method, Rounded(PowerLaws(counts, curvature, power=-1.0)))


def stencil_for_long(method: Equipped) -> Method[Any]:
    """Give the schedules of a stencil more numbers for late steps; in one kernel, where there is a compiler."""
    counts = [1, 2, 3, 4, 5, 6, 8, 10, 14, 20, 30, 50, 100, 200]

    def finer(schedule: PowerLaws) -> PowerLaws:
        values = torch.tensor([float(schedule(k)) for k in counts]).to(schedule.raw)
        return PowerLaws(counts, values, schedule.power, schedule.bound)

    with torch.no_grad():
        inner, oracle = cast(AMD, method.method), cast(Rounded, method.oracle)
        for name in ("t", "mixing", "dual_weight"):
            setattr(inner, name, finer(getattr(inner, name)))
        oracle.curvature = finer(cast(PowerLaws, oracle.curvature))
    try:
        return Fused(method)
    except BuildError:
        return method


# The paper's loss. Learned on log gaps a pair is more consistent, and primal-stored LMD then stays stable longer.
PAIR = Settings(meta_steps=1200, horizon=HORIZON, learning_rate=2e-3, validation_horizons=(1.0,))
CONJUGATE = Settings(meta_steps=2500, horizon=HORIZON, learning_rate=3e-3, objective=Objective(weights="log_gap"))
# Through 50 steps and more gradients explode; truncated, they make every segment greedy.
STENCIL = Settings(
    meta_steps=450, batch=4, horizon=40, curriculum=((80, 10), (180, 20)), learning_rate=2e-2,
    objective=Objective(weights="log_gap"), step_bounds=None, validate_every=30, validation_horizons=(1.0, 2.5),
)  # fmt: skip
# Without derivatives nothing explodes. Looks are spread like the steps that matter, each as much as the next.
STENCIL_FOR_LONG = Settings(
    meta_steps=400, batch=4, horizon=300, learning_rate=2e-2, step_bounds=None, validate_every=40, validation_batch=16,
    validation_horizons=(0.01, 0.033, 0.1, 0.333, 1.0),
    objective=Objective(
        "log_gap", differentiation="evolution", pairs=8, spread=0.04,
        every=(1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 17, 20, 25, 30, 40, 50, 60, 80, 100, 120, 140, 170, 200, 250, 300),
    ),
)  # fmt: skip
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
    "photo-inpaint-spectral": Recipe(
        "a stencil, schedules and smoothing learned through AMD, for total-variation inpainting from any start",
        "bsds500", photographs_from_both_starts, image_stencil, STENCIL, stencil_for_long, STENCIL_FOR_LONG,
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
    "ellipse-denoise-spectral": Recipe(
        "a stencil, schedules and smoothing learned through AMD, for total-variation denoising of any images",
        "bsds500", noisy_ellipses_and_photographs, image_stencil, STENCIL, stencil_for_long, STENCIL_FOR_LONG,
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
    **{
        name: Recipe(description, None, counts_of_ellipses, method, settings)
        for name, (description, method, settings) in TOMOGRAPHY.items()
    },
}  # fmt: skip


def train(
    name: str,
    runs: Path,
    directory: Path | None = None,
    out: Path | None = None,
    *,
    changes: Sequence[str] = (),
    resume: bool = True,
    device: str = "cpu",
    progress: bool | None = None,
) -> Path:
    """Learn an entry by its recipe, or go on where a run stopped, and write it with its card; return the file.

    Args:
        name: of the entry.
        runs: the folder for checkpoints and logs.
        directory: of the data.
        out: the folder to write to; without it the entry replaces the shipped one.
        changes: of the recipe's settings, ``key=value``; of both stages, where there is a refinement.
        resume: whether to go on where a run stopped.
        device: to learn on.
        progress: show a progress bar; by default on a terminal.
    """
    require_known(name, [*RECIPES, *NETWORK_RECIPES], "recipe")
    path = (out or zoo.FOLDER) / f"{name}.safetensors"
    if name in NETWORK_RECIPES:
        if changes or device != "cpu" or not resume:
            raise ValueError(f"{name} is learned as its recipe says, on the CPU: it takes no changes")
        module, card = NETWORK_RECIPES[name].learn(name, runs, directory)
        save_entry(module, path, card)
        return path
    recipe = RECIPES[name]
    settings = settings_from(changed_settings(changes), recipe.settings)
    family = recipe.family(directory)
    method = recipe.method(torch.Generator().manual_seed(settings.seed))
    if device != "cpu":
        family = OnDevice(family, device)
        method.to(family.device)
    result = learn(family, method, settings, folder=runs / name, resume=resume, progress=progress)
    refinement, refined = recipe.refinement, None
    if recipe.finer is not None and refinement is not None:
        refinement = settings_from(changed_settings(changes), refinement)
        finer = recipe.finer(method)
        refined = learn(family, finer, refinement, folder=runs / name / "refined", resume=resume, progress=progress)
    held_out = family.validation(settings.validation_batch)
    card = {
        "name": name,
        "kind": "method",
        "description": recipe.description,
        "family": (recipe.family.__doc__ or "").strip(),
        "data": data.describe(recipe.dataset) if recipe.dataset else "generated",
        "settings": asdict(settings),
        "refinement": None if refinement is None else asdict(refinement),
        "parameters": sum(p.numel() for p in method.parameters()),
        "best_meta_step": result.best_step,
        "best_refinement_step": None if refined is None else refined.best_step,
        "skipped_meta_steps": result.skipped,
        "held_out": evaluate(method, held_out),
    }
    t = getattr(method, "t", None)
    if isinstance(t, Prefix):
        card["step_sizes"] = [round(size, 5) for size in t.values.tolist()]
    save_entry(method, path, card)
    return path


def changed_settings(changes: Sequence[str]) -> dict[str, Any]:
    """Return changes ``key=value`` or ``settings.key=value`` as tables."""
    settings: dict[str, Any] = {}
    for keys, value in map(parse_change, changes):
        *tables, key = keys[1:] if keys[0] == "settings" else keys
        inner = settings
        for table in tables:
            inner = inner.setdefault(table, {})
        inner[key] = value
    return settings


@torch.no_grad()
def evaluate(method: Method[Any], draw: Draw) -> dict[str, Any]:
    """Return the mean certified gap on held-out problems along a run, as trained, and the inconsistency of a pair."""
    lower = certify(draw.problem).lower
    start = draw.problem.value(draw.x0)
    random = torch.Generator().manual_seed(0)
    solution = solve(draw.problem, method, draw.x0, iterations=max(REPORTED), generator=random, trace=REPORTED)

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
