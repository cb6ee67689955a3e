"""Section 5.4: a support vector machine on features of fours and nines, from many starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from mirrordescent import zoo
from mirrordescent.contests.contest import Contest, grid
from mirrordescent.contests.svm_contests import TOLERANCE, load_features, machine, starts
from mirrordescent.data import Features
from mirrordescent.learn.control import without_map
from mirrordescent.learn.recipe import CONTROL
from mirrordescent.methods import MD, SGD, Method
from mirrordescent.mirrors import Diagonal, MirrorMap
from mirrordescent.oracles import Minibatch, Oracle
from mirrordescent.problems import SVM, Problem
from mirrordescent.racing import TunableSolver
from mirrordescent.recipes.image_maps import fours_and_nines, machine_quadratic, matrix_of
from mirrordescent.references import certify
from mirrordescent.solving import Snapshot
from mirrordescent_experiments.baselines import BASELINES, WIDE_NESTEROV
from mirrordescent_experiments.claims import by_margin, control_claims, ratio
from mirrordescent_experiments.extensions import (
    CONTROLLED,
    LABELS,
    NO_MAP,
    SHOWN,
    beside_controls,
    choose_rules,
    with_controls,
    with_rules,
)
from mirrordescent_experiments.intervals import paired
from mirrordescent_experiments.result import WIDTH, Claim, Curve, Panel, Result, Table
from mirrordescent_experiments.scales import Say, Scale

MATRIX = "mnist49-svm-quadratic"
PLAIN_MATRIX = "mnist49-svm-matrix"
FULL = "full matrix, accelerated"
PLAIN = "full matrix"
OF_DATA = ("matrix", "diagonal")
GRADIENT_METHODS = ("LMD", "LSMD", "LASMD", "GD", "Nesterov", "Adam", "SGD")


@dataclass(frozen=True)
class Size:
    """How large the experiment is."""

    starts: int
    extension_starts: int
    iterations: int
    batch: int


SIZES: dict[Scale, Size] = {
    "quick": Size(4, 2, 40, 50),
    "standard": Size(100, 10, 2000, 500),
    "paper": Size(100, 100, 2000, 500),
}


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Compare all methods at equal iterations by hinge loss and test error."""
    size = SIZES[scale]
    features, source = load_features(directory, bundled=scale == "quick")
    optimum = certify(machine(features), TOLERANCE)
    result = Result(
        "svm",
        "SVM on features of fours and nines",
        {"scale": scale, "features": source, "C": 1.0, **vars(size)},
    )
    contest = starts(features, size.starts, size.iterations, seed=0)
    result.settings[WIDTH] = float(f"{contest.width:.3g}")
    few = starts(features, size.extension_starts, size.iterations, seed=1)
    batch = Minibatch(size.batch)
    result.panels, rules = choose_rules(_learned, few, batch)
    say(f"best extensions: {', '.join(f'{name} {rule}' for name, rule in rules.items())}")
    runs = _Runs(contest, features)
    for learned in with_rules(_learned, rules, batch):
        runs.add(*learned)
    for name, method in geometries(directory) if source == "mnist" else ():
        runs.add(name, method, None)
    for name, mirror in of_the_data(contest.problem).items():
        tunable = TunableSolver(name, partial(MD, mirror), grid(1e-3, 1.0))
        setting = few.tune(tunable, min(100, size.iterations))
        runs.add(f"{name} ({setting:g})", tunable.make(setting), None)
    for tunable in (*BASELINES, WIDE_NESTEROV, TunableSolver("SGD", SGD, grid(2e-4, 1e-1), batch)):
        setting = few.tune(tunable, min(100, size.iterations))
        runs.add(f"{tunable.name} ({setting:g})", tunable.make(setting), tunable.oracle)
    result.panels["hinge loss"] = Panel(runs.gaps)
    if source == "mnist":
        _, control_rules = choose_rules(_control, few, batch, dict.fromkeys(LABELS, CONTROLLED))
        without = [
            contest.run(*each) for each in with_rules(_control, control_rules, batch, NO_MAP)
        ]
        result.panels["controls"] = beside_controls(result.panels["hinge loss"], without)
        result.panels["hinge loss"] = with_controls(result.panels["hinge loss"], without, SHOWN)
    result.panels["test error"] = Panel(runs.errors, "share of test digits misclassified")
    error = float(_error(optimum.x, features).mean())
    result.tables["References"] = _references(features, float(optimum.value), error)
    if scale != "quick":
        result.claims = _claims(result, float(optimum.value))
        if "controls" in result.panels:
            result.claims += control_claims("SVM", result.panels["controls"])
    return result


