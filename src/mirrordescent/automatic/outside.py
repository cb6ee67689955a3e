"""The comparison of a search's solvers with those of other packages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mirrordescent.automatic.attempts import in_brief
from mirrordescent.problems import Problem
from mirrordescent.racing import Contestant, Race, Timing, clock_for, time_in_turn
from mirrordescent.racing.timing import FEWEST_ROUNDS
from mirrordescent.references.estimate import until
from mirrordescent.rivals import Rival, as_rival, known_rivals
from mirrordescent.rivals.registry import SolveTo
from mirrordescent.solving import Trace
from mirrordescent.trees import Tree

EXACT = 1e-6
"""Relative gap at which exact solvers are compared."""

ROUNDS = 7

CHECK = 50
"""Iterations between two looks at the clock."""

LEAST_TIMING = 0.05
"""Seconds for which solvers are timed although the time is up, so that no single run decides."""

SHORT = 0.02
"""Seconds for which the pace of evaluations is measured."""

EVALUATIONS = 300
"""Evaluations of f and its gradient for one problem that a solver may need for a first run."""


@dataclass(frozen=True)
class Entry:
    """A solver at one accuracy.

    Args:
        name: Name of the solver.
        accuracy: Relative gap that it reaches.
        outside: Whether it belongs to another package.
        run: Function that solves the batch.
        solved: Number of solved problems.
        seconds: Median time of the batch, by the clock of the comparison.
        timing: Times by the wall clock and in CPU time; None if it was not timed.
    """

    name: str
    accuracy: float
    outside: bool
    run: Callable[[], object] = field(repr=False)
    solved: int
    seconds: float = math.inf
    timing: Timing | None = field(default=None, repr=False)


@dataclass
class OutsideResult:
    """The fastest of all solvers, at two accuracies, for the batch and for one problem.

    Args:
        batch: Entries for the batch, by accuracy, the fastest first.
        single: Entries for one problem.
        count: Number of problems of the batch.
        missing: Packages that are not installed.
    """

    batch: dict[float, list[Entry]]
    single: dict[float, list[Entry]]
    count: int
    missing: list[str]

    def fastest(self, accuracy: float) -> Entry | None:
        """Return the fastest solver of the batch at an accuracy, if there is one."""
        return next(iter(self.batch.get(accuracy, [])), None)

    @property
    def words(self) -> str:
        """The fastest of all in words."""
        sentences = []
        for accuracy, entries in self.batch.items():
            if not entries:
                sentences.append(f"No solver reaches {accuracy:g}.")
                continue
            text = f"To {accuracy:g}, the fastest of all for {self.count} problems is "
            text += _in_words(entries)
            solved = entries[0].solved
            if solved < self.count:
                text += f" (no solver solves more than {solved} of them)"
            alone = self.single.get(accuracy)
            if alone:
                text += f"; for one problem {_in_words(alone)}"
            sentences.append(f"{text}.")
        if self.missing:
            sentences.append(f"Not installed, so not compared: {', '.join(self.missing)}.")
        return " ".join(sentences)

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of a table: solver, accuracy, solved, times for the batch and for one."""
        rows: list[tuple[str, ...]] = []
        for accuracy, entries in self.batch.items():
            alone = {each.name: each.seconds for each in self.single.get(accuracy, [])}
            rows += [_row(each, alone.get(each.name)) for each in entries]
        return rows


def _row(entry: Entry, alone: float | None) -> tuple[str, ...]:
    return (
        entry.name,
        f"{entry.accuracy:g}",
        str(entry.solved),
        f"{1e3 * entry.seconds:.3g}",
        "–" if alone is None else f"{1e3 * alone:.3g}",
    )


def _in_words(entries: Sequence[Entry]) -> str:
    first = entries[0]
    text = f"{first.name} ({1e3 * first.seconds:.3g} ms)"
    if len(entries) > 1:
        text += f", before {entries[1].name} ({1e3 * entries[1].seconds:.3g} ms)"
    return text


def compare_with_rivals(
    race: Race,
    alone: Race,
    contestants: Sequence[Contestant],
    own_rivals: Sequence[Any] = (),
    seconds: float = 60.0,
    report: Callable[[str], object] = lambda _: None,
    rivals: Sequence[Rival] | None = None,
) -> OutsideResult:
    """Run all outside solvers that fit the problems, and time them in turn with a search's own.

    A solver's loosest tolerance that solves as many problems as possible to the accuracy is used.
    For the accuracy of 1e-6, gaps refer to the least values of all solvers.

    Args:
        race: Unseen problems with lower bounds.
        alone: The first of them.
        contestants: Solvers of the search.
        own_rivals: Further rivals, or functions of users.
        seconds: Time limit.
        report: Function that is called with messages.
        rivals: Outside solvers; by default all that are known.
    """
    end = perf_counter() + seconds
    known = known_rivals() if rivals is None else list(rivals)
    missing = sorted({each.name for each in known if not each.installed})
    own = [as_rival(each) for each in own_rivals]
    installed = [each for each in known if each.installed]
    prepared = _prepare(own, race, alone, math.inf, report)
    prepared |= _prepare(installed, race, alone, end, report)
    batch = _compare(race, prepared, 0, contestants, end)
    single = _compare(alone, prepared, 1, contestants, end)
    return OutsideResult(batch, single, race.count, missing)


