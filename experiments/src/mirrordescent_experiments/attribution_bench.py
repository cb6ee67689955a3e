"""Run a learned method with and without its map, its schedules, its momentum and its start.

The strongest method without a map is chosen on tuning problems, at every count by itself. The
candidates are multiples of the identity with the schedules of the learned method, and methods that
were learned without a map. Everything is measured on other problems.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mirrordescent.domains import WholeSpace
from mirrordescent.learn import Draw
from mirrordescent.learn.control import without_map
from mirrordescent.methods import AMD, MD, Equipped, Method
from mirrordescent.mirrors import Conjugate, Euclidean, LearnedPair, MirrorMap
from mirrordescent.oracles import Oracle, Rounded
from mirrordescent.references import certify
from mirrordescent.solving import solve

MULTIPLES = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0, 2.8, 4.0, 8.0, 16.0, 32.0)
STEPS = tuple(m * 10.0**e for e in (-3, -2, -1, 0) for m in (1, 2, 5))
BEYOND = 3
"""How often a grid is extended by a factor of 2 if its best number is at an end."""
WORST = 1e3
"""Largest gap relative to the start, since it does not matter how far a failed run is away."""
ACCURACY = 1e-7
"""Relative gap to which the optima are certified."""
LIMIT = 10.0
"""Factor of the width of a certified interval below which a gap is limited by the reference."""
Runs: TypeAlias = dict[str, Tensor]
"""Gaps (counts, problems) by the name of what was run."""
Maker: TypeAlias = Callable[[float], Method[Any]]


@dataclass(frozen=True)
class Problems:
    """Problems of one kind.

    Args:
        draw: Problems and starting points, with lower bounds if they are known.
        width: Width of the intervals that are known to contain the minimal values (batch,).
    """

    draw: Draw
    width: Tensor | None = None

    def started_at(self, x0: Any) -> Problems:
        """Return the same problems with another start."""
        return Problems(Draw(self.draw.problem, x0, self.draw.lower), self.width)


def certified(draw: Draw) -> Problems:
    """Return problems in double precision with certified optima, if they can be certified."""
    if not isinstance(draw.x0, Tensor):
        return Problems(draw)
    problem = copy.deepcopy(draw.problem).double()
    x0 = draw.x0.double()
    if problem.saddle_point() is None and type(problem).__name__ != "SVM":
        return Problems(Draw(problem, x0, None if draw.lower is None else draw.lower.double()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the width says how accurate the reference is
        optimum = certify(problem, ACCURACY)
    lower = optimum.lower.double()
    return Problems(Draw(problem, x0, lower), optimum.value.double() - lower)


@dataclass(frozen=True)
class Choice:
    """The method without a map that is the strongest at a count: a learned one, or a multiple."""

    learned: str = ""
    multiple: float = 1.0

    def __str__(self) -> str:
        return self.learned or f"identity × {self.multiple:g}"


@dataclass(frozen=True)
class Measured:
    """The gaps of one entry on held-out problems.

    Args:
        gaps: Gaps by what was run. ``strongest`` starts where the learned method starts, and
            ``strongest, given start`` at the given start.
        controls: Strongest methods without a map, one for each count.
        multiples: Best multiples of the identity, one for each count.
        limited: Whether the gaps of a count are limited by the accuracy of the certified optimum.
    """

    gaps: Runs
    controls: Sequence[str]
    multiples: Sequence[float]
    limited: Sequence[bool]


@dataclass(frozen=True)
class Bench:
    """A learned method, the counts of iterations at which it is measured, and its rivals.

    Args:
        method: Learned method.
        counts: Counts of iterations.
        oracle: Oracle of the gradients.
        controls: Methods that were learned without a map for the same problems, with their
            oracles, by name.
        every: Only every so-many-th number of a grid is tried.
    """

    method: Method[Any]
    counts: Sequence[int]
    oracle: Oracle | None = None
    controls: Mapping[str, tuple[Method[Any], Oracle | None]] = field(default_factory=dict)
    every: int = 1

    def measure(self, tuning: Problems, held_out: Problems) -> Measured:
        """Choose every rival on tuning problems, and run all of them on held-out problems."""
        method = self.method
        rehearsed = from_where_it_begins(method, tuning)
        there = from_where_it_begins(method, held_out)
        chosen, multiples = self.strongest(rehearsed)
        gaps = {
            "learned": self.gaps(method, held_out, self.oracle),
            "identity": self.gaps(without_map(method), there, self.oracle),
            "best multiple": self._at_each(multiples, self._multiple, there, self.oracle),
            "strongest": self._run(chosen, there),
        }
        for name, (control, oracle) in self.controls.items():
            gaps[name] = self.gaps(control, there, oracle)
        gaps["strongest, given start"] = gaps["strongest"]
        if there is not held_out:
            gaps["exact start"] = self.gaps(with_exact_start(method), held_out, self.oracle)
            given, _ = self.strongest(tuning)
            gaps["strongest, given start"] = self._run(given, held_out)
        gaps |= self._without_schedules(tuning, held_out)
        limited = self._limited(gaps, held_out)
        return Measured(gaps, [str(each) for each in chosen], multiples, limited)

    def strongest(self, tuning: Problems) -> tuple[list[Choice], list[float]]:
        """Return the strongest method without a map, and the best multiple, at every count."""
        multiples, ends = self._tuned(MULTIPLES, self._multiple, tuning, self.oracle, (1.0,))
        learned = {
            name: _geometric_means(self.gaps(control, tuning, oracle))
            for name, (control, oracle) in self.controls.items()
        }
        chosen = []
        for i in range(len(self.counts)):
            rivals = {Choice(learned=name): means[i] for name, means in learned.items()}
            rivals |= {Choice(multiple=number): means[i] for number, means in ends.items()}
            chosen.append(min(rivals, key=lambda each: rivals[each]))
        return chosen, multiples

    def _run(self, chosen: Sequence[Choice], problems: Problems) -> Tensor:
        """Return the gaps of the method that was chosen for every count."""
        runs = {}
        for choice in set(chosen):
            if choice.learned:
                control, oracle = self.controls[choice.learned]
                runs[choice] = self.gaps(control, problems, oracle)
            else:
                runs[choice] = self.gaps(self._multiple(choice.multiple), problems, self.oracle)
        return torch.stack([runs[choice][i] for i, choice in enumerate(chosen)])

    def _without_schedules(self, tuning: Problems, held_out: Problems) -> Runs:
        """Return the gaps of constant steps with the method's momentum, and without momentum."""
        plain = self._identity
        oracle = self._plain_oracle

        def descent(t: float) -> Method[Any]:
            return MD(plain, t)

        steps, _ = self._tuned(STEPS, descent, tuning, oracle)
        gaps = {"gradient descent": self._at_each(steps, descent, held_out, oracle)}
        gaps["constant step"] = gaps["gradient descent"]
        accelerated = next((part for part in self.method.modules() if isinstance(part, AMD)), None)
        if accelerated is not None:
            cap = accelerated.cap

            def momentum(t: float) -> Method[Any]:
                return AMD(plain, t, cap=cap)

            steps, _ = self._tuned(STEPS, momentum, tuning, oracle)
            gaps["constant step"] = self._at_each(steps, momentum, held_out, oracle)
        return gaps

    def _multiple(self, scale: float) -> Method[Any]:
        return without_map(self.method, scale)

    def _tuned(
        self,
        numbers: Sequence[float],
        make: Maker,
        problems: Problems,
        oracle: Oracle | None,
        always: Sequence[float] = (),
    ) -> tuple[list[float], dict[float, list[float]]]:
        """Return the best number at every count, and the mean gaps of all numbers tried.

        A grid whose best number is at an end is extended beyond that end. The numbers in ``always``
        are tried even if the grid is coarse.
        """
        tried = sorted({*numbers[len(numbers) // 2 % self.every :: self.every], *always})
        means = {
            number: _geometric_means(self.gaps(make(number), problems, oracle)) for number in tried
        }

        def best() -> list[float]:
            return [
                min(sorted(means), key=lambda number: means[number][i])
                for i in range(len(self.counts))
            ]

        for at_end, factor in ((min, 0.5), (max, 2.0)):
            for _ in range(BEYOND):
                end = at_end(means)
                if end not in best():
                    break
                number = float(f"{end * factor:.6g}")
                means[number] = _geometric_means(self.gaps(make(number), problems, oracle))
        return best(), means

    def _at_each(
        self, numbers: Sequence[float], make: Maker, problems: Problems, oracle: Oracle | None
    ) -> Tensor:
        """Return the gaps of the number that was chosen for every count."""
        runs = {number: self.gaps(make(number), problems, oracle) for number in set(numbers)}
        return torch.stack([runs[number][i] for i, number in enumerate(numbers)])

    @torch.no_grad()
    def gaps(self, method: Method[Any], problems: Problems, oracle: Oracle | None) -> Tensor:
        """Return gaps (counts, problems) above rounding, or values if no bounds are known."""
        draw = problems.draw
        solution = solve(
            draw.problem,
            method,
            draw.x0,
            iterations=max(self.counts),
            oracle=oracle,
            progress=False,
            generator=torch.Generator().manual_seed(0),
            trace=list(self.counts),
            check_every=max(self.counts),
        )
        lower = 0.0 if draw.lower is None else draw.lower.double()
        start = draw.problem.value(draw.x0).double() - lower
        found = torch.stack([solution.trace.at(k).double() - lower for k in self.counts])
        bounded = torch.minimum(found.nan_to_num(nan=math.inf), WORST * start)
        return torch.maximum(bounded, 1e-9 * start)

    def _limited(self, gaps: Runs, problems: Problems) -> list[bool]:
        """Return at which counts the smaller gap is near the accuracy of the certified optimum."""
        if problems.width is None:
            return [False] * len(self.counts)
        smaller = torch.minimum(gaps["learned"], gaps["strongest"])
        return (smaller < LIMIT * problems.width).any(1).tolist()

    @property
    def _identity(self) -> MirrorMap:
        domain = next(
            part.primal_domain for part in self.method.modules() if isinstance(part, MirrorMap)
        )
        return Euclidean() if isinstance(domain, WholeSpace) else Euclidean(domain)

    @property
    def _plain_oracle(self) -> Oracle | None:
        """Return the oracle for runs without schedules: the method's own, without smoothing."""
        own = next(
            (part.oracle for part in self.method.modules() if isinstance(part, Equipped)), None
        )
        return self.oracle if own is None or isinstance(own, Rounded) else own


def _geometric_means(gaps: Tensor) -> list[float]:
    return [float(row.log().mean()) for row in gaps]


def from_where_it_begins(method: Method[Any], problems: Problems) -> Problems:
    """Return the problems from the point at which a learned start begins, or as they are.

    Stored in the dual, an inexact pair begins at ∇M*(∇M(x₀)), which learning may have made a better
    point.
    """
    scaled = any(
        isinstance(part, Conjugate) and part.log_scale is not None for part in method.modules()
    )
    inexact = not isinstance(method, MD) and any(
        isinstance(part, LearnedPair) for part in method.modules()
    )
    if not scaled and not inexact:
        return problems
    draw = problems.draw
    return problems.started_at(method.init(draw.x0, draw.problem).x)


def with_exact_start(method: Method[Any]) -> Method[Any]:
    """Return the method with the exact dual point of the given start as its start."""
    exact = copy.deepcopy(method)
    for part in exact.modules():
        if isinstance(part, Conjugate):
            part.start = "exact"
            part.log_scale = None
    if isinstance(exact.mirror, LearnedPair):
        exact.mirror = Conjugate(exact.mirror.backward_potential)
    return exact
