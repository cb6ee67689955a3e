"""How the entries of the zoo that train networks were learned."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

import torch
from torch import Tensor, nn

from mirrordescent import data, zoo
from mirrordescent.data.splits import Split, split_indices
from mirrordescent.learn import Objective, ProblemFamily, Settings, learn
from mirrordescent.learn.families import Draw
from mirrordescent.learn.networks import FewShotFamily, NetworkFamily, moons_family
from mirrordescent.learn.reptile import Initialisation, reptile
from mirrordescent.methods import AMD, SMD, Adam, Method
from mirrordescent.mirrors import layerwise
from mirrordescent.mirrors.layerwise import Kind, Ties
from mirrordescent.oracles import Minibatch
from mirrordescent.problems.networks import default_networks
from mirrordescent.schedules import Interpolated
from mirrordescent.solve import solve
from mirrordescent.zoo import Card
from mirrordescent_lab.architectures import mlp, moons_network, small_cnn

REPTILE_START = "omniglot-reptile-init"
SCALES = (0.5, 0.7, 1.0, 1.4)
DESCENT_SCALES = (0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6)
MARGIN = 1.2
Shape: TypeAlias = Literal["learned", "falling", "steady"]


@dataclass(frozen=True)
class NetworkRecipe:
    """What a method that trains networks is for, and how it is learned.

    It is learned as accelerated mirror descent, on few networks at a time: map and schedules by gradients through
    unrolled runs, and then the schedules alone by evolution, which reaches to the end of a run where gradients explode.
    Since large steps kill some networks and not others, all its step sizes are then multiplied by the one of ``SCALES``
    with which more networks, drawn for that, end lowest on the mean when steps are longer still by ``MARGIN``: what
    would kill one network in fifty does not show among a few. Plain mirror descent in the same geometry takes these
    step sizes times one of ``DESCENT_SCALES``, chosen likewise, which stands on the card.

    Args:
        description: in a sentence.
        dataset: the collection the data come from; None if they are generated.
        family: what it is learned on.
        method: what is learned.
        settings: how.
        refinement: how its schedules are learned on; None if they are not.
        minibatch: data points per gradient in use; None for all.
        learning_minibatch: data points per gradient while learning: fewer, to save time.
        tuning_networks: how many of them choose the two scales.
        descent_shape: what plain mirror descent makes of the step sizes, see :func:`descent`.
    """

    description: str
    dataset: str | None
    family: Callable[[Path | None], ProblemFamily]
    method: Callable[[], AMD]
    settings: Settings
    refinement: Settings | None = None
    minibatch: int | None = None
    learning_minibatch: int | None = None
    tuning_networks: int = 16
    descent_shape: Shape = "learned"

    def learn(self, name: str, runs: Path, directory: Path | None) -> tuple[nn.Module, Card]:
        """Learn the method, or go on where a run stopped, and return it with its card."""
        family, method = self.family(directory), self.method()
        oracle = _oracle(self.learning_minibatch)
        result = learn(family, method, self.settings, oracle=oracle, folder=runs / name)
        refined = None
        if self.refinement is not None:
            method.mirror.requires_grad_(False)
            refined = learn(family, method, self.refinement, oracle=oracle, folder=runs / name / "schedules")
        method.requires_grad_(False)
        horizon = (self.refinement or self.settings).horizon
        draw = family.draw(torch.arange(self.tuning_networks))

        def best(scales: Sequence[float], scaled: Callable[[AMD, float], Method[Any]]) -> float:
            longer = (scaled(method, MARGIN * scale) for scale in scales)
            runs = [evaluate(each, draw, horizon, self.learning_minibatch) for each in longer]
            losses = [run["loss"][-1] for run in runs]
            return scales[losses.index(min(losses))]

        accelerated_scale = best(SCALES, rescaled)
        method = rescaled(method, accelerated_scale)
        plain = partial(descent, shape=self.descent_shape)
        descent_scale = best(DESCENT_SCALES, plain)
        fresh = family.validation(self.settings.validation_batch)
        card: Card = {
            "name": name,
            "kind": "method",
            "description": self.description,
            "family": (self.family.__doc__ or "").strip(),
            "data": data.describe(self.dataset) if self.dataset else "generated",
            "settings": asdict(self.settings),
            "refinement": None if self.refinement is None else asdict(self.refinement),
            "minibatch": self.minibatch,
            "learning_minibatch": self.learning_minibatch,
            "parameters": sum(p.numel() for p in method.parameters()),
            "map_parameters": sum(p.numel() for p in method.mirror.parameters()),
            "best_meta_step": result.best_step,
            "best_refinement_step": None if refined is None else refined.best_step,
            "skipped_meta_steps": result.skipped,
            "accelerated_scale": accelerated_scale,
            "descent_scale": descent_scale,
            "descent_shape": self.descent_shape,
            "held_out": {
                "accelerated": evaluate(method, fresh, horizon, self.minibatch),
                "descent": evaluate(plain(method, descent_scale), fresh, horizon, self.minibatch),
                "Adam 1e-2": evaluate(Adam(1e-2), fresh, horizon, self.minibatch),
            },
        }
        return method, card


def rescaled(method: AMD, scale: float) -> AMD:
    """Return an accelerated method with its step sizes times a number."""
    scaled = copy.deepcopy(method)
    t = cast(Interpolated, method.t)
    scaled.t = Interpolated(t.counts, scale * t.log_values.detach().exp())
    return scaled.requires_grad_(False)


def descent(method: AMD, scale: float, shape: Shape = "learned") -> SMD:
    """Return mirror descent in the geometry of an accelerated method, with its step sizes times a rising number.

    The number rises to ``scale`` over the first quarter of the horizon and to twice that at its end. The weights of the
    accelerated method rise of themselves, and it is in the first steps that networks die. Where its step sizes rise
    beyond what plain descent stands, the smallest so far takes the place of each (``"falling"``), or the geometric mean
    of all (``"steady"``).
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
    steps = [scale * size * min(1.0, k / warm_up) * (1 + k / horizon) for k, size in zip(counts, sizes, strict=True)]
    return SMD(method.mirror, Interpolated(counts, steps)).requires_grad_(False)


