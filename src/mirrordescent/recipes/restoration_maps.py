"""Recipes of the entries that restore any image.

One method serves every weight λ, every kind of hole and every noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Generator, Tensor, nn

from mirrordescent import data, zoo
from mirrordescent._internal import cache
from mirrordescent.conditioning import ConditionalLaws, Within
from mirrordescent.learn import (
    Descent,
    Draw,
    Evolution,
    Objective,
    Pooled,
    ProblemFamily,
    Recipe,
    Settings,
    Unrolled,
    Validation,
)
from mirrordescent.learn.families import DeblurringFamily, RestorationFamily
from mirrordescent.methods import (
    AMD,
    PDHG,
    CondatVu,
    Conditioned,
    Equipped,
    Method,
    Switch,
)
from mirrordescent.methods.switch import STENCIL_DAMPING, WEIGHT_EXPONENT
from mirrordescent.mirrors import Euclidean, MirrorMap, Stencil
from mirrordescent.oracles import Rounded
from mirrordescent.problems import TVInpainting
from mirrordescent.problems.fingerprint import fingerprint
from mirrordescent.solving import gap, solve
from mirrordescent.trees import where

FEATURES = ("weight", "faint", "light", "strong", "observed", "depth", "rough", "noisy")
COUNTS = [1, 2, 3, 4, 5, 6, 8, 10, 14, 20, 30, 50, 100, 200]
LOOKS = (1, 2, 3, 4, 6, 8, 11, 15, 20, 28, 40, 56, 80, 110, 160, 220, 300)
AFTER = 120
RATIO = 0.15
"""When a primal-dual method takes over, and the ratio of its steps that learning begins with.

