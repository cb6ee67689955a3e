"""How long learned and classical methods take to come close to the optimum of total-variation problems.

Every solver starts at the same point. The clock runs while it iterates; values are computed off the clock. A level of
the relative gap counts as reached when the mean over the batch is below it. Step sizes and step ratios are chosen on
training images; for PDHG and its relatives one for every level, the one that needs the fewest iterations there. On
large batches slow methods get fewer iterations, and methods with compiled kernels run only with them; – means that a
level was not reached.

scikit-image solves the same problem only with its anisotropic split Bregman method (`denoise_tv_bregman`), and not at
the border, where it keeps the pixels as observed; so it is also run with a border of 8 mirrored pixels, and the faster
run counts. It reports nothing on the way, so it is rerun for growing numbers of iterations, channel by channel.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import about, seconds, table, verdict
from mirrordescent import AMD, PDHG, SMD, Adam, CondatVu, DualFISTA, HandOver, Nesterov, gap, relative_gap, solve, zoo
from mirrordescent.methods import GradientMethod, Method
from mirrordescent.problems import TVInpainting
from mirrordescent.solve import Rule
from mirrordescent.trees import tree_map
from mirrordescent_lab import data
from mirrordescent_lab.experiments.imaging import clean_tiles, damage, denoising

LEVELS = (1e-1, 1e-2, 1e-3, 1e-4)
TARGETS = (0.5, 0.5, 1.2, 1.2)  # at the levels, of the time of the best classical solver
JUDGED = 32  # images in the batches the targets are for
RATIOS = (0.1, 0.2, 0.3, 0.5, 0.8, 1.5)
PRIMAL_DUAL: dict[str, Callable[[float], Method[Any]]] = {"PDHG": PDHG, "Condat–Vũ": CondatVu}
STEPS = {"Nesterov": (5e-3, 1e-2, 2e-2), "Adam": (1e-2, 2e-2, 5e-2)}
ITERATIONS = 600  # of methods that are not slow
TRAINING = 4
CERTIFIED = 1e-5
BREGMAN = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 63, 80, 100, 130, 160, 200)
MARGINS = (0, 8)
LEARNED, HANDED_OVER = "LAMD-stencil, fused", "LAMD-stencil, fused, then PDHG"


@dataclass(frozen=True)
class Case:
    """A batch of problems of one size, and how many iterations are worth waiting for."""

    task: str
    count: int
    side: int
    slow: int  # iterations of methods that are slow, or far behind
    plain: bool = True  # whether to run methods with kernels also without them
    repeats: int = 3

    @property
    def title(self) -> str:
        """Describe the case in words."""
        return f"{self.task}, {self.count} × {self.side}²"


CASES = (
    Case("inpainting", 1, 96, 200),
    Case("inpainting", 32, 96, 100),
    Case("inpainting", 32, 256, 10, plain=False, repeats=2),
    Case("inpainting", 4, 512, 10, plain=False, repeats=2),
    Case("denoising", 1, 96, 200),
    Case("denoising", 32, 96, 100),
    Case("denoising", 32, 256, 10, plain=False, repeats=2),
)


def problems(case: Case, training: bool) -> TVInpainting:
    """Return training or test problems."""
    count = min(case.count, TRAINING) if training else case.count
    if case.task == "denoising":
        return denoising(count, case.side, training, None)
    if case.side <= 256:
        clean = clean_tiles(count, case.side, training, None, "bsds500")  # nothing in its test part was seen before
    elif training:
        clean = clean_tiles(count, 256, True, None)  # no photograph for training is larger
    else:
        clean = data.photographs("bundled", "train", case.side)  # on which nothing was learned
    clean = clean.repeat(-(-count // len(clean)), 1, 1, 1)[:count]  # the same picture with other noise, if need be
    return damage(clean, torch.Generator().manual_seed(7))


Times = list[float]  # seconds to every level, infinite if it was not reached


def lower_bounds(problem: TVInpainting) -> Tensor:
    """Return bounds on the optimal values: PDHG to a small gap from the nearer start, its dual in double precision."""
    found = solve(
        problem, PDHG(0.3), problem.start(fill=True), iterations=20_000, stop=gap(CERTIFIED), check_every=100,
        fused=True, progress=False,
    )  # fmt: skip
    precise = copy.deepcopy(problem).double()
    x, u = (tree_map(Tensor.double, part) for part in (found.x, found.state.u))
    lower = precise.lower_bound(u)
    gaps = relative_gap(precise.value(x), lower, precise.value(precise.start(fill=True)))
    if float(gaps.mean()) > 2 * CERTIFIED:
        raise RuntimeError(f"the lower bounds are proven to a relative gap of {float(gaps.mean()):.1e} only")
    return lower


@dataclass
class Race:
    """Problems, lower bounds on their optimal values, whether holes are filled at the start, and how often to run."""

    problem: TVInpainting
    lower: Tensor
    fill: bool
    repeats: int

    def __post_init__(self) -> None:
        """Start."""
        self.x0 = self.problem.start(fill=self.fill)
        self.first = self.problem.value(self.x0).double() - self.lower

    def gap(self, values: Tensor) -> float:
        """Return the mean relative gap."""
        return float(((values.double() - self.lower) / self.first).mean())

    def run(
        self, method: Method[Any], iterations: int = ITERATIONS, deepest: float = LEVELS[-1], *, fused: bool = False
    ) -> Times:
        """Return the time a method takes to reach every level, the best of a few runs, which end at the last level."""
        looks = sorted({*range(1, 41), *(round(10 ** (i / 25)) for i in range(40, 100))})
        planned = [k for k in looks if k <= iterations]
        once = partial(solve, self.problem, method, self.x0, fused=fused, progress=False)
        first = once(iterations=iterations, trace=planned, stop=self.at(deepest))
        gaps = [self.gap(values) for values in first.trace.values]
        ends = [next((i for i, gap in enumerate(gaps) if gap <= level), None) for level in LEVELS]
        last = max((planned[end] for end in ends if end is not None), default=0)
        clocks = [first.trace.seconds]
        for _ in range(self.repeats - 1 if last else 0):  # again, only as far as is needed, and without looking
            again = once(iterations=last, trace=[k for k in planned if k <= last], check_every=last)
            clocks.append(again.trace.seconds)
        return [math.inf if end is None else min(clock[end] for clock in clocks) for end in ends]

    def at(self, level: float) -> Rule:
        """Return a rule that stops the whole batch at a level."""
        return Rule(lambda look: torch.full_like(look.running, self.gap(look.value) <= level))

    def iterations_to(self, method: Method[Any]) -> list[float]:
        """Return how many iterations a method takes to reach every level."""
        stop = self.at(LEVELS[-1])
        found = solve(
            self.problem, method, self.x0, iterations=ITERATIONS, check_every=1, stop=stop, fused=True, progress=False
        )
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

        clock, reached = 0.0, [math.inf] * len(LEVELS)
        for _ in range(iterations):
            clock += seconds(lambda: cast(Any, optimiser).step(closure))
            reached = self.earlier(reached, clock, self.problem.value(x.detach()))
        return reached

    def earlier(self, reached: Times, clock: float, values: Tensor) -> Times:
        """Return the times to the levels, updated by the values seen at a time."""
        gap = self.gap(values)
        return [min(time, clock) if gap <= level else time for time, level in zip(reached, LEVELS, strict=True)]

    def bregman(self, margin: int) -> Times:
        """Run scikit-image's split Bregman method, for more and more iterations, with a margin of mirrored pixels."""
        reached = [math.inf] * len(LEVELS)
        for iterations in BREGMAN:
            began = perf_counter()
            x = bregman(self.problem.y, self.problem.weight, margin, iterations)
            reached = self.earlier(reached, perf_counter() - began, self.problem.value(x))
            if reached[-1] < math.inf:
                break
        return reached


