"""A check, before time is spent on learning, of whether a class of problems suits it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from mirrordescent.automatic.classical import race_classical_solvers, typical_step
from mirrordescent.automatic.family_check import check_family
from mirrordescent.automatic.outside import OutsideResult, compare_with_rivals
from mirrordescent.learn.families import Pooled, ProblemFamily
from mirrordescent.methods.within_range import problem_features
from mirrordescent.racing import Contestant, Race

MODERATE = 1e-4
"""Relative gap below which classical and exact solvers usually win."""

FEW_ITERATIONS = 5
"""Iterations of a classical solver that leave nothing to learn."""

ALIKE = 100.0
"""Ratio of curvatures up to which problems count as alike."""

CHEAP = 20e-6
"""Seconds of a gradient below which the overhead of a step dominates."""

OUT_OF_REACH = 5.0
"""Factor that a learned solver rarely gains over a classical one."""

REPEATS = 5


@dataclass(frozen=True)
class Finding:
    """One aspect of a class of problems.

    Args:
        aspect: What was looked at.
        good: Whether it speaks for learning.
        words: What was found.
    """

    aspect: str
    good: bool
    words: str


@dataclass(frozen=True)
class Suitability:
    """Whether a class of problems looks suitable for learning, and why.

    Args:
        findings: All aspects that were looked at.
    """

    findings: tuple[Finding, ...]

    @property
    def suitable(self) -> bool:
        """Whether nothing speaks against learning."""
        return all(each.good for each in self.findings)

    def __str__(self) -> str:
        if self.suitable:
            return "This class looks suitable for learning."
        against = "; ".join(each.words for each in self.findings if not each.good)
        return f"This class may not be suitable for learning: {against}."

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of a table: aspect, whether it is good, and what was found."""
        return [(each.aspect, "yes" if each.good else "no", each.words) for each in self.findings]


def assess(race: Race, best: Contestant, outside: OutsideResult | None = None) -> Suitability:
    """Judge a class of problems by some of them and by the best classical solver.

    Args:
        race: Problems of the class, with the accuracy to reach.
        best: The best classical solver, with its result in this race.
        outside: Comparison with solvers of other packages, if there is one.
    """
    findings = [
        _accuracy(race.accuracy),
        _iterations(best),
        _likeness(race),
        _cost_of_gradients(race),
    ]
    if outside is not None:
        findings += _rivals(race, best, outside)
    return Suitability(tuple(findings))


def _accuracy(accuracy: float) -> Finding:
    good = accuracy >= MODERATE
    words = f"an accuracy of {accuracy:g} is moderate"
    if not good:
        words = (
            f"an accuracy of {accuracy:g} is high, where classical and exact solvers usually win"
        )
    return Finding("accuracy is moderate", good, words)


def _iterations(best: Contestant) -> Finding:
    most = best.rehearsal.most
    words = f"{best.name} needs {most} iterations"
    good = most > FEW_ITERATIONS
    return Finding("iterations can be saved", good, words if good else f"{words} only")


def _likeness(race: Race) -> Finding:
    """Compare the curvatures of the problems along their first gradients."""
    curvature = problem_features(race.problem, race.x0)["curvature"]
    ratio = math.exp(min(700.0, float(curvature.max() - curvature.min())))
    stated = bool(race.problem.features(race.x0))
    good = ratio <= ALIKE or stated
    words = f"curvatures of problems differ by a factor of {ratio:.2g}"
    if not good:
        words += ": let features() of the problem return what they depend on"
    return Finding("problems are alike", good, words)


@torch.no_grad()
def _cost_of_gradients(race: Race) -> Finding:
    times = []
    for _ in range(REPEATS):
        began = perf_counter()
        race.problem.grad(race.x0)
        times.append(perf_counter() - began)
    words = f"a gradient of {race.count} problems takes {1e6 * min(times):.3g} µs"
    good = min(times) >= CHEAP
    if not good:
        words += ", so that the overhead of a step dominates"
    return Finding("gradients are expensive", good, words)


def _rivals(race: Race, best: Contestant, outside: OutsideResult) -> list[Finding]:
    """Compare the fastest solver of another package with the best classical one."""
    entries = outside.batch.get(race.accuracy, [])
    theirs = next((each for each in entries if each.outside), None)
    own = next((each for each in entries if not each.outside), None)
    if theirs is None or own is None:
        return []
    ratio = own.seconds / theirs.seconds
    good = ratio < OUT_OF_REACH
    words = f"{theirs.name} takes {theirs.seconds / own.seconds:.2g} times as long as {best.name}"
    if not good:
        words = f"{theirs.name} is {ratio:.2g} times faster than {best.name}"
    return [Finding("no other package is far ahead", good, words)]


def check_suitability(
    family: ProblemFamily,
    accuracy: float = 1e-2,
    *,
    batch: int = 32,
    seconds: float = 60.0,
    seed: int = 0,
    rivals: Sequence[Any] | None = (),
    say: Callable[[str], object] | None = None,
) -> Suitability:
    """Check within a minute whether it is worth learning a solver for a class of problems.

    Args:
        family: The class of problems.
        accuracy: Relative gap to reach.
        batch: Number of problems that are solved at once.
        seconds: Approximate duration.
        seed: Seed of the problems.
        rivals: Further solvers to compare with; None for no comparison with other packages.
        say: Function that is called with messages.

    Raises:
        ValueError: If no classical solver reaches the accuracy.
    """
    say = say or (lambda _: None)
    check_family(family.draw(torch.arange(2)))
    pool = Pooled(family, batch, min(1e-3, accuracy / 100), seed, seconds=seconds / 3)
    draw = pool.draw(torch.arange(batch))
    race = Race(draw, accuracy, 2000, patience=seconds / 6)
    classical = race_classical_solvers(race, typical_step(draw), say, seconds / 3)
    best = min(classical, key=lambda each: each.rehearsal.seconds, default=None)
    if best is None or not math.isfinite(best.rehearsal.seconds):
        raise ValueError(
            f"no classical solver reaches a gap of {accuracy:g} in time: choose a looser accuracy, "
            "or check the problems"
        )
    outside = None
    if rivals is not None:
        alone = replace(race, draw=pool.draw(torch.arange(1)))
        outside = compare_with_rivals(race, alone, [best], rivals, seconds / 3, say)
    return assess(race, best, outside)
