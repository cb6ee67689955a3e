"""How long a method takes to an accuracy, on a batch of problems: iterations first, then
the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mirrordescent.execution import steps_for
from mirrordescent.learn.families import Draw
from mirrordescent.methods.base import Method
from mirrordescent.oracles import Default
from mirrordescent.solving import solve
from mirrordescent.trees import batch_size

REPEATS = 7
FIRST = (60, 400)  # iterations that are tried before the whole budget


@dataclass(frozen=True)
class Result:
    """What a method needed: iterations per problem, −1 where it never got there, and seconds for
    the whole batch.

    ``seconds`` are those of as many iterations as the last of the problems needed that were solved;
    infinite if fewer were solved than the race asks for.
    """

    iterations: Tensor
    seconds: float

    @property
    def solved(self) -> int:
        """How many problems were solved."""
        return int((self.iterations >= 0).sum())

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self.iterations)

    @property
    def most(self) -> int:
        """The iterations that the last of those that were solved needed."""
        return int(self.iterations.max())

    @property
    def time(self) -> str:
        """The seconds in words."""
        return "too slow" if self.seconds == torch.inf else f"{1e3 * self.seconds:.3g} ms"

    def __str__(self) -> str:
        return f"{self.solved} of {self.count} solved, {self.most} iterations, {self.time}"

    def plain(self) -> tuple[list[int], float]:
        """The numbers it is made of."""
        return self.iterations.tolist(), self.seconds

    def beats(self, other: Result, factor: float = 1.0) -> bool:
        """Tell whether it is faster by a factor, and does not fail more often."""
        return self.solved >= other.solved and factor * self.seconds < other.seconds


@dataclass(frozen=True)
class Race:
    """Problems with bounds, an accuracy (f − lower)/(f(x₀) − lower) to reach, and a budget of
    iterations.

    ``share`` of the problems have to be solved, or the method counts as too slow: the others fall
    back.
    """

    draw: Draw
    accuracy: float
    most: int
    share: float = 0.9

    @property
    def count(self) -> int:
        """How many problems there are."""
        return batch_size(self.draw.x0)

    @torch.no_grad()
    def run(self, method: Method[Any], clock: bool = True) -> Result:
        """Count the iterations, and time as many of them without looking."""
        for most in (*(few for few in FIRST if few < self.most), self.most):
            gaps, at = self.curve(method, most)
            first = first_below(gaps, at, self.accuracy)
            if bool((first >= 0).all()):
                break
        enough = float((first >= 0).double().mean()) >= self.share
        seconds = self.clock(method, max(1, int(first.max()))) if clock and enough else torch.inf
        return Result(first, seconds)

    @torch.no_grad()
    def curve(self, method: Method[Any], most: int | None = None) -> tuple[Tensor, list[int]]:
        """Return relative gaps along a run, (points, batch), and the iterations they are of."""
        most = most or self.most
        at = moments(most)
        draw = self.draw
        problem = self.draw.problem
        found = solve(
            problem, method, draw.x0, iterations=most, trace=at, check_every=most, progress=False
        )
        lower = torch.as_tensor(draw.lower).double()
        start = problem.value(draw.x0).double()
        gaps = (found.trace.values.double() - lower) / (start - lower).clamp(
            min=torch.finfo(torch.float32).tiny
        )
        return gaps.nan_to_num(nan=torch.inf).cpu(), at

    @torch.no_grad()
    def clock(self, method: Method[Any], iterations: int) -> float:
        """Return the least time of so many iterations from the start, of several runs, with what
        comes before them.

        Others may use the machine too: they can only make a run longer.
        """
        draw = self.draw
        times = []
        for _ in range(REPEATS):
            began = perf_counter()
            run = steps_for(method, draw.problem, Default())
            run(method.init(draw.x0, draw.problem), iterations)
            times.append(perf_counter() - began)
        return min(times)


def first_below(gaps: Tensor, at: list[int], accuracy: float | Tensor) -> Tensor:
    """Return the iteration of the first look, (batch,), at which gaps (looks, batch) are small
    enough; or −1.
    """
    reached = gaps <= accuracy
    return torch.where(reached.any(0), torch.tensor(at)[reached.int().argmax(0)], -1)


def moments(most: int) -> list[int]:
    """Return the iterations to look at: all up to 100, then 30 a decade."""
    found = set(range(min(most, 100) + 1)) | {most}
    k = 100.0
    while k < most:
        found.add(int(k))
        k *= 10 ** (1 / 30)
    return sorted(found)