def bregman(y: Tensor, weight: float, margin: int, iterations: int) -> Tensor:
    """Denoise channel by channel: |Dx|₁ + (w/2)‖x − y‖² is a multiple of f for w = 2/λ."""
    from skimage.restoration import denoise_tv_bregman

    inside = slice(margin, -margin or None)
    images = np.pad(y.flatten(0, 1).numpy(), ((0, 0), (margin, margin), (margin, margin)), mode="symmetric")
    options = {"weight": 2 / weight, "max_num_iter": iterations, "eps": 0.0, "isotropic": False}
    found = np.stack([denoise_tv_bregman(image, **options)[inside, inside] for image in images])
    return torch.from_numpy(found).to(y.dtype).reshape(y.shape)


def contestants(case: Case, race: Race, rehearsal: Race) -> Iterator[tuple[str, Times]]:
    """Run all contestants."""
    entry = "photo-inpaint" if case.task == "inpainting" else "ellipse-denoise"
    stencil = cast(GradientMethod[Any], zoo.load(f"{entry}-stencil"))
    if case.plain:
        yield "LAMD-stencil", race.run(stencil)
    yield LEARNED, race.run(stencil, fused=True)
    yield HANDED_OVER, race.run(HandOver(stencil, 100, PDHG(0.3)), fused=True)
    pair, single = zoo.load(f"{entry}-pair"), cast(SMD, zoo.load(f"{entry}-conjugate"))
    yield "LAMD, pair of networks", race.run(AMD(cast(Any, pair).mirror, cast(Any, pair).t), case.slow)
    yield "LAMD, one network", race.run(AMD(single.mirror, single.t), case.slow)
    yield "LSMD, one network", race.run(single, case.slow)
    for name, kind in PRIMAL_DUAL.items():
        ratios = best_ratios(rehearsal, kind)
        if case.plain:
            yield name, tuned(race, map(kind, ratios), fused=False)
        yield f"{name}, fused", tuned(race, map(kind, ratios), fused=True)
    if race.problem.F_convexity > 0:
        yield "dual FISTA", race.run(DualFISTA())
    for name, make in (("Nesterov", Nesterov), ("Adam", Adam)):
        ends = {step: rehearsal.gap(_end(rehearsal, make(step), case.slow)) for step in STEPS[name]}
        yield name, race.run(make(min(ends, key=lambda step: ends[step])), case.slow)
    yield "L-BFGS", race.lbfgs(case.slow)
    if race.problem.mask is None:
        runs = (race.bregman(margin) for margin in MARGINS)
        yield "scikit-image, split Bregman", [min(column) for column in zip(*runs, strict=True)]