def evaluate(method: Method[Any], draw: Draw, horizon: int, minibatch: int | None) -> dict[str, Any]:
    """Return the mean loss along a run and how the networks ended, every one counted with its last value."""
    looks = [horizon // 6, horizon // 3, horizon // 2, horizon]
    solution = solve(
        draw.problem, method, draw.x0, iterations=horizon, oracle=_oracle(minibatch),
        generator=torch.Generator().manual_seed(0), trace=looks, check_every=horizon, progress=False,
    )  # fmt: skip
    values = solution.trace.values.double().nan_to_num(nan=float("inf"))
    return {
        "networks": values.shape[1],
        "steps": looks,
        "loss": [round(value, 6) for value in values.mean(1).tolist()],
        "worst_loss": round(float(values[-1].max()), 6),
    }


def _oracle(minibatch: int | None) -> Minibatch | None:
    return None if minibatch is None else Minibatch(minibatch)


@dataclass(frozen=True)
class ReptileRecipe:
    """How an initialisation is learned by Reptile."""

    description: str
    steps: int
    options: dict[str, Any] = field(default_factory=dict)

    def learn(self, name: str, runs: Path, directory: Path | None) -> tuple[nn.Module, Card]:
        """Learn the initialisation, or go on where a run stopped, and return it with its card."""
        start = {key: leaf[0] for key, leaf in default_networks(small_cnn(), [0]).items()}
        family = characters_from_random(directory)
        network = reptile(family, start, self.steps, checkpoint=runs / name / "theta.safetensors", **self.options)
        card: Card = {
            "name": name,
            "kind": "initialisation",
            "description": self.description,
            "family": (characters_from_random.__doc__ or "").strip(),
            "data": data.describe("omniglot"),
            "settings": {"steps": self.steps, **self.options},
        }
        return Initialisation(network), card


def moons(directory: Path | None) -> NetworkFamily:
    """Networks 2 → 50 → 1 on 500 points of two half circles, noise 0.05, from random initialisations."""
    return moons_family()


def dense_digits(directory: Path | None) -> NetworkFamily:
    """Networks 784 → 50 → 40 → 30 → 20 → 10 on MNIST, from random initialisations."""
    return NetworkFamily(mlp(), *data.mnist("train", directory), evaluation=1000)


def convolutional_digits(directory: Path | None) -> NetworkFamily:
    """Small convolutional networks on MNIST at 14×14, from random initialisations."""
    images, labels = data.mnist("train", directory)
    return NetworkFamily(small_cnn(), data.halve(images)[:, None], labels, evaluation=1000)


def characters_from_random(directory: Path | None) -> FewShotFamily:
    """Tasks of 10 Omniglot characters, 5 drawings of each at 14×14, from random initialisations."""
    return _characters(directory, None)


def characters_from_reptile(directory: Path | None) -> FewShotFamily:
    """Tasks of 10 Omniglot characters, 5 drawings of each at 14×14, from the initialisation of Reptile."""
    return _characters(directory, cast(Initialisation, zoo.load(REPTILE_START)).network)


def _characters(directory: Path | None, initial: dict[str, Tensor] | None) -> FewShotFamily:
    """Set characters apart for validation from those for training: those for testing are for the experiments."""
    characters = data.omniglot_characters("train", 14, directory)
    training, held_out = (characters[split_indices(split, len(characters))] for split in get_args(Split))
    return FewShotFamily(small_cnn(), training, held_out, initial=initial)


def accelerated(
    model: Callable[[], nn.Module],
    shape: tuple[int, ...],
    counts: Sequence[int],
    steps: Sequence[float],
    kind: Kind = "diagonal",
    ties: Ties = "paper",
    cap: int = 27,
) -> Callable[[], AMD]:
    """AMD with its momentum capped: for noisy gradients at 0.9, for exact ones higher.

    Its correcting step is taken in the geometry of the map where that is cheap, and otherwise in the Euclidean one.
    """

    def make() -> AMD:
        mirror = layerwise(model(), kind, ties, torch.zeros(1, *shape))
        t, gamma = Interpolated(counts, list(steps)), Interpolated([1], [1.0])
        return AMD(mirror, t, gamma=gamma, regulariser=mirror if kind == "diagonal" else None, cap=cap)

    return make


def _settings(meta_steps: int, horizon: int, **others: Any) -> Settings:
    """Learn on logarithms of losses, looked at twelve times a run; keep what is best at the horizon and its half."""
    # The best step sizes are near the edge of stability, where meta-gradients through many more steps explode.
    objective = Objective("log_value", every=max(1, horizon // 12), differentiation="truncated", segment=30)
    shared = Settings(validation_batch=10, validation_horizons=(0.5, 1.0), save_every=5)
    return replace(shared, meta_steps=meta_steps, horizon=horizon, objective=objective, **others)


NETWORK_RECIPES: dict[str, NetworkRecipe | ReptileRecipe] = {
    "moons-diagonal": NetworkRecipe(
        "5 multipliers of the gradient for training small networks on two half circles",
        None, moons,
        accelerated(moons_network, (2,), [1, 20, 60, 100], [0.1, 0.3, 0.3, 0.3]),
        _settings(40, 100, batch=6, learning_rate=0.08, validate_every=5),
    ),
    "mnist-mlp-spline": NetworkRecipe(
        "10 splines for training a deep dense network on MNIST in three epochs",
        "mnist", dense_digits,
        accelerated(
            mlp, (28, 28), [1, 20, 60, 150, 250, 360], [0.6, 0.2, 0.1, 0.2, 0.24, 0.015], kind="spline", ties="tensor"
        ),
        _settings(22, 150, batch=3, curriculum=((12, 60),), learning_rate=0.06, validate_every=11),
        Settings(
            meta_steps=16, horizon=360, batch=3, learning_rate=0.12, betas=(0.8, 0.95), validate_every=4,
            validation_batch=6, validation_horizons=(1.0,), save_every=1,
            objective=Objective("log_value", every=120, differentiation="evolution", pairs=4, spread=0.12),
        ),
        minibatch=500, learning_minibatch=500, tuning_networks=8, descent_shape="falling",
    ),
    "mnist-cnn-diagonal": NetworkRecipe(
        "30 multipliers of the gradient for training a small convolutional network on MNIST in two epochs",
        "mnist", convolutional_digits,
        accelerated(small_cnn, (1, 14, 14), [1, 10, 30, 60, 100, 120], [0.1, 0.2, 0.3, 0.45, 0.45, 0.2], cap=60),
        _settings(20, 120, batch=3, curriculum=((8, 60),), learning_rate=0.03, validate_every=5),
        minibatch=1000, learning_minibatch=400,
    ),
    "omniglot-diagonal": NetworkRecipe(
        "30 multipliers of the gradient for few-shot learning of characters from random initialisations",
        "omniglot", characters_from_random,
        accelerated(small_cnn, (1, 14, 14), [1, 10, 30, 60, 100], [0.08, 0.12, 0.15, 0.5, 1.5], cap=60),
        _settings(24, 100, batch=8, curriculum=((12, 50),), learning_rate=0.03, validate_every=3),
        tuning_networks=60, descent_shape="steady",
    ),
    "omniglot-diagonal-reptile": NetworkRecipe(
        "30 multipliers of the gradient for few-shot learning of characters from the initialisation of Reptile",
        "omniglot", characters_from_reptile,
        accelerated(small_cnn, (1, 14, 14), [1, 10, 30, 60, 100], [0.4, 0.8, 1.5, 4.0, 8.0], cap=60),
        _settings(24, 100, batch=8, curriculum=((12, 50),), learning_rate=0.03, validate_every=3),
        tuning_networks=60, descent_shape="steady",
    ),
    REPTILE_START: ReptileRecipe(
        "a start of a small convolutional network for few-shot learning of characters, by Reptile",
        steps=800, options={"batch": 16, "inner_steps": 10, "inner_step_size": 0.1, "epsilon": 1.0},
    ),
}  # fmt: skip
