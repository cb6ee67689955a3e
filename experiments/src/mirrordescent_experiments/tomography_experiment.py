"""Poisson tomography with x > 0: mirror methods against EM and primal-dual methods.

Everything is measured in passes over the data: a method that uses one of n groups of angles per
step makes n steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor

from mirrordescent import zoo
from mirrordescent.contests.contest import Contest, recorded_iterations
from mirrordescent.domains import PositiveOrthant
from mirrordescent.learn.families import SEEDS
from mirrordescent.methods import PDHG, Equipped, Method, ProjectedNesterov, Wrapper
from mirrordescent.oracles import InTurn, Oracle, Relative
from mirrordescent.problems import PoissonTomography, Problem
from mirrordescent.racing import TunablePrimalDual, TunableSolver
from mirrordescent.recipes.task_families import TomographyFamily
from mirrordescent.recipes.tomography_maps import groups_of_angles
from mirrordescent.references import certify
from mirrordescent.solving import Snapshot
from mirrordescent.trees import Tree, norm, tree_map
from mirrordescent_experiments.baselines import mean_by
from mirrordescent_experiments.emission import MLEM, OSEM, SPDHG
from mirrordescent_experiments.result import Claim, Curve, Panel, Result, Table
from mirrordescent_experiments.scales import Say, Scale

DISTANCE = "distance ‖x − phantom‖ / ‖phantom‖"
ENTRY = "ellipse-tomography"
LEARNED = {
    "LAMD": f"{ENTRY}-exact",
    "LAMD, random angles": f"{ENTRY}-random",
    "LAMD, angles in turn": ENTRY,
}
NOT_LEARNED = "AMD, angles in turn, before learning"
ALL_ANGLES = ("MLEM", "PDHG", "early PDHG", "Nesterov", "early Nesterov")
SUBSETS = ("OSEM", "SPDHG", "early SPDHG")
# passes at which step sizes are tuned
EARLY = 5
LATE = 20
LEVELS = (1e-1, 1e-2, 1e-3, 1e-4)
TOLERANCE = 1e-8  # tolerance of the certified optima, since gaps become small
SHOWN = 3  # passes after which pictures are taken


@dataclass(frozen=True)
class Size:
    """How large an experiment is."""

    problems: int
    side: int
    angles: int
    groups: int
    passes: int
    repeats: int  # the fastest run counts, since a busy machine only ever adds to the time


SIZES: dict[Scale, Size] = {
    "quick": Size(2, 24, 12, 4, 8, 1),
    "standard": Size(8, 64, 40, 8, 60, 5),
    "paper": Size(32, 64, 40, 8, 200, 5),
}


class PassState(NamedTuple):
    """Passes made, the iterate, and the method's own state."""

    k: int
    x: Tree
    inner: Any


