"""Recipes of the entries for images and for support vector machines.

Each of them takes less than 45 minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Generator, Tensor

from mirrordescent import data
from mirrordescent.automatic.candidates import method_for
from mirrordescent.learn import (
    Descent,
    Draw,
    Evolution,
    InpaintingFamily,
    Objective,
    Pooled,
    ProblemFamily,
    Recipe,
    Settings,
    Unrolled,
    Validation,
)
from mirrordescent.learn.families import DenoisingFamily, SVMFamily
from mirrordescent.learn.recipe import Numbers, along_a_run
from mirrordescent.methods import AMD, LPD, MD, SMD, Equipped, Method
from mirrordescent.mirrors import Conjugate, ConvICNN, DenseICNN, LearnedPair, Stencil
from mirrordescent.mirrors.dense import DenseQuadratic
from mirrordescent.oracles import Rounded
from mirrordescent.problems import SVM
from mirrordescent.references import certify
from mirrordescent.schedules import PowerLaws, Prefix

HORIZON = 10
MACHINE_HORIZON = 100


def photographs_with_holes(directory: Path | None) -> ProblemFamily:
    """Return small damaged crops of BSDS500 that start from black holes."""
    training, held_out = (data.pictures("bsds500", split, directory) for split in ("train", "test"))
    return Pooled(InpaintingFamily(training, held_out, size=32), 256)


def photographs_from_both_starts(directory: Path | None) -> ProblemFamily:
    """Return larger damaged crops of BSDS500; half of them start with filled holes."""
    training, held_out = (data.pictures("bsds500", split, directory) for split in ("train", "test"))
    return Pooled(
        InpaintingFamily(training, held_out, size=64, fill="alternate"), 128, tolerance=1e-5
    )


def noisy_ellipses_and_photographs(directory: Path | None) -> ProblemFamily:
    """Return crops of noisy reconstructions and of noisy grey photographs."""

    def noisy(split: Literal["train", "test"], seed: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        grey = [
            picture.mean(0, keepdim=True) for picture in data.pictures("bsds500", split, directory)
        ]
        photographs = [
            picture + 0.05 * torch.randn(picture.shape, generator=generator) for picture in grey
        ]
        return photographs + list(data.noisy_phantoms(len(grey), seed=seed)[1])

    return Pooled(
        DenoisingFamily(noisy("train", 1), noisy("test", 2), size=64), 128, tolerance=1e-5
    )


def noisy_ellipses(directory: Path | None) -> ProblemFamily:
    """Return crops of reconstructions, with the noise of the measurement."""
    (_, training) = data.noisy_phantoms(256, seed=1)
    (_, held_out) = data.noisy_phantoms(32, seed=2)
    return Pooled(DenoisingFamily(list(training), list(held_out), size=48), 256)


def fours_and_nines(directory: Path | None, tolerance: float = 1e-6) -> ProblemFamily:
    """Return one support vector machine with random starts."""
    features = data.four_nine_features("mnist", directory=directory)
    return Pooled(SVMFamily(features.train, features.train_labels), 1024, tolerance=tolerance)


def steps(first: float) -> Prefix:
    """Return step sizes to learn, continued by c/k."""
    return Prefix(torch.full((HORIZON,), first), "reciprocal")


def small_network(channels: int, generator: Generator) -> ConvICNN:
    """Return one layer with quadratic terms, as good here as two layers at half the cost."""
    return ConvICNN(channels, filters=16, layers=1, generator=generator)


def image_pair(channels: int) -> Callable[[Generator, ProblemFamily], Method[Any]]:
    """Return LMD with two small convolutional networks."""
    return lambda g, family: MD(
        LearnedPair(small_network(channels, g), small_network(channels, g)), steps(0.3)
    )


def image_dual_pair(channels: int) -> Callable[[Generator, ProblemFamily], Method[Any]]:
    """Return dual-stored LMD with two small convolutional networks.

    Stored in the primal space, every step passes through both networks. Their inconsistency then
    costs more than a geometry gains, and learning stays at the identity. Stored in the dual space,
    only the first point is affected.
    """
    return lambda g, family: SMD(
        LearnedPair(small_network(channels, g), small_network(channels, g)), steps(0.3)
    )


def image_conjugate(channels: int) -> Callable[[Generator, ProblemFamily], Method[Any]]:
    """Return dual-stored mirror descent with one convolutional network and a learned start."""
    return lambda g, family: SMD(Conjugate(small_network(channels, g), start="scaled"), steps(0.3))


def machine_pair(generator: Generator, family: ProblemFamily) -> Method[Any]:
    """Return LMD with two dense networks."""
    return MD(
        LearnedPair(DenseICNN(51, generator=generator), DenseICNN(51, generator=generator)),
        steps(0.1),
    )


def machine_conjugate(generator: Generator, family: ProblemFamily) -> Method[Any]:
    """Return dual-stored mirror descent with one dense network and a learned start."""
    return SMD(Conjugate(DenseICNN(51, generator=generator), start="scaled"), steps(0.1))


def matrix_of(problem: SVM) -> DenseQuadratic:
    """Return the full quadratic map P = ρ(I + cS)⁻¹ with S the mean of zᵢzᵢᵀ over the data.

    It is the inverse Hessian of a machine with squared losses instead of hinges. The number c and
    the step sizes were chosen on held-out starts, before learning. The factor ρ scales P such that
    the same step sizes suit the identity.
    """
    points = problem.signed.double().flatten(0, -2)
    second = points.mT @ points / len(points)
    P = 3 * torch.linalg.inv(torch.eye(len(second), dtype=second.dtype) + 0.1 * second)
    return DenseQuadratic.from_matrix(P.to(problem.signed))


def machine_quadratic(generator: Generator, family: ProblemFamily) -> Method[Any]:
    """Return AMD with a full quadratic map, initialised by the data."""
    problem = _machine(family)
    return method_for(matrix_of(problem), problem, 0.03, MACHINE_HORIZON)


def machine_matrix(generator: Generator, family: ProblemFamily) -> Method[Any]:
    """Return mirror descent with a full quadratic map, initialised by the data."""
    return SMD(matrix_of(_machine(family)), steps(0.03))


def _machine(family: ProblemFamily) -> SVM:
    return cast(SVM, family.draw(torch.zeros(1, dtype=torch.long)).problem)


def primal_dual(generator: Generator, family: ProblemFamily) -> Method[Any]:
    """Return the learned primal-dual method with four numbers, initialised as PDHG."""
    return LPD()


def image_stencil(generator: Generator, family: ProblemFamily) -> Method[Any]:
    """Return AMD with a learned stencil and learned schedules of every step.

    From step 20 on, the schedules follow one power law to beyond the horizon. If every step is
    free, the last steps become too long, which harms the steps after the horizon.
    """
    counts = [1, 2, 3, 4, 5, 6, 8, 10, 14, 20, 100]
    k = torch.tensor(counts, dtype=torch.get_default_dtype())
    curvature = 0.2 * k**2.2
    mirror = Stencil(0.7)
    method = AMD(
        mirror,
        PowerLaws(counts, 0.28 / (0.1 + curvature), power=1.0),
        regulariser=mirror,  # both steps then share one filter of the gradient
        storage="primal",
        mixing=PowerLaws(counts, (2.7 / k).clamp(max=0.8), power=1.0, bound=1.0),
        dual_weight=PowerLaws(counts, 2.5 * k, power=-1.0),
    )
    return Equipped(method, Rounded(PowerLaws(counts, curvature, power=-1.0)))


def stencil_for_long(method: Equipped) -> Method[Any]:
    """Return the method with power-law schedules at more counts, for long runs with C kernels."""
    counts = [1, 2, 3, 4, 5, 6, 8, 10, 14, 20, 30, 50, 100, 200]

    def finer(schedule: PowerLaws) -> PowerLaws:
        values = torch.tensor([float(schedule(k)) for k in counts]).to(schedule.raw)
        return PowerLaws(counts, values, schedule.power, schedule.bound)

    with torch.no_grad():
        inner = cast(AMD, method.method)
        oracle = cast(Rounded, method.oracle)
        for name in ("t", "mixing", "dual_weight"):
            setattr(inner, name, finer(getattr(inner, name)))
        oracle.curvature = finer(cast(PowerLaws, oracle.curvature))
    return method


def certified(method: Method[Any], draw: Draw, use: Numbers) -> Numbers:
    """Measure gaps against tighter bounds than those of the training problems."""
    return along_a_run(method, replace(draw, lower=certify(draw.problem).lower), use)


LOG_GAP = Objective(weights="log_gap")
# The paper's loss. A pair learned on log gaps is more consistent, and primal-stored LMD with it
# stays stable longer.
PAIR = Settings(
    meta_steps=1200,
    horizon=HORIZON,
    optimiser=Descent(learning_rate=2e-3),
    validation=Validation(horizons=(1.0,)),
)
# A penalty summed over pixels keeps both networks at the identity; an average with this weight
# does not.
DUAL_PAIR = Settings(
    meta_steps=1500,
    horizon=HORIZON,
    optimiser=Descent(learning_rate=1e-2),
    objective=Objective("log_gap", penalty=10.0, penalty_norm="mean"),
    validation=Validation(horizons=(1.0, 10.0)),
)
CONJUGATE = Settings(
    meta_steps=2500, horizon=HORIZON, optimiser=Descent(learning_rate=3e-3), objective=LOG_GAP
)
# Gradients through 50 steps or more explode; truncated, they make every segment greedy.
STENCIL = Settings(
    meta_steps=450,
    batch=4,
    horizon=40,
    curriculum=((80, 10), (180, 20)),
    optimiser=Descent(learning_rate=2e-2),
    objective=LOG_GAP,
    step_bounds=None,
    validation=Validation(every=30, horizons=(1.0, 2.5)),
)
# Without derivatives nothing explodes. Recorded iterations are spaced logarithmically and weighted
# equally.
STENCIL_FOR_LONG = Settings(
    meta_steps=400,
    batch=4,
    horizon=300,
    optimiser=Descent(learning_rate=2e-2),
    step_bounds=None,
    validation=Validation(every=40, batch=16, horizons=(0.01, 0.033, 0.1, 0.333, 1.0)),
    objective=Objective(
        "log_gap",
        differentiation=Evolution(pairs=8, spread=0.04),
        every=(
            1,
            2,
            3,
            4,
            5,
            6,
            8,
            10,
            12,
            14,
            17,
            20,
            25,
            30,
            40,
            50,
            60,
            80,
            100,
            120,
            140,
            170,
            200,
            250,
            300,
        ),
    ),
)
PRIMAL_DUAL = Settings(
    meta_steps=300,
    horizon=15,
    optimiser=Descent(learning_rate=2e-2),
    validation=Validation(horizons=(1.0, 3.0)),
)
MACHINE_PAIR = replace(PAIR, meta_steps=800, batch=32, objective=Objective(penalty_points="all"))
MACHINE_CONJUGATE = replace(
    CONJUGATE, meta_steps=800, batch=32, optimiser=Descent(learning_rate=2e-3)
)
MACHINE_MATRIX = replace(
    MACHINE_CONJUGATE,
    meta_steps=500,
    optimiser=Descent(learning_rate=5e-3),
    objective=Objective("log_gap", floor=1e-9),
    validation=Validation(every=50, batch=16, horizons=(1.0, 10.0)),
)
MACHINE_QUADRATIC = Settings(
    meta_steps=150,
    batch=8,
    horizon=MACHINE_HORIZON,
    optimiser=Descent(learning_rate=3e-3),
    step_bounds=None,
    objective=Objective("log_gap", floor=1e-9),
    validation=Validation(every=10, batch=8, horizons=(0.1, 1.0)),
)

PHOTOGRAPHS = data.describe("bsds500")
MNIST = data.describe("mnist")
photographs = partial(
    Recipe,
    family=photographs_with_holes,
    evaluate=certified,
    data=PHOTOGRAPHS,
    on="Crops of BSDS500, a fifth of the pixels missing, noise 0.05, λ = 0.15.",
)
ellipses = partial(
    Recipe,
    family=noisy_ellipses,
    evaluate=certified,
    on="Crops of tomographic reconstructions of ellipses, λ = 0.15.",
)
machine = partial(
    Recipe,
    family=fours_and_nines,
    evaluate=certified,
    data=MNIST,
    on="The support vector machine on features of MNIST's 4 and 9, from random starts.",
)
in_two_stages = partial(
    Recipe,
    method=image_stencil,
    evaluate=certified,
    data=PHOTOGRAPHS,
    stages=(Unrolled(STENCIL), Unrolled(STENCIL_FOR_LONG, stencil_for_long, "refined")),
)

IMAGING_RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        photographs(
            "photo-inpaint-pair",
            "a pair of networks for total-variation inpainting of photographs",
            method=image_pair(3),
            stages=(Unrolled(PAIR),),
        ),
        photographs(
            "photo-inpaint-dual-pair",
            (
                "a pair of networks, learned stored in the dual, for total-variation "
                "inpainting of photographs"
            ),
            method=image_dual_pair(3),
            stages=(Unrolled(DUAL_PAIR),),
        ),
        photographs(
            "photo-inpaint-conjugate",
            "one network, an exact map, for total-variation inpainting of photographs",
            method=image_conjugate(3),
            stages=(Unrolled(CONJUGATE),),
        ),
        photographs(
            "photo-inpaint-lpd",
            "the learned primal-dual scheme for total-variation inpainting of photographs",
            method=primal_dual,
            stages=(Unrolled(PRIMAL_DUAL),),
        ),
        in_two_stages(
            "photo-inpaint-stencil",
            (
                "a stencil, schedules and smoothing learned through AMD, for total-variation "
                "inpainting from any start"
            ),
            family=photographs_from_both_starts,
            on=(
                "Larger crops of BSDS500, damaged alike; half of them start with their holes "
                "filled."
            ),
        ),
        ellipses(
            "ellipse-denoise-pair",
            "a pair of networks for total-variation denoising of tomographic reconstructions",
            method=image_pair(1),
            stages=(Unrolled(PAIR),),
        ),
        ellipses(
            "ellipse-denoise-dual-pair",
            (
                "a pair of networks, learned stored in the dual, for total-variation denoising "
                "of reconstructions"
            ),
            method=image_dual_pair(1),
            stages=(Unrolled(DUAL_PAIR),),
        ),
        ellipses(
            "ellipse-denoise-conjugate",
            (
                "one network, an exact map, for total-variation denoising of tomographic "
                "reconstructions"
            ),
            method=image_conjugate(1),
            stages=(Unrolled(CONJUGATE),),
        ),
        ellipses(
            "ellipse-denoise-lpd",
            (
                "the learned primal-dual scheme for total-variation denoising of tomographic "
                "reconstructions"
            ),
            method=primal_dual,
            stages=(Unrolled(PRIMAL_DUAL),),
        ),
        in_two_stages(
            "ellipse-denoise-stencil",
            (
                "a stencil, schedules and smoothing learned through AMD, for total-variation "
                "denoising of any images"
            ),
            family=noisy_ellipses_and_photographs,
            on=(
                "Crops of tomographic reconstructions of ellipses and of grey BSDS500 with "
                "noise 0.05, λ = 0.15."
            ),
        ),
        machine(
            "mnist49-svm-pair",
            "a pair of networks for training a support vector machine on 50 features",
            method=machine_pair,
            stages=(Unrolled(MACHINE_PAIR),),
        ),
        machine(
            "mnist49-svm-conjugate",
            "one network, an exact map, for training a support vector machine on 50 features",
            method=machine_conjugate,
            stages=(Unrolled(MACHINE_CONJUGATE),),
        ),
        machine(
            "mnist49-svm-matrix",
            "a full matrix for mirror descent on a support vector machine on 50 features",
            family=partial(fours_and_nines, tolerance=1e-9),
            method=machine_matrix,
            stages=(Unrolled(MACHINE_MATRIX),),
        ),
        machine(
            "mnist49-svm-quadratic",
            (
                "a full matrix, schedules and smoothing learned through AMD, for a support "
                "vector machine on 50 features"
            ),
            family=partial(fours_and_nines, tolerance=1e-9),  # as near as it comes
            method=machine_quadratic,
            stages=(Unrolled(MACHINE_QUADRATIC),),
        ),
    )
}
# Every map has a control without a map, which is learned in the same way and shipped.
_CONTROLS = [
    recipe.control() for recipe in IMAGING_RECIPES.values() if not recipe.name.endswith("-lpd")
]
IMAGING_RECIPES |= {recipe.name: recipe for recipe in _CONTROLS}