def geometries(directory: Path | None) -> Iterator[tuple[str, Method[Any]]]:
    """Yield AMD with a learned full matrix, its control, and both before learning.

    They are for the features of MNIST.
    """
    for name, entry in ((FULL, MATRIX), (PLAIN, PLAIN_MATRIX)):
        yield name, cast(Method[Any], zoo.load(entry).double())
        yield f"{name}{NO_MAP}", cast(Method[Any], zoo.load(f"{entry}{CONTROL}").double())
    begun = (
        machine_quadratic(torch.Generator(), fours_and_nines(directory))
        .double()
        .requires_grad_(False)
    )
    yield f"{FULL}, not learned", begun
    yield f"{FULL}{NO_MAP}, not learned", without_map(begun)


def of_the_data(problem: Problem) -> dict[str, MirrorMap]:
    """Return preconditioners without learning: the full matrix of the data, and its diagonal."""
    machine = cast(SVM, problem)
    points = machine.signed.flatten(0, -2)
    return {
        "GD, matrix of the data": matrix_of(machine),
        "GD, diagonal of the data": Diagonal(1 + 0.1 * points.square().mean(0)),
    }


class _Runs:
    """Curves of loss and of test error, gathered method by method."""

    def __init__(self, contest: Contest, features: Features) -> None:
        self.contest = contest
        self.features = features
        self.gaps: list[Curve] = []
        self.errors: list[Curve] = []

    def add(self, name: str, method: Method[Any], oracle: Oracle | None) -> None:
        seen: list[tuple[int, float, Tensor]] = []

        def look(at: Snapshot) -> None:
            if at.k in self.contest.recorded:
                seen.append((at.k, at.seconds, _error(cast(Tensor, at.x), self.features)))

        self.gaps.append(
            self.contest.curve(name, self.contest.solve(method, oracle, callbacks=[look]))
        )
        iterations, seconds, errors = zip(*seen, strict=True)
        self.errors.append(Curve(name, list(iterations), list(seconds), torch.stack(errors)))


def _learned(label: str, suffix: str = "") -> Method[Any]:
    return cast(
        Method[Any], zoo.load(f"mnist49-svm-{'conjugate' if label else 'pair'}{suffix}").double()
    )


_control = partial(_learned, suffix=CONTROL)


def _error(x: Tensor, features: Features) -> Tensor:
    """Return the share of test digits on the wrong side, per machine."""
    scores = x[:, :-1] @ features.test.T.to(x) + x[:, -1:]
    return (scores.sign() != features.test_labels).double().mean(1)


def _references(features: Features, optimum: float, error: float) -> Table:
    """Compare the certified optimum with liblinear, which also regularises the bias."""
    from sklearn.svm import LinearSVC

    liblinear = LinearSVC(
        loss="hinge", C=1 / len(features.train), intercept_scaling=10.0, tol=1e-6, max_iter=200_000
    )
    liblinear.fit(features.train.double().numpy(), features.train_labels.numpy())
    x = torch.from_numpy(liblinear.coef_).reshape(1, -1)
    x = torch.cat([x, torch.tensor([[float(liblinear.intercept_[0])]], dtype=x.dtype)], 1)
    rows = [
        ("certified optimum", f"{optimum:.6f}", f"{error:.4f}"),
        (
            "liblinear",
            f"{float(machine(features).value(x)):.6f}",
            f"{float(_error(x, features)):.4f}",
        ),
    ]
    return Table(("solver", "hinge loss objective", "test error"), rows)


