"""Recipes for Poisson tomography: the geometry of the positive orthant, and schedules."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from mirrordescent.learn import (
    Descent,
    Objective,
    Pooled,
    ProblemFamily,
    Recipe,
    Settings,
    Unrolled,
    Validation,
)
from mirrordescent.methods import AMD, Equipped, Method
from mirrordescent.mirrors import OrthantEntropy
from mirrordescent.oracles import InTurn, Minibatch, Oracle, Relative
from mirrordescent.recipes.image_maps import certified
from mirrordescent.recipes.task_families import TomographyFamily
from mirrordescent.schedules import PowerLaws

GROUPS = 8
WIDTH = 0.2  # β before learning, for images in [0, 1]
STEPS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 40, 80, 160]


def counts_of_ellipses(directory: Path | None) -> ProblemFamily:
    """Return a few tomography problems of random ellipses, with tight bounds."""
    return Pooled(TomographyFamily(terms=GROUPS), 48, tolerance=1e-6)


def all_angles(generator: Generator, family: ProblemFamily) -> Method[Any]:
    """Return AMD with exact gradients; after the learned steps, step sizes fall as weights grow."""
    counts = [
        1,
        3,
        10,
        40,
    ]  # with more, the learned schedules diverge on some problems
    k = torch.tensor(counts, dtype=torch.get_default_dtype())
    mirror = OrthantEntropy(WIDTH)
    method = AMD(
        mirror,
        PowerLaws(counts, torch.full_like(k, 0.8), power=1.0),
        regulariser=mirror,
        storage="primal",
        mixing=PowerLaws(counts, (3 / (2 + k)).clamp(max=0.9), power=1.0, bound=1.0),
        dual_weight=PowerLaws(counts, k / 3, power=-1.0),
    )
    return Equipped(method, Relative())


def groups_of_angles(oracle: Oracle) -> Method[Any]:
    """Return AMD with gradients of a group of angles.

    Its momentum is bounded, and its step sizes tend to 0.
    """
    k = torch.tensor(STEPS, dtype=torch.get_default_dtype())
    mirror = OrthantEntropy(WIDTH)
    method = AMD(
        mirror,
        PowerLaws(STEPS, 0.4 / (1 + k / (5 * GROUPS)), power=1.0),
        regulariser=mirror,
        storage="primal",
        mixing=PowerLaws(STEPS, 3 / (3 + k.clamp(max=10)), bound=1.0),
        dual_weight=PowerLaws(STEPS, (k / 3).clamp(max=3.5)),
    )
    return Equipped(method, Relative(oracle))


def _settings(
    horizon: int, meta_steps: int, learning_rate: float, steps_per_pass: int, short_first: bool
) -> Settings:
    """Return settings in which every pass counts relative to its own size."""
    shorter = ((meta_steps // 4, horizon // 4), (meta_steps // 2, horizon // 2))
    return Settings(
        meta_steps=meta_steps,
        batch=4,
        horizon=horizon,
        curriculum=shorter if short_first else (),
        optimiser=Descent(learning_rate=learning_rate),
        objective=Objective(weights="log_gap", every=steps_per_pass),
        step_bounds=None,
        validation=Validation(every=20, horizons=(0.5, 1.0, 4.0)),
        save_every=20,
    )


SUBSETS = _settings(20 * GROUPS, 120, 5e-2, GROUPS, short_first=True)
EXACT = _settings(40, 100, 2e-2, 1, short_first=False)
counted = partial(
    Recipe,
    family=counts_of_ellipses,
    evaluate=certified,
    on="Random ellipses by 45 counts per cell, 40 angles in 8 groups, background 2, ρ = 20.",
)

TOMOGRAPHY_RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        counted(
            "ellipse-tomography",
            "an entropy and the steps of AMD for Poisson tomography, with groups of angles in turn",
            method=lambda generator, family: groups_of_angles(InTurn()),
            stages=(Unrolled(SUBSETS),),
        ),
        counted(
            "ellipse-tomography-random",
            "an entropy and the steps of AMD for Poisson tomography, with random groups of angles",
            method=lambda generator, family: groups_of_angles(Minibatch(1)),
            stages=(Unrolled(SUBSETS),),
        ),
        counted(
            "ellipse-tomography-exact",
            "an entropy and the steps of AMD for Poisson tomography, with exact gradients",
            method=all_angles,
            stages=(Unrolled(EXACT),),
        ),
    )
}
