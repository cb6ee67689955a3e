"""Recipes of the entries that train networks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

import torch
from torch import Generator, Tensor, nn

from mirrordescent import data, zoo
from mirrordescent.data.splits import Split, split_indices
from mirrordescent.learn import (
    Descent,
    Draw,
    Evolution,
    NetworkFamily,
    Objective,
    ProblemFamily,
    Recipe,
    Settings,
    Truncated,
    Unrolled,
    Validation,
)
from mirrordescent.learn.network_families import moons_family
from mirrordescent.learn.recipe import Numbers, Stage
from mirrordescent.learn.tables import plain
from mirrordescent.methods import AMD, SMD, Adam, Method
from mirrordescent.mirrors import layerwise
from mirrordescent.mirrors.layerwise import Kind, Ties
from mirrordescent.oracles import Minibatch, Oracle
from mirrordescent.problems.network_training import Initialisation, default_networks
from mirrordescent.recipes.architectures import mlp, moons_network, small_cnn
from mirrordescent.recipes.reptile import Reptile
from mirrordescent.recipes.small_cnn_training import SmallCNNTraining
from mirrordescent.recipes.task_families import FewShotFamily
from mirrordescent.schedules import Interpolated
from mirrordescent.solving import solve

REPTILE_START = "omniglot-reptile-init"
SCALES = (0.5, 0.7, 1.0, 1.4)
DESCENT_SCALES = (0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6)
MARGIN = 1.2
DESCENT_NETWORKS = 60
TOGETHER = (
    25  # networks evaluated at a time: the data of more do not fit into the processor's cache
)
Shape: TypeAlias = Literal["learned", "falling", "steady"]


@dataclass(frozen=True)
class ChooseScale(Stage):
    """A stage that chooses a factor of all step sizes, and one for plain mirror descent.

    Long steps make some networks diverge and not others, and methods are learned on few networks at
    a time, which may not show a rare divergence. So all step sizes are multiplied by a factor from
    ``SCALES``: the one with the lowest mean final loss on further networks, in runs whose steps are
    longer by ``MARGIN``. For plain mirror descent, they are also multiplied by a factor from
    ``DESCENT_SCALES``, which is chosen in the same way and stored on the card.

    A choice on n networks does not see a divergence that is rarer than one in n. Of 1000 few-shot
    tasks, two diverged with step sizes chosen on 60 tasks.

    Args:
        networks: Number of networks for the choice; at most ``DESCENT_NETWORKS`` for plain mirror
            descent.
        horizon: Number of training steps.
        shape: Shape of the step sizes of plain mirror descent; see :func:`descent`.
    """

    name: ClassVar[str] = "scales"  # type: ignore[misc]

    networks: int
    horizon: int
    shape: Shape

    def run(self, module: Any, family: ProblemFamily, **work: Any) -> tuple[nn.Module, Numbers]:
        """Choose both factors."""
        method = cast(AMD, module).requires_grad_(False)
        plain_descent = partial(descent, shape=self.shape)

        def best(
            scales: Sequence[float], scaled: Callable[[AMD, float], Method[Any]], networks: int
        ) -> float:
            draws = [family.draw(seeds) for seeds in torch.split(torch.arange(networks), TOGETHER)]
            losses = []
            for longer in (scaled(method, MARGIN * scale) for scale in scales):
                ends = [evaluate(longer, draw, self.horizon, work["oracle"]) for draw in draws]
                losses.append(sum(end["networks"] * end["loss"][-1] for end in ends) / networks)
            return scales[losses.index(min(losses))]

        accelerated_scale = best(SCALES, rescaled, self.networks)
        method = rescaled(method, accelerated_scale)
        use = {
            "accelerated_scale": accelerated_scale,
            "descent_scale": best(
                DESCENT_SCALES, plain_descent, min(self.networks, DESCENT_NETWORKS)
            ),
            "descent_shape": self.shape,
            "map_parameters": sum(p.numel() for p in method.mirror.parameters()),
        }
        return method, {"stage": self.name, "settings": plain(self), "use": use}


def rescaled(method: AMD, scale: float) -> AMD:
    """Return an accelerated method with its step sizes times a number."""
    scaled = copy.deepcopy(method)
    t = cast(Interpolated, method.t)
    scaled.t = Interpolated(t.counts, scale * t.log_values.detach().exp())
    return scaled.requires_grad_(False)


def descent(method: AMD, scale: float, shape: Shape = "learned") -> SMD:
    """Return mirror descent in the geometry of an accelerated method.

    Its step sizes are those of the accelerated method times a factor, which rises to ``scale`` over
    the first quarter of the horizon and to twice that at its end. The weights of the accelerated
    method rise in the same way, and networks diverge in the first steps. If the step sizes rise
    beyond the stability of plain descent, each is replaced by the smallest one so far ("falling"),
    or by the geometric mean of all ("steady").
    """
    t = cast(Interpolated, method.t)
    horizon = t.counts[-1]
    warm_up = max(1, horizon // 4)
    counts = sorted({1, *(max(1, warm_up // part) for part in (8, 3, 1)), *t.counts})
    with torch.no_grad():
        sizes = [float(t(k)) for k in counts]
        if shape == "falling":
            sizes = list(accumulate(sizes, min))
        elif shape == "steady":
            sizes = [float(t.log_values.mean().exp())] * len(counts)
    steps = [
        scale * size * min(1.0, k / warm_up) * (1 + k / horizon)
        for k, size in zip(counts, sizes, strict=True)
    ]
    return SMD(method.mirror, Interpolated(counts, steps)).requires_grad_(False)


def evaluate(method: Method[Any], draw: Draw, horizon: int, oracle: Oracle | None) -> Numbers:
    """Return the mean loss along a run and the final state of the networks.

    A network that fails counts with its last value.
    """
    looks = [horizon // 6, horizon // 3, horizon // 2, horizon]
    solution = solve(
        draw.problem,
        method,
        draw.x0,
        iterations=horizon,
        oracle=oracle,
        generator=torch.Generator().manual_seed(0),
        trace=looks,
        check_every=horizon,
        progress=False,
    )
    values = solution.trace.values.double().nan_to_num(nan=float("inf"))
    return {
        "networks": values.shape[1],
        "steps": looks,
        "loss": [round(value, 6) for value in values.mean(1).tolist()],
        "worst_loss": round(float(values[-1].max()), 6),
    }


def against_adam(horizon: int, oracle: Oracle | None) -> Callable[[Any, Draw, Numbers], Numbers]:
    """Return an evaluation of a method, plain mirror descent in its geometry, and Adam."""

    def compare(method: AMD, draw: Draw, use: Numbers) -> Numbers:
        methods: dict[str, Method[Any]] = {
            "accelerated": method,
            "descent": descent(method, use["descent_scale"], use["descent_shape"]),
            "Adam 1e-2": Adam(1e-2),
        }
        return {name: evaluate(each, draw, horizon, oracle) for name, each in methods.items()}

    return compare


def _with_the_map_as_it_is(method: AMD) -> AMD:
    method.mirror.requires_grad_(False)
    return method


def network_recipe(
    name: str,
    description: str,
    method: Callable[[], AMD],
    settings: Settings,
    refinement: Settings | None = None,
    *,
    minibatch: int | None = None,
    learning_minibatch: int | None = None,
    tuning_networks: int = 16,
    shape: Shape = "learned",
    **others: Any,
) -> Recipe:
    """Return a recipe for a method that trains networks by accelerated mirror descent.

    Map and schedules are learned by gradients through unrolled runs on a few networks at a time.
    Then the schedules alone are learned by evolution, which reaches the end of a run, where
    gradients explode. :class:`ChooseScale` is the last stage.

    Args:
        name: Name of the entry.
        description: Purpose of the entry.
        method: Method to learn.
        settings: Settings of learning by gradients.
        refinement: Settings of learning by evolution; None for no evolution.
        minibatch: Data points per gradient in use; None for all.
        learning_minibatch: Data points per gradient while learning; None for all.
        tuning_networks: Number of networks for :class:`ChooseScale`.
        shape: Shape of the step sizes for :class:`ChooseScale`.
        others: Further arguments of the recipe.
    """
    horizon = (refinement or settings).horizon
    refined = (
        [] if refinement is None else [Unrolled(refinement, _with_the_map_as_it_is, "schedules")]
    )
    sizes = {"minibatch": minibatch, "learning_minibatch": learning_minibatch}
    return Recipe(
        name,
        description,
        method=lambda generator, family: method(),
        stages=(Unrolled(settings), *refined, ChooseScale(tuning_networks, horizon, shape)),
        oracle=minibatches(learning_minibatch),
        use={key: size for key, size in sizes.items() if size is not None},
        evaluate=against_adam(horizon, minibatches(minibatch)),
        problems=settings.validation.batch,
        **others,
    )


def minibatches(minibatch: int | None) -> Minibatch | None:
    """Return minibatches of a size; None means exact gradients."""
    return None if minibatch is None else Minibatch(minibatch)


def moons(directory: Path | None) -> NetworkFamily:
    """Return networks that classify two half circles."""
    return moons_family()


def dense_digits(directory: Path | None) -> NetworkFamily:
    """Return deep dense networks; the loss is measured on 1000 digits."""
    return NetworkFamily(mlp(), *data.mnist("train", directory), evaluation=1000)


def convolutional_digits(directory: Path | None) -> NetworkFamily:
    """Return small convolutional networks on digits at half the resolution."""
    images, labels = data.mnist("train", directory)
    return NetworkFamily(small_cnn(), data.halve(images)[:, None], labels, evaluation=1000)


def characters_from_random(directory: Path | None) -> FewShotFamily:
    """Return few-shot tasks, each with a random network."""
    return characters(directory, None)


def characters_from_reptile(directory: Path | None) -> FewShotFamily:
    """Return few-shot tasks that all start from the network learned by Reptile."""
    return characters(directory, cast(Initialisation, zoo.load(REPTILE_START)).network)


def characters(directory: Path | None, initial: dict[str, Tensor] | None) -> FewShotFamily:
    """Split the training characters into a part for learning and a part for validation.

    Experiments test on other characters.
    """
    drawn = data.omniglot_characters("train", 14, directory)
    training, held_out = (drawn[split_indices(split, len(drawn))] for split in get_args(Split))
    return FewShotFamily(
        small_cnn(), training, held_out, initial=initial, training=SmallCNNTraining
    )


def accelerated(
    model: Callable[[], nn.Module],
    shape: tuple[int, ...],
    counts: Sequence[int],
    steps: Sequence[float],
    kind: Kind = "diagonal",
    ties: Ties = "paper",
    cap: int = 27,
) -> Callable[[], AMD]:
    """Return AMD with capped momentum: 0.9 for noisy gradients, and more for exact ones.

    The correcting step uses the geometry of the map if that is cheap, and otherwise the Euclidean
    one.
    """

    def make() -> AMD:
        mirror = layerwise(model(), kind, ties, torch.zeros(1, *shape))
        t = Interpolated(counts, list(steps))
        gamma = Interpolated([1], [1.0])
        return AMD(
            mirror, t, gamma=gamma, regulariser=mirror if kind == "diagonal" else None, cap=cap
        )

    return make


def random_start(generator: Generator, family: ProblemFamily) -> Initialisation:
    """Return a random network, the same at every call."""
    return Initialisation(
        {key: leaf[0] for key, leaf in default_networks(small_cnn(), [0]).items()}
    )


def _settings(
    meta_steps: int, horizon: int, learning_rate: float, validate_every: int, **others: Any
) -> Settings:
    """Return settings of learning on log losses at twelve points of a run.

    The method that is best at the horizon and at half of it is kept.
    """
    return Settings(
        meta_steps=meta_steps,
        horizon=horizon,
        # The best step sizes are near the edge of stability, where meta-gradients through many more
        # steps explode.
        objective=Objective(
            "log_value", every=max(1, horizon // 12), differentiation=Truncated(30)
        ),
        optimiser=Descent(learning_rate=learning_rate),
        validation=Validation(every=validate_every, batch=10, horizons=(0.5, 1.0)),
        save_every=5,
        **others,
    )


FEW_SHOT = "Tasks of 10 Omniglot characters, 5 drawings of each at 14×14,"
NETWORK_RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        network_recipe(
            "moons-diagonal",
            "5 multipliers of the gradient for training small networks on two half circles",
            accelerated(moons_network, (2,), [1, 20, 60, 100], [0.1, 0.3, 0.3, 0.3]),
            _settings(40, 100, 0.08, 5, batch=6),
            family=moons,
            on=(
                "Networks 2 → 50 → 1 on 500 points of two half circles, noise 0.05, from "
                "random initialisations."
            ),
        ),
        network_recipe(
            "mnist-mlp-spline",
            "10 splines for training a deep dense network on MNIST in three epochs",
            accelerated(
                mlp,
                (28, 28),
                [1, 20, 60, 150, 250, 360],
                [0.6, 0.2, 0.1, 0.2, 0.24, 0.015],
                kind="spline",
                ties="tensor",
            ),
            _settings(22, 150, 0.06, 11, batch=3, curriculum=((12, 60),)),
            Settings(
                meta_steps=16,
                horizon=360,
                batch=3,
                optimiser=Descent(learning_rate=0.12, betas=(0.8, 0.95)),
                validation=Validation(every=4, batch=6, horizons=(1.0,)),
                save_every=1,
                objective=Objective(
                    "log_value", every=120, differentiation=Evolution(pairs=4, spread=0.12)
                ),
            ),
            minibatch=500,
            learning_minibatch=500,
            tuning_networks=8,
            shape="falling",
            family=dense_digits,
            data=data.describe("mnist"),
            on="Networks 784 → 50 → 40 → 30 → 20 → 10 on MNIST, from random initialisations.",
        ),
        network_recipe(
            "mnist-cnn-diagonal",
            (
                "30 multipliers of the gradient for training a small convolutional network on "
                "MNIST in two epochs"
            ),
            accelerated(
                small_cnn,
                (1, 14, 14),
                [1, 10, 30, 60, 100, 120],
                [0.1, 0.2, 0.3, 0.45, 0.45, 0.2],
                cap=60,
            ),
            _settings(20, 120, 0.03, 5, batch=3, curriculum=((8, 60),)),
            minibatch=1000,
            learning_minibatch=400,
            family=convolutional_digits,
            data=data.describe("mnist"),
            on="Small convolutional networks on MNIST at 14×14, from random initialisations.",
        ),
        network_recipe(
            "omniglot-diagonal",
            (
                "30 multipliers of the gradient for few-shot learning of characters from "
                "random initialisations"
            ),
            accelerated(
                small_cnn, (1, 14, 14), [1, 10, 30, 60, 100], [0.08, 0.12, 0.15, 0.5, 1.5], cap=60
            ),
            _settings(24, 100, 0.03, 3, batch=8, curriculum=((12, 50),)),
            tuning_networks=60,
            shape="steady",
            family=characters_from_random,
            data=data.describe("omniglot"),
            on=f"{FEW_SHOT} from random initialisations.",
        ),
        network_recipe(
            "omniglot-diagonal-reptile",
            (
                "30 multipliers of the gradient for few-shot learning of characters from the "
                "initialisation of Reptile"
            ),
            accelerated(
                small_cnn, (1, 14, 14), [1, 10, 30, 60, 100], [0.4, 0.8, 1.5, 4.0, 8.0], cap=60
            ),
            _settings(24, 100, 0.03, 3, batch=8, curriculum=((12, 50),)),
            tuning_networks=60,
            shape="steady",
            family=characters_from_reptile,
            data=data.describe("omniglot"),
            on=f"{FEW_SHOT} from the initialisation of Reptile.",
        ),
    )
}
REPTILE_RECIPES: dict[str, Recipe] = {
    REPTILE_START: Recipe(
        REPTILE_START,
        "a start of a small convolutional network for few-shot learning of characters, by Reptile",
        family=characters_from_random,
        method=random_start,
        stages=(Reptile(steps=800, batch=16, inner_steps=10, inner_step_size=0.1, epsilon=1.0),),
        on=f"{FEW_SHOT} from random initialisations.",
        data=data.describe("omniglot"),
        evaluate=None,
    )
}
