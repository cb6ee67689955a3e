"""How long it takes to come near the optimum of total-variation problems, learned methods beside classical ones.

Every solver starts at the same point. The clock runs while it iterates; values are computed off the clock. A level of
the relative gap counts as reached when the mean over the batch is below it. Step sizes and step ratios are chosen on
training images, for PDHG and its relatives one for every level: that which is fastest there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor

from mirrordescent import AMD, PDHG, SMD, Adam, CondatVu, DualFISTA, HandOver, Nesterov, certify, solve, zoo
from mirrordescent.experiments.imaging import clean_tiles, damage, denoising
from mirrordescent.methods import Fused, Method
from mirrordescent.problems import TVInpainting

LEVELS = (1e-1, 1e-2, 1e-3, 1e-4)
RATIOS = (0.1, 0.2, 0.3, 0.5, 0.8, 1.5)
STEPS = {"Nesterov": (5e-3, 1e-2, 2e-2), "Adam": (1e-2, 2e-2, 5e-2)}
TRAINING = 4
REPEATS = 3


@dataclass(frozen=True)
class Case:
    """A batch of problems of one size, and how many iterations are worth waiting for."""

    task: str
    count: int
    side: int
    slow: int  # iterations of methods that are slow, or far behind
    fast: int = 400

    @property
    def title(self) -> str:
        """Say it in words."""
        return f"{self.task}, {self.count} × {self.side}²"


CASES = (
    Case("inpainting", 1, 96, 200),
    Case("inpainting", 32, 96, 100),
    Case("inpainting", 32, 256, 10, 150),
    Case("inpainting", 4, 512, 10, 150),
    Case("denoising", 1, 96, 200),
    Case("denoising", 32, 96, 100),
    Case("denoising", 32, 256, 10, 150),
)


def problems(case: Case, training: bool) -> TVInpainting:
    """Return training or test problems."""
    count = min(case.count, TRAINING) if training else case.count
    if case.task == "denoising":
        return denoising(count, case.side, training, None)
    source = "bsds500" if case.side <= 256 else "bundled"  # no picture of its test part was looked at in development
    clean = clean_tiles(count, case.side, training, None, source)
    while len(clean) < count:  # the same picture with other noise
        clean = torch.cat([clean, clean])[:count]
    return damage(clean, torch.Generator().manual_seed(7))


Times = list[float]  # seconds to every level, infinite if it was not reached


@dataclass
class Race:
    """Problems, their start, and their certified lower bounds."""

    problem: TVInpainting
    fill: bool

    def __post_init__(self) -> None:
        """Certify."""
        self.x0 = self.problem.start(fill=self.fill)
        self.lower = certify(self.problem, 1e-5).lower
        self.first = self.problem.value(self.x0).double() - self.lower

    def gap(self, values: Tensor) -> float:
        """Return the mean relative gap."""
        return float(((values.double() - self.lower) / self.first).mean())

    def run(self, method: Method[Any], iterations: int) -> Times:
        """Return the time a method takes to every level, the best of a few runs."""
        with torch.no_grad():
            looks = sorted({*range(1, 41), *(round(10 ** (i / 25)) for i in range(40, 100))})
            planned = [k for k in looks if k <= iterations] or [iterations]
            first = solve(self.problem, method, self.x0, iterations=iterations, trace=planned, progress=False)
            gaps = [self.gap(values) for values in first.trace.values]
            ends = [next((i for i, gap in enumerate(gaps) if gap <= level), None) for level in LEVELS]
            last = max((planned[end] for end in ends if end is not None), default=0)
            seconds = [first.trace.seconds]
            for _ in range(REPEATS - 1 if last else 0):  # again, only as far as is needed, and without looking
                upto = [k for k in planned if k <= last]
                again = solve(self.problem, method, self.x0, iterations=last, trace=upto, check_every=last)
                seconds.append(again.trace.seconds)
        return [math.inf if end is None else min(times[end] for times in seconds) for end in ends]

    def iterations_to(self, method: Method[Any], iterations: int) -> list[float]:
        """Return how many iterations a method takes to every level."""
        found = solve(self.problem, method, self.x0, iterations=iterations, check_every=1, progress=False)
        gaps = [self.gap(values) for values in found.trace.values]
        counts = found.trace.iterations
        return [next((counts[i] for i, g in enumerate(gaps) if g <= level), math.inf) for level in LEVELS]

    def lbfgs(self, iterations: int) -> Times:
        """Run torch's L-BFGS on the sum over the batch, with a line search."""
        x = self.x0.clone().requires_grad_()
        optimiser = torch.optim.LBFGS([x], max_iter=1, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            x.grad = self.problem.grad(x.detach())
            return self.problem.value(x.detach()).sum()

        seconds, reached = 0.0, [math.inf] * len(LEVELS)
        for _ in range(iterations):
            began = perf_counter()
            cast(Any, optimiser).step(closure)
            seconds += perf_counter() - began
            gap = self.gap(self.problem.value(x.detach()))
            reached = [min(r, seconds) if gap <= level else r for r, level in zip(reached, LEVELS, strict=True)]
        return reached


def contestants(case: Case, race: Race, rehearsal: Race) -> Iterator[tuple[str, Times]]:
    """Run everybody."""
    entry = "photo-inpaint" if case.task == "inpainting" else "ellipse-denoise"
    spectral = cast(Method[Any], zoo.load(f"{entry}-spectral"))
    yield "LAMD-spectral", race.run(spectral, case.fast)
    yield "LAMD-spectral, fused", race.run(Fused(spectral), case.fast)
    yield "LAMD-spectral, fused, then PDHG", race.run(HandOver(Fused(spectral), 60, PDHG(0.3)), case.fast)
    pair, single = zoo.load(entry), cast(SMD, zoo.load(f"{entry}-conjugate"))
    yield "LAMD, pair of networks", race.run(AMD(cast(Any, pair).mirror, cast(Any, pair).t), case.slow)
    yield "LAMD, one network", race.run(AMD(single.mirror, single.t), case.slow)
    yield "LSMD, one network", race.run(single, case.slow)
    for name, kind in (("PDHG", PDHG), ("Condat–Vũ", CondatVu)):
        yield f"{name}, best ratio", best_of(race, rehearsal, kind, case.fast)
    if race.problem.F_convexity > 0:
        yield "dual FISTA", race.run(DualFISTA(), case.fast)
    for name, make in (("Nesterov", Nesterov), ("Adam", Adam)):
        ends = {step: rehearsal.gap(_end(rehearsal, make(step), case.slow)) for step in STEPS[name]}
        yield name, race.run(make(min(ends, key=lambda step: ends[step])), case.slow)
    yield "L-BFGS", race.lbfgs(case.slow)


def best_of(race: Race, rehearsal: Race, kind: Callable[[float], Method[Any]], iterations: int) -> Times:
    """Take for every level the ratio that needs the fewest iterations on training images."""
    trials = {ratio: rehearsal.iterations_to(kind(ratio), iterations) for ratio in RATIOS}
    chosen = [min(RATIOS, key=lambda ratio: trials[ratio][i]) for i in range(len(LEVELS))]
    times = {ratio: race.run(kind(ratio), iterations) for ratio in set(chosen)}
    return [times[ratio][i] for i, ratio in enumerate(chosen)]


def _end(race: Race, method: Method[Any], iterations: int) -> Tensor:
    return solve(race.problem, method, race.x0, iterations=iterations, progress=False).value


CLASSICAL = ("PDHG, best ratio", "Condat–Vũ, best ratio", "dual FISTA", "Nesterov", "Adam", "L-BFGS")


def section(case: Case, fill: bool, found: dict[str, Times]) -> str:
    """Return a table in Markdown: milliseconds, and ratios to the best classical solver."""
    best = [min(found[name][i] for name in CLASSICAL if name in found) for i in range(len(LEVELS))]
    lines = [f"### {case.title}, from {'y with its holes filled' if fill else 'y'}", ""]
    lines += [f"| method | {' | '.join(f'{level:g}' for level in LEVELS)} |", "|---" * 5 + "|"]
    for name, times in found.items():
        cells = ["–" if math.isinf(t) else f"{1000 * t:.1f} ({_ratio(t, b)})" for t, b in zip(times, best, strict=True)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _ratio(time: float, best: float) -> str:
    return "only one" if math.isinf(best) else f"{time / best:.2f}"


def main(cases: tuple[Case, ...] = CASES) -> str:
    """Measure everything, and return it as Markdown."""
    parts = [
        "## Time to a relative gap",
        "",
        (__doc__ or "").strip().split("\n\n")[1],
        "Milliseconds, with the ratio to the best classical solver in brackets; – where a level was not reached.",
        "",
    ]
    for case in cases:
        test, training = problems(case, False), problems(case, True)
        for fill in (False, True) if test.mask is not None else (False,):
            race, rehearsal = Race(test, fill), Race(training, fill)
            parts.append(section(case, fill, dict(contestants(case, race, rehearsal))))
            print(parts[-1], flush=True)
    return "\n".join(parts)


if __name__ == "__main__":
    main()