def _prepare(
    rivals: Sequence[Rival],
    race: Race,
    alone: Race,
    end: float,
    report: Callable[[str], object],
) -> dict[str, tuple[Rival, tuple[SolveTo, SolveTo]]]:
    """Prepare the rivals that fit, and skip those for which there is no time until ``end``.

    The time for a batch is predicted from the time of one problem.
    """
    prepared = {}
    pace = math.inf if end < perf_counter() else pace_of(alone.problem, alone.x0)
    for rival in rivals:
        left = end - perf_counter()
        if EVALUATIONS * pace > left:
            report(f"there is no time for {rival.name}")
            continue
        try:
            one = rival.prepare(alone.problem, alone.x0)
            if one is None:
                continue
            one(rival.tolerances[0])  # the first call imports the package
            began = perf_counter()
            one(rival.tolerances[0])
            predicted = race.count * (perf_counter() - began)
            if 3 * predicted > left:
                report(f"there is no time for {rival.name}: about {predicted:.2g} s for the batch")
                continue
            many = rival.prepare(race.problem, race.x0)
        except Exception as error:
            report(f"{rival.name} is disqualified: {in_brief(error)}")
            continue
        if many is not None:
            prepared[rival.name] = (rival, (many, one))
    return prepared


@torch.no_grad()
def pace_of(problem: Problem, x0: Tree) -> float:
    """Return the seconds that f and its gradient take for some problems, at least."""
    times: list[float] = []
    while len(times) < 3 or (len(times) < 20 and sum(times) < SHORT):
        began = perf_counter()
        problem.value(x0)
        problem.grad(x0)
        times.append(perf_counter() - began)
    return min(times)


def _compare(
    race: Race,
    prepared: dict[str, tuple[Rival, tuple[SolveTo, SolveTo]]],
    which: int,
    contestants: Sequence[Contestant],
    end: float,
) -> dict[float, list[Entry]]:
    """Return the entries of all solvers at both accuracies, the fastest first."""
    points: dict[tuple[str, float], Tensor] = {}
    for name, (rival, solvers) in prepared.items():
        for tolerance in rival.tolerances:
            if perf_counter() > end and points:
                break
            try:
                points[name, tolerance] = _values(race, solvers[which](tolerance))
            except Exception:
                break
    traces = _own_traces(race, contestants, end)
    compared = {}
    for accuracy in dict.fromkeys((race.accuracy, min(EXACT, race.accuracy))):
        lower = race.lower
        if accuracy < race.accuracy and points:
            lower = torch.maximum(lower, torch.stack([*points.values()]).amin(0))
        gaps = partial(_gaps, race, lower)
        entries = []
        for name, (rival, solvers) in prepared.items():
            reached = [
                (int((gaps(points[name, t]) <= accuracy).sum()), t)
                for t in rival.tolerances
                if (name, t) in points
            ]
            if not reached:
                continue
            most = max(solved for solved, _ in reached)
            tolerance = next(t for solved, t in reached if solved == most)
            run = partial(solvers[which], tolerance)
            entries.append(Entry(name, accuracy, True, run, most))
        entries += _own_entries(race, traces, accuracy, lower)
        compared[accuracy] = _timed(entries, race, end)
    return compared


def _own_traces(
    race: Race, contestants: Sequence[Contestant], end: float
) -> list[tuple[Contestant, Trace]]:
    """Run the solvers of the search and record their values, until ``end`` at the latest.

    The first iterations, in which they reach the accuracy of the race, are run in any case.
    """
    traces = []
    for each in contestants:
        least = 0 if each.unseen is None else each.unseen.most
        try:
            run = race.solve(each.method, check_every=CHECK, stop=until(end, least))
        except Exception:  # an error of a user's gradient disqualifies the method
            continue
        traces.append((each, run.trace))
    return traces


def _own_entries(
    race: Race, traces: Sequence[tuple[Contestant, Trace]], accuracy: float, lower: Tensor
) -> list[Entry]:
    """Return the solvers of the search, with the iterations that they need to an accuracy."""
    entries = []
    for each, trace in traces:
        gaps = torch.stack([_gaps(race, lower, values) for values in trace.values.double().cpu()])
        reached = gaps <= accuracy
        solved = reached.any(0)
        if not bool(solved.any()):
            continue
        first = torch.tensor(trace.iterations)[reached.int().argmax(0)]
        needed = max(1, int(first[solved].max()))
        run = partial(race.take_steps, each.method, needed)
        entries.append(Entry(each.name, accuracy, False, run, int(solved.sum())))
    return entries


@torch.no_grad()
def _timed(entries: list[Entry], race: Race, end: float) -> list[Entry]:
    """Time the solvers that solve the most problems in turn; return them, the fastest first."""
    if not entries:
        return []
    most = max(each.solved for each in entries)
    able = [each for each in entries if each.solved == most and most > 0]
    runs = {each.name: each.run for each in able}
    left = max(0.0, end - perf_counter())
    fewest = FEWEST_ROUNDS if left > 0 else 1
    timings = time_in_turn(runs, ROUNDS, max(left / 4, LEAST_TIMING), fewest) if runs else {}
    clock = clock_for(timings)
    timed = []
    for each in able:
        timing = timings[each.name]
        timed.append(replace(each, seconds=timing.median(clock), timing=timing))
    return sorted(timed, key=lambda each: each.seconds)


@torch.no_grad()
def _values(race: Race, x: Tensor) -> Tensor:
    """Return f at points of an outside solver, projected onto the set of the problem."""
    projected = race.problem.domain.project(x)
    return race.problem.value(projected).double().cpu().nan_to_num(nan=math.inf)


def _gaps(race: Race, lower: Tensor, values: Tensor) -> Tensor:
    first = race.problem.value(race.x0).double().cpu()
    bound = lower.cpu()
    gaps = (values - bound) / (first - bound).clamp(min=torch.finfo(torch.float32).tiny)
    return gaps.nan_to_num(nan=math.inf)
