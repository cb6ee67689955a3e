"""Recipes of maps for networks as the paper prints them.

The maps are learned by mirror descent with a constant step size, and then used in other methods.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from mirrordescent import data, zoo
from mirrordescent.learn import (
    Descent,
    Draw,
    Objective,
    Recipe,
    Settings,
    Truncated,
    Unrolled,
    Validation,
)
from mirrordescent.learn.recipe import Numbers
from mirrordescent.methods import AMD, SMD, Adam, Method
from mirrordescent.mirrors import layerwise
from mirrordescent.mirrors.layerwise import Kind, Ties
from mirrordescent.oracles import Oracle
from mirrordescent.problems.network_training import Initialisation
from mirrordescent.recipes.architectures import mlp, small_cnn
from mirrordescent.recipes.network_maps import (
    FEW_SHOT,
    characters,
    characters_from_random,
    convolutional_digits,
    dense_digits,
    evaluate,
    minibatches,
    random_start,
)
from mirrordescent.recipes.reptile import Reptile
from mirrordescent.recipes.task_families import FewShotFamily
from mirrordescent.schedules import Interpolated

PRINTED_START = "omniglot-reptile-init-printed"
FIRST_STEP = 0.1  # that of SGD in the paper, which does not state the one of LMD


def characters_from_printed_reptile(directory: Path | None) -> FewShotFamily:
    """Return few-shot tasks that start from the network of Reptile with the paper's settings."""
    return characters(directory, cast(Initialisation, zoo.load(PRINTED_START)).network)


def plain(
    model: Callable[[], nn.Module],
    shape: tuple[int, ...],
    kind: Kind = "diagonal",
    ties: Ties = "paper",
    first_step: float = FIRST_STEP,
) -> Callable[[], SMD]:
    """Return mirror descent y⁺ = y − t·g, x⁺ = ∇ψ*(y⁺).

    The step size t is the same in all steps, and is learned together with the map.
    """

    def make() -> SMD:
        mirror = layerwise(model(), kind, ties, torch.zeros(1, *shape))
        return SMD(mirror, Interpolated([1], [first_step]))

    return make


def accelerated_as_printed(method: SMD) -> AMD:
    """Return LAMD* of the paper: the map and the step size of LMD in accelerated mirror descent.

    λ_k = 3/(3 + k), the dual weight is k/3, R is Euclidean, γ = 1, and the momentum is not capped.
    """
    return AMD(method.mirror, method.t).requires_grad_(False)


def both_against_adam(
    horizon: int, oracle: Oracle | None
) -> Callable[[Any, Draw, Numbers], Numbers]:
    """Return an evaluation of mirror descent, LAMD* with the same map and step size, and Adam."""

    def compare(method: SMD, draw: Draw, use: Numbers) -> Numbers:
        methods: dict[str, Method[Any]] = {
            "descent": method.requires_grad_(False),
            "accelerated as printed": accelerated_as_printed(method),
            "Adam 1e-2": Adam(1e-2),
        }
        return {name: evaluate(each, draw, horizon, oracle) for name, each in methods.items()}

    return compare


def printed_recipe(
    name: str,
    description: str,
    method: Callable[[], SMD],
    settings: Settings,
    *,
    minibatch: int | None = None,
    learning_minibatch: int | None = None,
    **others: Any,
) -> Recipe:
    """Return a recipe for plain mirror descent, learned by gradients through unrolled runs only.

    Args:
        name: Name of the entry.
        description: Purpose of the entry.
        method: Method to learn.
        settings: Settings of learning.
        minibatch: Data points per gradient in use; None for all.
        learning_minibatch: Data points per gradient while learning; None for all.
        others: Further arguments of the recipe.
    """
    sizes = {"minibatch": minibatch, "learning_minibatch": learning_minibatch}
    return Recipe(
        name,
        description,
        method=lambda generator, family: method(),
        stages=(Unrolled(settings),),
        oracle=minibatches(learning_minibatch),
        use={key: size for key, size in sizes.items() if size is not None},
        evaluate=both_against_adam(settings.horizon, minibatches(minibatch)),
        problems=settings.validation.batch,
        **others,
    )