Chosen on training images: later is no better before a relative gap of 1e-3, and worse after it.
"""
ROUGH = {"stencil": 1.6, "identity": 8.0}
"""‖S DᵀD‖ for the stencil that learning begins with, and ‖DᵀD‖: how much of the curvature of kinks
a step feels.
"""


def any_damage(directory: Path | None, **variants: Any) -> ProblemFamily:
    """Return crops of BSDS500 with all kinds of damage."""
    training, held_out = (data.bsds500(split, directory) for split in ("train", "val"))
    return Pooled(
        RestorationFamily(training, held_out, size=64, **variants), 384, reference=long_run
    )


def long_run(draw: Draw, iterations: int = 10_000) -> Tensor:
    """Return bounds from long runs of PDHG with three step ratios, each continuing the last.

    For very large λ and holes, closing the gap would take very long. Then the bound is a guess: the
    least value found, less a millionth of the decrease.
    """
    problem = cast(TVInpainting, draw.problem)

    def compute() -> dict[str, Tensor]:
        x = cast(Tensor, draw.x0)
        start = value = problem.value(x).double()
        lower = torch.full_like(start, -torch.inf)
        for ratio in (0.3, 0.05, 2.0):
            found = solve(
                problem,
                PDHG(ratio),
                x,
                iterations=iterations,
                check_every=iterations // 20,
                stop=gap(1e-6, start_value=start.to(x)),
                progress=False,
            )
            x = where(found.best_value.double() < value, cast(Tensor, found.best_x), x)
            value = torch.minimum(value, found.best_value.double())
            lower = torch.fmax(lower, cast(Tensor, found.lower).double())
        closed = value - lower <= 1e-5 * (start - lower)
        return {"lower": torch.where(closed, lower, value - 1e-6 * (start - value))}

    return cache.remember(fingerprint(problem, f"long runs of {iterations}"), compute)["lower"]


def any_blur(directory: Path | None) -> ProblemFamily:
    """Return crops of BSDS500 with Gaussian blur and motion blur."""
    training, held_out = (data.bsds500(split, directory) for split in ("train", "val"))
    return Pooled(
        DeblurringFamily(training, held_out, size=64),
        48,
        reference=partial(long_run, iterations=400),
    )


def conditioned(kind: str) -> Callable[[Generator, ProblemFamily], Method[Any]]:
    """Return AMD followed by the method of Condat and Vũ, with numbers that depend on features.

    Each of the two has a stencil as its map, or none. The schedules are initialised by those of
    ``photo-inpaint-stencil`` for similar problems. For other problems, the width λ/a of the
    smoothing should be proportional to the contrast. So a is initialised as a power of λ/contrast,
    and so is the ratio of step sizes. The first method is ahead for a hundred steps; the second one
    never stalls.
    """

    def make(generator: Generator, family: ProblemFamily) -> Method[Any]:
        known = cast(Equipped, zoo.load("photo-inpaint-stencil"))
        inner = cast(AMD, known.method)
        mirror = _map(kind)
        laws = partial(ConditionalLaws, COUNTS, features=FEATURES, slope_counts=(1, 10, 100))
        with torch.no_grad():
            curvatures, steps, mixing, weights = (
                torch.tensor([float(schedule(k)) for k in COUNTS])
                for schedule in (
                    cast(Rounded, known.oracle).curvature,
                    inner.t,
                    inner.mixing,
                    inner.dual_weight,
                )
            )
            curvature = laws(curvatures, power=-1.0, exponents={"unit": 1.0})
            curvature.slopes[:, FEATURES.index("weight")] = 0.7
            curvature.slopes[:, FEATURES.index("observed")] = 0.4
        share = laws(steps * (1 + ROUGH["stencil"] * curvatures))
        unit = ConditionalLaws([1], [1.0], exponents={"unit": 1.0})
        unit.requires_grad_(False)
        method = AMD(
            mirror,
            Within(share, curvature, unit, rough=ROUGH[kind]),
            regulariser=mirror,  # both steps then share one filter of the gradient
            storage="primal",
            mixing=laws(mixing, power=1.0, bound=1.0),
            dual_weight=laws(weights, power=-1.0),
        )
        then = CondatVu(
            _ratio(RATIO, WEIGHT_EXPONENT),
            None if kind == "identity" else Stencil(STENCIL_DAMPING).requires_grad_(False),
        )
        return Conditioned(
            Switch(Equipped(method, Rounded(curvature)), AFTER, then, certified=False)
        )

    return make


def _map(kind: str) -> MirrorMap:
    if kind == "identity":
        return Euclidean()
    return Stencil(ConditionalLaws([1], [0.73], bound=1.0, features=FEATURES))


def _ratio(value: float, power: float, *more: str) -> ConditionalLaws:
    """Return the ratio of primal-dual step sizes, initialised as a power of λ/contrast."""
    law = ConditionalLaws([1], [value], features=(*FEATURES, *more), exponents={"unit": -1.0})
    with torch.no_grad():
        law.slopes[:, FEATURES.index("weight")] = power
    return law


def continued(entry: str, *more: str) -> Callable[[Generator, ProblemFamily], Method[Any]]:
    """Return the method of another entry, with more features.

    It is followed by PDHG, since with an operator there is no smooth F for gradient steps.
    """

    def make(generator: Generator, family: ProblemFamily) -> Method[Any]:
        method = cast(Method[Any], zoo.load(entry))
        for part in method.modules():
            if isinstance(part, ConditionalLaws) and part.features:
                part.features = [*part.features, *more]
                new = part.slopes.new_zeros(len(part.slopes), len(more))
                part.slopes = nn.Parameter(torch.cat([part.slopes.detach(), new], 1))
        if more:
            cast(Switch, cast(Conditioned, method).method).then = PDHG(_ratio(1.5, 0.0, *more))
        return method

    return make


BY_EVOLUTION = Settings(
    meta_steps=400,
    batch=40,
    horizon=300,
    optimiser=Descent(learning_rate=3e-2),
    step_bounds=None,
    save_every=20,
    validation=Validation(every=20, batch=64, horizons=(0.01, 0.033, 0.1, 0.333, 1.0)),
    objective=Objective(
        "log_gap", floor=1e-6, every=LOOKS, differentiation=Evolution(8, 0.03, apart=True)
    ),
)

REFINED = replace(
    BY_EVOLUTION,
    meta_steps=200,
    optimiser=Descent(learning_rate=1.5e-2),
    validation=replace(BY_EVOLUTION.validation, geometric=True),
    objective=replace(BY_EVOLUTION.objective, differentiation=Evolution(8, 0.02, apart=True)),
)
SHORTER = replace(
    REFINED,
    meta_steps=60,
    batch=16,
    horizon=160,
    save_every=10,
    validation=Validation(every=10, batch=16, horizons=(0.1, 0.333, 1.0), geometric=True),
    objective=replace(REFINED.objective, every=LOOKS[: LOOKS.index(160) + 1]),
)
FINER = replace(REFINED, meta_steps=60, optimiser=Descent(learning_rate=1e-2))

restoration = partial(
    Recipe,
    family=any_damage,
    data=data.describe("bsds500"),
    problems=32,
    stages=(Unrolled(BY_EVOLUTION), Unrolled(REFINED, name="refined")),
    on=(
        "Grey crops of BSDS500 with λ from 5e-4 to 15, noise up to 0.2, none or up to 90 % "
        "missing, in any shape."
    ),
)

RESTORATION_RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        restoration(
            "image-tv",
            (
                "one method for total-variation inpainting and denoising of any image, for any "
                "weight, holes and noise"
            ),
            method=conditioned("stencil"),
        ),
        restoration(
            "image-tv-control",
            "the control of image-tv: the same method without a map, learned alike",
            method=conditioned("identity"),
        ),
        restoration(
            "image-tv-isotropic",
            "one method for isotropic total-variation inpainting and denoising of any image",
            family=partial(any_damage, isotropic=True),
            method=continued("image-tv"),
            stages=(Unrolled(FINER),),
        ),
        restoration(
            "image-tv-deblur",
            (
                "one method for total-variation deblurring of any image, for any blur, weight "
                "and noise"
            ),
            family=any_blur,
            method=continued("image-tv", "passed"),
            stages=(Unrolled(SHORTER),),
            on=(
                "Grey crops of BSDS500 blurred by Gaussians or motion, λ from 5e-4 to 0.5, "
                "noise up to 0.03."
            ),
        ),
    )
}
