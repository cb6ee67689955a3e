"""Section 7: dense and convolutional networks on MNIST, trained in learned layer-wise geometry."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from mirrordescent import data
from mirrordescent.contests.contest import grid
from mirrordescent.contests.training_runs import LOSS, PAPER_ADAM, TEST_ACCURACY, Training, panels
from mirrordescent.methods import SGD, Adam, Method
from mirrordescent.oracles import Epochs
from mirrordescent.problems.network_training import NetworkTraining
from mirrordescent.racing import TunableSolver
from mirrordescent.recipes.architectures import mlp, small_cnn
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent_experiments.learned_networks import (
    CAPPED,
    LMD,
    PRINTED,
    SHORTER,
    learned,
    map_claims,
    with_other_steps,
    without_its_map,
)
from mirrordescent_experiments.matrix_geometry import learned_for, matrix_claims, matrix_methods
from mirrordescent_experiments.result import Claim, Panel, Result
from mirrordescent_experiments.scales import Say, Scale
from mirrordescent_experiments.training_claims import at_least, at_most

Source = Literal["digits", "mnist", "fashion-mnist"]
PAPER_SGD = 1e-1
# of the networks that settings are chosen on, and of those shown
TUNING_SEED = 1000
TEST_SEED = 2000
COUNTED_SEED = 10_000
FALLS = (1.0, 0.6, 0.35)  # how steps of methods with matrix geometry, and of Adam, fall
SGD_GRID = grid(2e-2, 1.0)
MOMENTUM_GRID = grid(5e-3, 2e-1)
ADAM_GRID = grid(2e-3, 1e-1)


@dataclass(frozen=True)
class Size:
    """Size of an experiment: networks, networks for tuning, evaluations in a run, data.

    Of ``counted`` more networks it is only told how many do not learn at all.
    """

    networks: int
    tuning_networks: int
    looks: int
    evaluated: int
    counted: int = 0


SIZES: dict[Scale, Size] = {
    "quick": Size(2, 1, 2, 200, 2),
    "standard": Size(20, 3, 12, 10_000, 700),
    "paper": Size(20, 20, 40, 60_000, 1000),
}
CHUNK = 50  # networks trained together where they are only counted


@dataclass(frozen=True)
class Architecture:
    """A network, how its images are prepared, and how long it is trained."""

    name: str
    title: str
    entry: str
    model: Callable[[], nn.Module]
    prepare: Callable[[Tensor], Tensor]
    batch: int
    epochs: int
    claims: Callable[[dict[str, Panel]], list[Claim]]
    sizes: Mapping[Scale, Size]


def _mlp_claims(measured: dict[str, Panel]) -> list[Claim]:
    loss = measured[LOSS]
    accuracy = measured[TEST_ACCURACY]
    printed = []
    if PRINTED in loss.names:
        printed = [
            at_most(loss, LMD, 1 / 3, "SGD"),
            at_most(loss, PRINTED, 1 / 3, "SGD"),
            at_most(loss, PRINTED, 1.5, "Adam"),
            at_most(loss, PRINTED, 1, LMD),
            at_most(loss, SHORTER, 1 / 3, "SGD"),
            at_most(loss, SHORTER, 1.5, "Adam"),
            at_most(loss, SHORTER, 1, LMD),
            at_most(loss, CAPPED, 1, LMD),
        ]
    return [
        *printed,
        at_most(loss, CAPPED, 1 / 3, "SGD"),
        at_most(loss, CAPPED, 1.5, "Adam"),
        at_least(accuracy, CAPPED, "Adam", 1.0),
        *map_claims(loss),
        *_ahead(measured),
        *matrix_claims(measured, 0.034, 0.976),
    ]


def _cnn_claims(measured: dict[str, Panel]) -> list[Claim]:
    loss = measured[LOSS]
    accuracy = measured[TEST_ACCURACY]
    printed = []
    if PRINTED in loss.names:
        printed = [
            at_most(loss, LMD, 1.25, "Adam"),
            at_most(loss, PRINTED, 1.25, "Adam"),
            at_least(accuracy, PRINTED, "Adam", 0.2),
            at_most(loss, SHORTER, 1.25, "Adam"),
            at_least(accuracy, SHORTER, "Adam", 0.2),
        ]
    return [
        *printed,
        at_most(loss, CAPPED, 1.25, "Adam"),
        at_least(accuracy, CAPPED, "Adam", 0.2),
        *map_claims(loss),
        *_ahead(measured),
        *matrix_claims(measured, 0.085, 0.973),
    ]


def _ahead(measured: dict[str, Panel]) -> list[Claim]:
    """Whether capped LAMD is ahead of Adam as in the paper, and of the tuned baselines."""
    claims = []
    for rival in ("Adam", "tuned Adam", "AdamW", "tuned SGD with momentum"):
        claims += [
            at_most(measured[LOSS], CAPPED, 1, rival),
            at_least(measured[TEST_ACCURACY], CAPPED, rival, 0.0),
        ]
    return claims


ARCHITECTURES = {
    "mlp": Architecture(
        "mlp",
        "Dense networks on MNIST",
        "mnist-mlp-spline",
        mlp,
        lambda images: images,
        batch=500,
        epochs=3,
        claims=_mlp_claims,
        sizes=SIZES,
    ),
    "cnn": Architecture(
        "cnn",
        "Convolutional networks on MNIST",
        "mnist-cnn-diagonal",
        small_cnn,
        lambda images: data.halve(images).unsqueeze(1),
        batch=1000,
        epochs=2,
        claims=_cnn_claims,
        sizes={**SIZES, "standard": Size(20, 3, 6, 10_000, 300)},
    ),
}


def run(architecture: Architecture, scale: Scale, directory: Path | None, say: Say) -> Result:
    """Train with learned methods and with baselines, printed and tuned, on the same minibatches."""
    size = architecture.sizes[scale]
    source = source_for(scale, directory)
    shown, tuning = (
        training(architecture, source, size, count, seed, directory)
        for count, seed in ((size.networks, TEST_SEED), (size.tuning_networks, TUNING_SEED))
    )
    settings = {
        "scale": scale,
        "data": source,
        **vars(size),
        "batch": architecture.batch,
        "steps": shown.steps,
    }
    runs = []
    for name, method in _methods(
        architecture.entry, tuning, FALLS[:1] if scale == "quick" else FALLS
    ):
        runs.append(shown.run(name, method))
        say(f"{name}: loss {float(runs[-1][LOSS].values[-1].mean()):.4g}")
    measured = panels(runs)
    result = Result(architecture.name, architecture.title, settings, measured)
    dead = _dead(architecture, source, size, directory, say)
    if scale != "quick":
        result.claims = [*architecture.claims(measured), dead]
    return result


def _methods(
    entry: str, tuning: Training, falls: Sequence[float]
) -> Iterator[tuple[str, Method[Any]]]:
    """Yield all methods by name; each is tuned when it is yielded."""
    yield from learned(entry).items()
    yield from with_other_steps(f"{entry}-printed", tuning).items()
    yield from without_its_map(tuning).items()
    yield from matrix_methods(tuning, falls)
    yield from baselines(tuning)


def _dead(
    architecture: Architecture, source: Source, size: Size, directory: Path | None, say: Say
) -> Claim:
    """Return the number of networks that the learned geometry leaves no better than guessing."""
    worst = 0.0
    dead = 0
    for first in range(0, size.counted, CHUNK):
        count = min(CHUNK, size.counted - first)
        networks = training(architecture, source, size, count, COUNTED_SEED + first, directory)
        losses = networks.losses(learned_for(networks.steps))
        dead += int((~(losses < 0.99 * math.log(10))).sum())
        worst = max(worst, float(losses.nan_to_num(nan=math.inf).max()))
        say(f"{first + count} networks, {dead} dead, the largest loss {worst:.4g}")
    return Claim(
        f"{ENTRY}: no dead network among {size.counted}",
        dead == 0,
        f"{dead} dead, the largest loss {worst:.4g}",
    )


def source_for(scale: Scale, directory: Path | None) -> Source:
    """Return MNIST if it is there, scikit-learn's digits if it is not or at the quick scale."""
    if scale != "quick":
        with contextlib.suppress(data.DataMissing):
            data.mnist("test", directory)
            return "mnist"
    return "digits"