class Passes(Wrapper[PassState]):
    """One step of a method for each group of angles, counted as a single step."""

    def __init__(self, method: Method[Any], steps: int) -> None:
        super().__init__(method)
        self.steps = steps

    def inner(self, state: PassState) -> Any:
        """Return the method's own state."""
        return state.inner

    def init(self, x0: Tree, problem: Problem | None = None) -> PassState:
        """Start the method."""
        return PassState(0, x0, self.method.init(x0, problem))

    def step(
        self, problem: Problem, state: PassState, oracle: Oracle, generator: Generator | None = None
    ) -> PassState:
        """Make a pass."""
        inner = state.inner
        for _ in range(self.steps):
            inner = self.method.step(problem, inner, oracle, generator)
        return PassState(state.k + 1, self.method.answer(inner), inner)


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Compare learned mirror methods with tuned classical methods on unseen phantoms."""
    size = SIZES[scale]
    family = TomographyFamily(size.side, size.angles, terms=size.groups)
    seeds = SEEDS + torch.arange(
        2000, 2000 + size.problems
    )  # not those of training, nor of validation
    (phantoms, problem) = family.simulate(seeds)
    (_, training) = family.simulate(seeds - SEEDS)
    contest, rehearsal = (_contest(each, size.passes) for each in (problem, training))
    say(f"{size.problems} problems certified, {float(problem.y.mean()):.0f} counts per cell")
    settings = {
        "scale": scale,
        **vars(size),
        "ρ": problem.weight,
        "counts per cell": float(problem.y.mean()),
    }
    result = Result(
        "tomography", "Poisson tomography of ellipse phantoms (an iteration is a pass)", settings
    )
    race = _Race(contest, rehearsal, phantoms, size.repeats)
    for name, entry in LEARNED.items():
        race.run(
            name, cast(Method[Any], zoo.load(entry)), every=1 if name == "LAMD" else size.groups
        )
    race.run(NOT_LEARNED, groups_of_angles(InTurn()).requires_grad_(False), every=size.groups)
    race.run("MLEM", MLEM())
    race.run("OSEM", OSEM(), every=size.groups)
    for tunable, every in ((PDHG_RATIO, 1), (SPDHG_RATIO, size.groups), (NESTEROV_STEP, 1)):
        race.run_tuned(tunable, every, EARLY, "early ")
        race.run_tuned(tunable, every, LATE)
    say("all methods done")
    result.panels["gap against passes"] = Panel(race.gaps)
    result.panels["gap against seconds"] = Panel(race.gaps, against="seconds")
    result.panels["distance to the phantom"] = Panel(
        race.distances, quantity=DISTANCE, scales=("log", "linear")
    )
    minimiser = certify(problem, TOLERANCE).x.to(phantoms)
    away = float(_distance(minimiser, phantoms).mean())
    first = contest.problem.value(contest.x0).double() - contest.lower
    result.tables["Passes, and seconds, until the mean gap is below a share of the first"] = Table(
        ("method", *(f"{level:g}" for level in LEVELS), "ms per pass"),
        [_times(curve, float(first.mean())) for curve in race.gaps],
    )
    result.pictures["one phantom"] = {
        "phantom": phantoms[0],
        **{
            f"{name}, {SHOWN} passes": race.shown[name][0]
            for name in ("MLEM", "SPDHG", "OSEM", *list(LEARNED)[-1:])
        },
        "minimiser": minimiser[0],
    }
    if scale != "quick":
        result.claims = _claims(result.panels, away)
    return result


PDHG_RATIO = TunablePrimalDual("PDHG", PDHG, (0.1, 0.2, 0.5, 1.0, 2.0, 5.0))
SPDHG_RATIO = TunableSolver("SPDHG", SPDHG, [0.1, 0.2, 0.5, 1.0, 2.0, 5.0])
NESTEROV_STEP = TunableSolver(
    "Nesterov",
    lambda t: Equipped(ProjectedNesterov(PositiveOrthant(), t), Relative()),
    [0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0],
)


def _contest(problem: PoissonTomography, passes: int) -> Contest:
    return Contest(
        problem,
        problem.start(),
        certify(problem, TOLERANCE).lower,
        passes,
        recorded_iterations(passes),
    )


class _Race:
    """Curves of gaps and distances, and pictures, of everything that ran."""

    def __init__(
        self, contest: Contest, rehearsal: Contest, phantoms: Tensor, repeats: int
    ) -> None:
        self.contest = contest
        self.rehearsal = rehearsal
        self.phantoms = phantoms
        self.repeats = repeats
        self.gaps: list[Curve] = []
        self.distances: list[Curve] = []
        self.shown: dict[str, Tensor] = {}

    def run(self, name: str, method: Method[Any], every: int = 1) -> None:
        distances: dict[int, Tensor] = {}

        def watch(look: Snapshot) -> None:
            x = cast(Tensor, look.x)
            distances[look.k] = _distance(x, self.phantoms)
            if look.k == SHOWN:
                self.shown[name.split(" (")[0]] = x

        solutions = [
            self.contest.solve(Passes(method, every), callbacks=[watch])
            for _ in range(self.repeats)
        ]
        curve = self.contest.curve(name, solutions[0])
        fastest = [
            min(times)
            for times in zip(*(solution.trace.seconds for solution in solutions), strict=True)
        ]
        curve = replace(curve, seconds=fastest)
        self.gaps.append(curve)
        reached = torch.stack(
            [distances.get(k, distances[max(distances)]) for k in curve.iterations]
        )
        self.distances.append(Curve(name, curve.iterations, curve.seconds, reached))

    def run_tuned(self, tunable: TunableSolver, every: int, at: int, prefix: str = "") -> None:
        """Tune on other problems for the gap after some passes, then run on these."""

        def make(setting: Any) -> Method[Any]:
            return Passes(tunable.make(setting), every)

        wrapped = TunableSolver(tunable.name, make, tunable.settings)
        setting = self.rehearsal.tune(wrapped, min(at, self.rehearsal.iterations))
        self.run(f"{prefix}{tunable.label(setting)}", tunable.make(setting), every)


def _distance(x: Tensor, phantoms: Tensor) -> Tensor:
    return norm(tree_map(torch.sub, x, phantoms)) / norm(phantoms)


def _times(curve: Curve, first: float) -> list[str]:
    gaps = curve.values.mean(1).tolist()
    cells = []
    for level in LEVELS:
        reached = next((i for i, gap in enumerate(gaps) if gap <= level * first), None)
        cells.append(
            "–"
            if reached is None
            else f"{curve.iterations[reached]}, {curve.seconds[reached]:.2f} s"
        )
    return [curve.name, *cells, f"{1000 * curve.seconds[-1] / curve.iterations[-1]:.2f}"]


def _claims(panels: dict[str, Panel], minimiser: float) -> list[Claim]:
    gaps = panels["gap against passes"]
    distances = panels["distance to the phantom"]
    last = gaps.curves[0].iterations[-1]
    claims = [_ahead(gaps, "LAMD", ALL_ANGLES, passes) for passes in (5, 10, 20, last)]
    for name in ("LAMD, random angles", "LAMD, angles in turn"):
        claims += [
            _ahead(gaps, name, (*ALL_ANGLES, *SUBSETS), passes) for passes in (1, 5, 10, 20, last)
        ]
    claims += [
        _ahead_in_time(gaps, name, (*ALL_ANGLES, *SUBSETS), 10)
        for name in ("LAMD", "LAMD, angles in turn")
    ]
    claims.append(_ahead(gaps, "LAMD, angles in turn", (NOT_LEARNED,), 10))
    names = ("LAMD, angles in turn", "OSEM", "SPDHG", "MLEM")
    soon = {name: distances[name].mean_at(SHOWN) for name in names}
    claims.append(
        Claim(
            (
                f"after {SHOWN} passes, LAMD with angles in turn is as close to the phantom as "
                "the minimiser, within 5 %"
            ),
            soon[names[0]] <= 1.05 * minimiser,
            ", ".join(
                f"{name} {number:.3f}" for name, number in {**soon, "minimiser": minimiser}.items()
            ),
        )
    )
    return claims


def _ahead(panel: Panel, name: str, rivals: tuple[str, ...], passes: int) -> Claim:
    numbers = {each: panel[each].mean_at(passes) for each in (name, *rivals)}
    when = f"after {passes} passes" if passes > 1 else "after one pass"
    return _compared(f"{when}, {name} is ahead of {', '.join(rivals)}", name, numbers)


def _ahead_in_time(panel: Panel, name: str, rivals: tuple[str, ...], passes: int) -> Claim:
    ours = panel[name]
    moment = ours.seconds[ours.iterations.index(passes)]
    numbers = {each: mean_by(panel[each], moment) for each in (name, *rivals)}
    return _compared(
        f"after {moment:.3f} s, when {name} has made {passes} passes, it is ahead of all",
        name,
        numbers,
    )


def _compared(statement: str, name: str, numbers: dict[str, float]) -> Claim:
    measured = ", ".join(f"{each} {number:.3g}" for each, number in numbers.items())
    return Claim(
        statement,
        numbers[name] < min(number for each, number in numbers.items() if each != name),
        measured,
    )
