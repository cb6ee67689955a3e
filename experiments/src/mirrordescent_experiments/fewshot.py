"""Section 7: classify ten characters from five drawings, from random and from Reptile's starts."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from mirrordescent import data, zoo
from mirrordescent.contests.contest import grid
from mirrordescent.contests.training_runs import (
    LOSS,
    PAPER_ADAM,
    TEST_ACCURACY,
    TRAIN_ACCURACY,
    Training,
    panels,
)
from mirrordescent.data.splits import Split
from mirrordescent.learn.families import SEEDS
from mirrordescent.methods import SGD, Adam, Method
from mirrordescent.oracles import Exact
from mirrordescent.problems.network_training import Initialisation
from mirrordescent.racing import TunableSolver
from mirrordescent.recipes.architectures import small_cnn
from mirrordescent.recipes.network_maps import REPTILE_START
from mirrordescent.recipes.printed_maps import PRINTED_START
from mirrordescent.recipes.small_cnn_training import SmallCNNTraining
from mirrordescent.recipes.task_families import FewShotFamily
from mirrordescent_experiments.extensions import NO_MAP
from mirrordescent_experiments.intervals import resampled
from mirrordescent_experiments.learned_networks import (
    CAPPED,
    LMD,
    PRINTED,
    PRINTED_CONTROL,
    capped,
    learned,
    printed,
    without_its_map,
)
from mirrordescent_experiments.matrix_geometry import POLAR, TUNED, matrix_methods
from mirrordescent_experiments.network_training_curves import PAPER_SGD
from mirrordescent_experiments.result import Claim, Curve, Panel, Result, Table
from mirrordescent_experiments.scales import Say, Scale

CHUNK = 20  # tasks trained together: the data of more do not fit into the processor's cache
FIRST_TEST_TASK = SEEDS + 1000  # beyond the tasks that learning was validated on
GRIDS = (TunableSolver("SGD", SGD, grid(1e-1, 5.0)), TunableSolver("Adam", Adam, grid(5e-3, 2e-1)))
REPTILE = "Reptile + "
PRINTED_REPTILE = "Reptile as printed + "
STARTS = {"": None, REPTILE: REPTILE_START, PRINTED_REPTILE: PRINTED_START}
OURS = ("", REPTILE)  # where methods of this library are compared with tuned baselines
AS_IN_THE_PAPER = (
    "",
    PRINTED_REPTILE,
)  # where the paper compares, on as many tasks as can be afforded
COMPARED = ("SGD", "Adam", LMD, PRINTED)
PUBLISHED = {
    "SGD": ("2.08", "0.461", "0.107", "77.9%"),
    "Adam": ("0.712", "2.6e-3", "1.0e-3", "79.1%"),
    "LMD": ("1.42", "1.6e-2", "6.1e-3", "76.6%"),
    "LAMD": ("0.688", "1.0e-3", "3.2e-5", "73.0%"),
    "Reptile + SGD": ("0.288", "4.3e-2", "2.2e-2", "77.9%"),
    "Reptile + Adam": ("1.7e-2", "1.6e-4", "7.2e-5", "76.6%"),
    "Reptile + LMD": ("0.204", "2.1e-2", "1.1e-2", "77.6%"),
    "Reptile + LAMD": ("0.606", "2.3e-3", "6.5e-4", "77.2%"),
}

Statistic = Callable[[Tensor], float]


@dataclass(frozen=True)
class Size:
    """Size of the experiment: tasks, tasks for tuning, steps, evaluations in a run.

    The methods that the paper compares are run on so many ``further`` tasks, where only the end is
    looked at.
    """

    tasks: int
    tuning_tasks: int
    steps: int
    looks: int
    further: int


SIZES: dict[Scale, Size] = {
    "quick": Size(3, 1, 20, 10, 2),
    "standard": Size(500, 20, 100, 10, 500),
    "paper": Size(1000, 100, 100, 20, 9000),
}


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Train a network on all drawings of every task, and test it on unseen drawings."""
    size = SIZES[scale]
    training, test, source = load_characters(scale, directory)
    runs: list[dict[str, Curve]] = []
    further: list[dict[str, Curve]] = []
    for start, initial in STARTS.items():
        if initial is not None and initial not in zoo.list():
            continue  # claims about it are then not measured
        network = None if initial is None else cast(Initialisation, zoo.load(initial)).network
        family = FewShotFamily(
            small_cnn(), training, test, initial=network, training=SmallCNNTraining
        )
        tuning = _training(
            family, torch.arange(SEEDS // 4, SEEDS // 4 + size.tuning_tasks), size, held_out=False
        )
        for name, method in _methods(start, tuning):
            runs.append(_run(start + name, method, family, size))
            say(f"{start}{name}: loss {float(runs[-1][LOSS].values[-1].mean()):.4g}")
            if start in AS_IN_THE_PAPER and name.split(" (")[0] in COMPARED:
                more = _run(
                    start + name,
                    method,
                    family,
                    replace(size, tasks=size.further, looks=1),
                    size.tasks,
                )
                further.append({what: _ends(curve, more[what]) for what, curve in runs[-1].items()})
    settings = {"scale": scale, "characters": source, **vars(size)}
    result = Result("fewshot", "Characters from five drawings each", settings, panels(runs))
    result.tables["Methods"] = _table(result.panels)
    result.tables[f"The paper's methods on {size.tasks + size.further} tasks"] = _ends_table(
        panels(further)
    )
    result.tables["Reptile as printed: loss after its 10 inner steps, on held-out tasks"] = (
        _reptile_table()
    )
    result.tables["Published by the authors of the paper"] = _published()
    if scale != "quick":
        result.claims = [*paper_claims(panels(further)), *claims(result.panels)]
    return result


def load_characters(scale: Scale, directory: Path | None) -> tuple[Tensor, Tensor, str]:
    """Return training and test characters of Omniglot, or digits of scikit-learn."""
    if scale != "quick":
        with contextlib.suppress(data.DataMissing):
            training, test = (
                data.omniglot_characters(split, 14, directory) for split in ("train", "test")
            )
            return training, test, "omniglot"
    return _drawings("train"), _drawings("test"), "digits"


def _drawings(split: Split) -> Tensor:
    """Return twenty drawings of every digit."""
    images, labels = data.digits(split, size=14)
    return torch.stack([images[labels == digit][:20] for digit in range(10)])


def _methods(start: str, tuning: Training) -> Iterator[tuple[str, Method[Any]]]:
    """Yield SGD and Adam as in the paper and tuned, and what was learned from this start."""
    yield f"SGD ({PAPER_SGD:g})", SGD(PAPER_SGD)
    yield f"Adam ({PAPER_ADAM:g})", Adam(PAPER_ADAM)
    if start == PRINTED_REPTILE:
        yield from printed("omniglot-diagonal-reptile-printed").items()
        yield from without_its_map(tuning).items()
        return
    for tunable in GRIDS:
        setting = tuning.tune(tunable)
        yield f"tuned {tunable.name} ({setting:g})", tunable.make(setting)
    yield from (
        capped("omniglot-diagonal-reptile") if start else learned("omniglot-diagonal")
    ).items()
    if not start:
        yield from without_its_map(tuning).items()
    yield from matrix_methods(tuning)


def _training(family: FewShotFamily, seeds: Tensor, size: Size, held_out: bool) -> Training:
    tasks = family.tasks(seeds, held_out)
    draw = family.begin(tasks, seeds)
    images = tasks.test_images.unsqueeze(2)
    return Training(
        draw.problem,  # type: ignore[arg-type]
        draw.x0,  # type: ignore[arg-type]
        Exact(),
        size.steps,
        size.looks,
        images,
        tasks.test_labels,
    )


def _run(
    name: str, method: Method[Any], family: FewShotFamily, size: Size, first: int = 0
) -> dict[str, Curve]:
    """Run one method on test tasks, from a number on, chunk by chunk."""
    seeds = torch.arange(size.tasks) + FIRST_TEST_TASK + first
    chunks = [
        _training(family, some, size, held_out=True).run(name, method)
        for some in torch.split(seeds, CHUNK)
    ]
    return {what: reduce(_join, (chunk[what] for chunk in chunks)) for what in chunks[0]}


def _join(first: Curve, second: Curve) -> Curve:
    seconds = [a + b for a, b in zip(first.seconds, second.seconds, strict=True)]
    return Curve(first.name, first.iterations, seconds, torch.cat([first.values, second.values], 1))


def _ends(shown: Curve, further: Curve) -> Curve:
    """Join a curve and one that was looked at only at its ends, at both ends."""
    values = torch.cat([shown.values[[0, -1]], further.values[[0, -1]]], 1)
    return Curve(
        shown.name,
        [0, shown.iterations[-1]],
        [0.0, shown.seconds[-1] + further.seconds[-1]],
        values,
    )


def _mean(values: Tensor) -> float:
    return float(values.double().nan_to_num(nan=math.inf).mean())


def _median(values: Tensor) -> float:
    return float(values.double().nan_to_num(nan=math.inf).median())


def failures(losses: Tensor) -> int:
    """Return the number of networks that end no better than guessing, or without a number."""
    return int((~(losses < 0.99 * math.log(10))).sum())


def _share(values: Tensor) -> str:
    """Write a mean share with its 95 % interval."""
    half = 1.96 * float(values.double().std()) / len(values) ** 0.5
    return f"{float(values.mean()):.1%} ± {half:.1%}"


def _table(measured: dict[str, Panel]) -> Table:
    losses = measured[LOSS]
    rows = []
    last = losses.curves[0].iterations[-1]
    moments = (last // 10, last // 2, last)
    for curve in losses.curves:
        at = [curve.values[curve.iterations.index(k)] for k in moments]
        perfect = measured[TRAIN_ACCURACY].curves[losses.curves.index(curve)].values[-1] == 1
        tested = measured[TEST_ACCURACY].curves[losses.curves.index(curve)].values[-1]
        rows.append(
            [
                curve.name,
                *(f"{_mean(values):.3g}" for values in at),
                *(f"{_median(values):.3g}" for values in at),
                f"{failures(at[-1])} of {len(perfect)}",
                f"{float(perfect.double().mean()):.1%}",
                _share(tested),
            ]
        )
    columns = (
        "method",
        *(f"mean loss at {k}" for k in moments),
        *(f"median at {k}" for k in moments),
        "failed: no better than guessing",
        "all drawings learned",
        f"test accuracy at {last}, 95 %",
    )
    return Table(columns, rows)


def _ends_table(measured: dict[str, Panel]) -> Table:
    rows = []
    for losses, shares in zip(measured[LOSS].curves, measured[TEST_ACCURACY].curves, strict=True):
        end = losses.values[-1]
        rows.append(
            (
                losses.name,
                f"{_mean(end):.3g}",
                f"{_median(end):.3g}",
                f"{failures(end)} of {len(end)}",
                _share(shares.values[-1]),
            )
        )
    return Table(
        ("method", "mean loss", "median", "failed: no better than guessing", "test accuracy, 95 %"),
        rows,
    )


def _reptile_table() -> Table:
    """Return the curve that the card of the start has."""
    (stage,) = (
        zoo.card(PRINTED_START).stages
        if PRINTED_START in zoo.list()
        else ({"loss_against_problems": {}},)
    )
    rows = [(tasks, f"{loss:.4f}") for tasks, loss in stage["loss_against_problems"].items()]
    return Table(("tasks", "mean loss"), rows)


def _published() -> Table:
    rows = [(name, *numbers) for name, numbers in PUBLISHED.items()]
    return Table(
        ("method", "loss at 10", "loss at 50", "loss at 100", "test accuracy at 100"), rows
    )


def paper_claims(measured: dict[str, Panel]) -> list[Claim]:
    """Judge what the paper says about its methods, as it prints them, on all tasks."""
    losses = measured[LOSS]
    accuracy = measured[TEST_ACCURACY]
    names = set(losses.names)
    compared = ((LMD, "SGD"), (PRINTED, "Adam"))
    pairs = [(start + ours, start + rival) for start in AS_IN_THE_PAPER for ours, rival in compared]
    pairs.append((PRINTED, PRINTED_REPTILE + PRINTED))
    found = [
        _below(losses, ours, rival, statistic)
        for ours, rival in pairs
        if {ours, rival} <= names
        for statistic in (_mean, _median)
    ]
    others = [PRINTED_REPTILE + other for other in ("SGD", "Adam", PRINTED)]
    if {*others, PRINTED_REPTILE + LMD} <= names:
        found.append(_close(accuracy, PRINTED_REPTILE + LMD, others, 0.02))
    return [*found, *(_gap(accuracy, "Adam", ours) for ours in (LMD, PRINTED) if ours in names)]


def claims(measured: dict[str, Panel]) -> list[Claim]:
    """Judge learned methods against tuned baselines and controls at the last step."""
    losses = measured[LOSS]
    accuracy = measured[TEST_ACCURACY]
    names = set(losses.names)
    found = [
        _below(losses, start + ours, start + rival, statistic)
        for start in OURS
        for ours, rivals in (
            (LMD, ("tuned SGD", LMD + NO_MAP)),
            (PRINTED, ("tuned Adam", PRINTED_CONTROL)),
            (CAPPED, ("Adam", "tuned Adam", CAPPED + NO_MAP)),
            *((geometry, ("tuned Adam", "falling Adam")) for geometry in (POLAR, TUNED)),
        )
        for rival in rivals
        if {start + ours, start + rival} <= names
        for statistic in (_mean, _median)
    ]
    return [
        *found,
        _gap(accuracy, "Adam", CAPPED),
        *(
            _not_below(accuracy, start + each, start + "tuned Adam")
            for start in OURS
            for each in (POLAR, TUNED)
            if start + each in names
        ),
    ]


def _below(losses: Panel, name: str, rival: str, statistic: Statistic) -> Claim:
    """Whether a method's loss at the last step is below a rival's, by its mean or its median."""
    ends = [losses[each].values[-1] for each in (name, rival)]
    ours, theirs = (statistic(end) for end in ends)
    word = "mean" if statistic is _mean else "median"
    margin = resampled(lambda a, b: statistic(b) - statistic(a), *ends)
    return Claim.by(
        f"{word} training loss at the end: {name} is below {rival}",
        margin.low,
        margin.high,
        f"margin {margin.mean:.2g} [{margin.low:.2g}, {margin.high:.2g}]: "
        + ", ".join(
            f"{losses[each].name} {number:.3g} ({failures(end)} of {len(end)} failed)"
            for each, number, end in zip((name, rival), (ours, theirs), ends, strict=True)
        ),
    )


def _close(accuracy: Panel, name: str, others: Sequence[str], within: float) -> Claim:
    """Whether a method's test accuracy is similar to others'."""
    means = {each: float(accuracy[each].values[-1].mean()) for each in (name, *others)}
    return Claim(
        f"test accuracy: {name} is within {100 * within:g} points of {', '.join(others)}",
        all(abs(means[name] - means[other]) <= within for other in others),
        ", ".join(f"{each} {_share(accuracy[each].values[-1])}" for each in means),
    )


def _gap(accuracy: Panel, name: str, other: str) -> Claim:
    """Judge whether a method generalises better, by the 95 % interval of the mean difference."""
    difference, half, measured = _difference(accuracy, name, other)
    return Claim(f"test accuracy: {name} is ahead of {other}", difference > half, measured)


def _not_below(accuracy: Panel, name: str, other: str) -> Claim:
    """Whether a method generalises no worse in the mean over tasks."""
    difference, _, measured = _difference(accuracy, name, other)
    return Claim(f"test accuracy: {name} is not below {other}", difference >= 0, measured)


def _difference(accuracy: Panel, name: str, other: str) -> tuple[float, float, str]:
    """Return the mean difference over tasks, half its 95 % interval, and both as text."""
    difference = (accuracy[name].values[-1] - accuracy[other].values[-1]).double()
    mean = float(difference.mean())
    half = 1.96 * float(difference.std()) / len(difference) ** 0.5
    return (
        mean,
        half,
        (
            f"{_share(accuracy[name].values[-1])} against {_share(accuracy[other].values[-1])}, "
            f"by {100 * mean:.2f} ± {100 * half:.2f} points"
        ),
    )