def training(
    architecture: Architecture,
    source: Source,
    size: Size,
    count: int,
    seed: int,
    directory: Path | None,
) -> Training:
    """Return ``count`` networks with the data they are trained and tested on."""
    (images, labels), test = (images_of(source, split, directory) for split in ("train", "test"))
    problem = NetworkTraining(
        architecture.model(),
        architecture.prepare(images),
        labels,
        evaluation=min(size.evaluated, len(labels)),
    )
    batch = min(architecture.batch, len(labels) // 4)
    return Training(
        problem,
        problem.initial(range(seed, seed + count)),
        Epochs(batch),  # the paper counts epochs
        steps=architecture.epochs * len(labels) // batch,
        looks=size.looks,
        test_inputs=architecture.prepare(test[0]),
        test_targets=test[1],
    )


def images_of(
    source: Source, split: Literal["train", "test"], directory: Path | None
) -> tuple[Tensor, Tensor]:
    """Return images (n, 28, 28) and their labels."""
    if source == "digits":
        return data.digits(split, size=28)
    return (data.mnist if source == "mnist" else data.fashion_mnist)(split, directory)


def baselines(tuning: Training) -> list[tuple[str, Method[Any]]]:
    """Return SGD and Adam as in the paper and tuned, and SGD with momentum and AdamW."""
    sgd = TunableSolver("SGD", SGD, SGD_GRID)
    momentum = TunableSolver("SGD with momentum", lambda t: SGD(t, 0.9), MOMENTUM_GRID)
    adam = TunableSolver("Adam", Adam, ADAM_GRID)
    best = {tunable.name: tuning.tune(tunable) for tunable in (sgd, momentum, adam)}
    return [
        (f"SGD ({PAPER_SGD:g})", SGD(PAPER_SGD)),
        (f"Adam ({PAPER_ADAM:g})", Adam(PAPER_ADAM)),
        *(
            (f"tuned {t.name} ({best[t.name]:g})", t.make(best[t.name]))
            for t in (sgd, momentum, adam)
        ),
        (f"AdamW ({best['Adam']:g})", Adam(best["Adam"], decay=1e-2)),
    ]