def best_ratios(rehearsal: Race, kind: Callable[[float], Method[Any]]) -> list[float]:
    """Return for every level the step ratio that needs the fewest iterations on training images.

    If none reaches a level, the best one at the level before is taken.
    """
    trials = {ratio: rehearsal.iterations_to(kind(ratio)) for ratio in RATIOS}
    return [min(RATIOS, key=lambda ratio: trials[ratio][i::-1]) for i in range(len(LEVELS))]


def tuned(race: Race, methods: Iterable[Method[Any]], *, fused: bool) -> Times:
    """Return the time to every level, each by the method that was tuned for it."""
    pairs = enumerate(zip(methods, LEVELS, strict=True))
    return [race.run(method, deepest=level, fused=fused)[i] for i, (method, level) in pairs]


def _end(race: Race, method: Method[Any], iterations: int) -> Tensor:
    return solve(race.problem, method, race.x0, iterations=iterations, progress=False).value


Found = dict[str, Times]


def best_classical(found: Found) -> Times:
    """Return the least time to every level among the solvers in which nothing was learned."""
    times = [times for name, times in found.items() if not name.startswith(("LAMD", "LSMD"))]
    return [min(column) for column in zip(*times, strict=True)]


def details(found: Found) -> str:
    """Return a table of milliseconds and of ratios to the best classical solver."""
    best = best_classical(found)

    def cell(time: float, least: float) -> str:
        return "–" if math.isinf(time) else f"{1000 * time:.1f} ({_ratio(time, least)})"

    rows = ((name, *map(cell, times, best)) for name, times in found.items())
    return table(("method", *(f"{level:g}" for level in LEVELS)), rows)


def summary(results: dict[tuple[Case, bool], Found]) -> str:
    """Return a table of the learned method over the best classical solver, with verdicts for the batches of 32."""
    header = ("problems", "start", *(f"{level:g}" for level in LEVELS), f"{LEVELS[-1]:g}, handed over", "")
    rows = []
    for (case, fill), found in results.items():
        best = best_classical(found)
        times = [*found[LEARNED], found[HANDED_OVER][-1]]
        ends = [*best, best[-1]]
        ratios = [math.inf if math.isinf(t) else t / b for t, b in zip(times, ends, strict=True)]
        judged = [*ratios[:3], min(ratios[3:])]
        met = all(ratio <= target for ratio, target in zip(judged, TARGETS, strict=True))
        cells = ["–" if math.isinf(t) else _ratio(t, b) for t, b in zip(times, ends, strict=True)]
        rows.append((case.title, _start(fill), *cells, verdict(met) if case.count == JUDGED else ""))
    return table(header, [*rows, ("target", "", *(f"≤ {target:g}" for target in TARGETS), f"≤ {TARGETS[-1]:g}", "")])


def _start(fill: bool) -> str:
    return "y with its holes filled" if fill else "y"


def _ratio(time: float, best: float) -> str:
    return "only one" if math.isinf(best) else f"{time / best:.2f}"


def main(cases: tuple[Case, ...] = CASES) -> str:
    """Measure everything."""
    results: dict[tuple[Case, bool], Found] = {}
    parts = []
    for case in cases:
        test, training = ((problem, lower_bounds(problem)) for problem in (problems(case, False), problems(case, True)))
        for fill in (False, True) if case.task == "inpainting" else (False,):
            found = dict(contestants(case, Race(*test, fill, case.repeats), Race(*training, fill, 1)))
            results[case, fill] = found
            parts.append(f"### {case.title}, from {_start(fill)}\n\n{details(found)}")
            print(parts[-1], flush=True)
    return "\n".join(
        [
            about(__doc__),
            f"The time of {LEARNED}, over that of the best classical solver of all those below:\n",
            summary(results),
            "Milliseconds, with the ratio to the best classical solver in brackets:\n",
            *parts,
        ]
    )


if __name__ == "__main__":
    print(main())