def _settings(
    meta_steps: int,
    horizon: int,
    validate_every: int,
    learning_rate: float = 0.15,
    networks: int = 10,
    **others: Any,
) -> Settings:
    """Return the paper's settings: the sum of losses along a run, at every tenth step."""
    return Settings(
        meta_steps=meta_steps,
        horizon=horizon,
        # Through a whole run of a network meta-gradients explode as soon as its steps are as long
        # as they can be.
        objective=Objective("sum", every=10, differentiation=Truncated(30)),
        optimiser=Descent(learning_rate=learning_rate),
        validation=Validation(every=validate_every, batch=networks, horizons=(0.5, 1.0)),
        save_every=3,
        **others,
    )


PRINTED_RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        printed_recipe(
            "mnist-mlp-spline-printed",
            (
                "10 splines for training a deep dense network on MNIST in three epochs, "
                "learned through mirror descent"
            ),
            plain(mlp, (28, 28), kind="spline", ties="tensor"),
            _settings(20, 360, 10, networks=6, batch=2, curriculum=((16, 120),)),
            minibatch=500,
            learning_minibatch=500,
            family=dense_digits,
            data=data.describe("mnist"),
            on="Networks 784 → 50 → 40 → 30 → 20 → 10 on MNIST, from random initialisations.",
        ),
        printed_recipe(
            "mnist-cnn-diagonal-printed",
            "30 multipliers of the gradient for training a small convolutional network on MNIST in "
            "two epochs, "
            "learned through mirror descent",
            plain(small_cnn, (1, 14, 14)),
            _settings(28, 120, 7, batch=2, curriculum=((14, 60),)),
            minibatch=1000,
            learning_minibatch=250,
            family=convolutional_digits,
            data=data.describe("mnist"),
            on="Small convolutional networks on MNIST at 14×14, from random initialisations.",
        ),
        printed_recipe(
            "omniglot-diagonal-printed",
            "30 multipliers of the gradient for few-shot learning of characters from random "
            "initialisations, "
            "learned through mirror descent",
            plain(small_cnn, (1, 14, 14)),
            _settings(40, 100, 5, 0.08, batch=8, curriculum=((20, 50),)),
            family=characters_from_random,
            data=data.describe("omniglot"),
            on=f"{FEW_SHOT} from random initialisations.",
        ),
        printed_recipe(
            "omniglot-diagonal-reptile-printed",
            "30 multipliers of the gradient for few-shot learning of characters from the "
            "initialisation of Reptile "
            "with the paper's settings, learned through mirror descent",
            # Half of SGD's: with longer ones meta-gradients from this start explode, and nothing is
            # learned.
            plain(small_cnn, (1, 14, 14), first_step=FIRST_STEP / 2),
            _settings(40, 100, 5, 0.03, batch=8, curriculum=((20, 50),)),
            family=characters_from_printed_reptile,
            data=data.describe("omniglot"),
            on=f"{FEW_SHOT} from the initialisation of Reptile with the paper's settings.",
        ),
    )
}
PRINTED_REPTILE_RECIPES: dict[str, Recipe] = {
    PRINTED_START: Recipe(
        PRINTED_START,
        "a start of a small convolutional network for few-shot learning of characters, by Reptile "
        "with the paper's "
        "settings, but on 100 000 of its 500 000 tasks",
        family=characters_from_random,
        method=random_start,
        # One task a step, as printed; the paper takes 500 000.
        stages=(
            Reptile(
                steps=100_000,
                inner_steps=10,
                inner_step_size=0.01,
                epsilon=0.1,
                save_every=2000,
                looks=40,
            ),
        ),
        on=f"{FEW_SHOT} from random initialisations.",
        data=data.describe("omniglot"),
        evaluate=None,
    )
}