def _claims(result: Result, optimum: float) -> list[Claim]:
    losses = result.panels["hinge loss"]
    errors = result.panels["test error"]
    last = losses.curves[0].iterations[-1]
    gaps = {
        name: losses[name].mean_at(last) for name in ("LAMD", *GRADIENT_METHODS, "wide Nesterov")
    }
    listed = ", ".join(f"{name} {gap:.2g}" for name, gap in gaps.items())
    error = {name: errors[name].mean_at(last) for name in ("LAMD", "GD", "Nesterov", "Adam", "SGD")}
    tested = ", ".join(f"{name} {share:.2%}" for name, share in error.items())

    def gap(name: str, at: int = last) -> Tensor:
        return losses[name].values[losses[name].iterations.index(at)].double()

    def share(name: str) -> Tensor:
        return errors[name].values[errors[name].iterations.index(last)].double()

    apart = [paired(share("LAMD") - share(name)) for name in ("GD", "Nesterov", "Adam")]
    lower = paired(share("LAMD") - share("SGD"))
    early = ", ".join(f"{name} {losses[name].mean_at(100):.3g}" for name in ("LSMD", "GD"))
    falls = {name: paired(ratio(gap(name, last // 10), gap(name))) for name in ("LAMD", "Nesterov")}
    level = paired(ratio(gap("LSMD"), gap("SGD")))
    steadier = paired(ratio(_wobble(losses["SGD"]), _wobble(losses["LSMD"])))
    differences = ", ".join(
        f"{100 * e.mean:.2f} [{100 * e.low:.2f}, {100 * e.high:.2f}]" for e in apart
    )
    two = math.log10(2)
    return [
        by_margin(
            f"LAMD has the lowest hinge loss of the gradient methods at k = {last}",
            gap("LAMD"),
            [gap(name) for name in GRADIENT_METHODS],
            listed,
        ),
        by_margin(
            "LAMD ends within 1e-3 of the certified optimum, relative",
            gap("LAMD"),
            [torch.full_like(gap("LAMD"), 1e-3 * optimum)],
            f"{gaps['LAMD'] / optimum:.2g}",
        ),
        Claim.by(
            "LAMD's test error is within 0.3 points of the baselines'",
            min(3e-3 - max(-each.low, each.high) for each in apart),
            min(3e-3 - max(each.low, -each.high, 0.0) for each in apart),
            f"{tested}; differences {differences} points",
        ),
        Claim.by(
            "SGD's test error is below LAMD's",
            lower.low,
            lower.high,
            (
                f"{tested}; by {100 * lower.mean:.2f} [{100 * lower.low:.2f}, "
                f"{100 * lower.high:.2f}] points"
            ),
        ),
        Claim.by(
            (
                f"LAMD does not plateau (its gap falls tenfold over k = {last // 10} … "
                f"{last}), Nesterov does"
            ),
            min(falls["LAMD"].low - 1, 1 - falls["Nesterov"].high),
            min(falls["LAMD"].high - 1, 1 - falls["Nesterov"].low),
            "; ".join(f"{name} falls by {fall} decades" for name, fall in falls.items()),
        ),
        by_margin(
            "LSMD on batches is at least on a par with full-batch GD at k = 100",
            gap("LSMD", 100),
            [gap("GD", 100)],
            early,
        ),
        Claim.by(
            "LSMD ends at the level of SGD, within a factor of 2",
            two - max(-level.low, level.high),
            two - max(level.low, -level.high, 0.0),
            f"LSMD {gaps['LSMD']:.3g}, SGD {gaps['SGD']:.3g}; apart by {level} decades",
        ),
        *_matrix_claims(losses),
        Claim.by(
            "LSMD fluctuates less than SGD over the last half of the run",
            steadier.low,
            steadier.high,
            f"standard deviations differ by {steadier} decades",
        ),
    ]


def _matrix_claims(losses: Panel) -> list[Claim]:
    """Judge the full matrices by their controls and by the preconditioners of the data."""
    found = []
    for name in (each for each in (FULL, PLAIN) if each in losses.names):
        rivals = {"its control, learned alike": f"{name}{NO_MAP}"}
        rivals |= {
            f"gradient descent with the {what} of the data": f"GD, {what} of the data"
            for what in OF_DATA
        }
        for k in (10, 100):
            at = {
                each: losses[each].values[losses[each].iterations.index(k)].double()
                for each in (name, *rivals.values())
            }
            for said, rival in rivals.items():
                factor = 3.0 if NO_MAP in rival else 1.0
                times = "at least 3 times below" if NO_MAP in rival else "below"
                listed = ", ".join(
                    f"{each} {losses[each].mean_at(k):.3g}" for each in (name, rival)
                )
                statement = f"{name}, learned, is {times} {said}, at k = {k}"
                found.append(by_margin(statement, at[name], [at[rival]], listed, factor))
    return found


def _wobble(curve: Curve) -> Tensor:
    """Return how much each run's loss varies over its last half."""
    late = torch.tensor(curve.iterations) >= curve.iterations[-1] // 2
    return curve.values[late].double().std(0)
