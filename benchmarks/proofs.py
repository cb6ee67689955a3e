"""Measure how close proven gaps are to the true ones, and the cost of a proof.

`md.proven(image-tv)` restores test photographs, 8 × 3×128², from filled holes, and switches to
Condat and Vũ's method with a stencil after 20 steps. The table shows the proven gap over the true
gap after some steps. The true gap is the distance to a lower bound proven to 1e-5; the proven gap
is the distance to the method's own lower bound. A check computes a value and a bound; its cost is
given in steps of the method, with one thread. The last columns are the steps to a proven gap of
0.001, with a check after every ten steps, for this method and for PDHG with the best ratio of its
step sizes and the best over-relaxation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.contest_cases import Case, prepared
from benchmarks.contestants import LEARNED_ENTRY, RATIOS, entry
from benchmarks.measure import about, quick, seconds, table, threads, verdict
from benchmarks.races import TVRace
from mirrordescent import PDHG, gap, kernels, proven, solve
from mirrordescent.execution import steps_for
from mirrordescent.methods import Method
from mirrordescent.oracles import Default
from mirrordescent.racing import RELAXATIONS

AT = (21, 25, 30, 40, 80, 160)
GOAL = 3.0
TOLERANCE = 1e-3
LONGEST = 2000
CASES = (
    Case(8, 128),
    *(Case(8, 128, missing=missing) for missing in (0.5, 0.8, None)),
    *(Case(8, 128, weight=weight) for weight in (0.05, 0.5, 1.5)),
    *(Case(8, 128, noise=noise) for noise in (0.0, 0.2)),
    Case(8, 128, missing=0),
)


def row(case: Case) -> tuple[str, ...]:
    """Follow a run, and count the steps to a proof."""
    race = TVRace.on(*prepared(case)[0], case.fill)
    problem = race.problem
    method = proven(entry(LEARNED_ENTRY))
    run = steps_for(method, problem, Default(), fused=True)
    state = method.init(race.x0, problem)
    ratios = []
    for k in AT:
        state = run(state, k - state.k)
        value = problem.value(method.answer(state)).double()
        bound = method.lower_bound(problem, state)
        assert bound is not None
        ratios.append(float((value - bound).sum() / (value - race.lower).sum()))
    look = min(
        seconds(lambda: (problem.value(method.answer(state)), method.lower_bound(problem, state)))
        for _ in "look"
    )
    step = min(seconds(lambda: run(state, 20)) for _ in "step") / 20
    ours = _steps(method, race)
    pairs = ((ratio, relaxation) for ratio in RATIOS for relaxation in RELAXATIONS)
    theirs = min(_steps(PDHG(*pair), race) for pair in pairs)
    worst = max(ratios)
    return (
        case.title,
        *(f"{ratio:.2f}" for ratio in ratios),
        f"{look / step:.0f}",
        f"{ours:.0f}",
        f"{theirs:.0f}",
        f"≤ {GOAL:g}",
        verdict(worst <= GOAL),
    )


def _steps(method: Method[Any], race: TVRace) -> float:
    """Return after how many steps all images of a batch are proven; infinite if they never are."""
    found = solve(
        race.problem,
        method,
        race.x0,
        iterations=LONGEST,
        stop=gap(TOLERANCE),
        check_every=10,
        fused=True,
        progress=False,
    )
    return (
        float(found.steps.max()) if found.ok and bool((found.steps < LONGEST).all()) else math.inf
    )


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a line for every case."""
    yield from map(row, CASES[:1] if quick() else CASES)


@torch.no_grad()
def main() -> str:
    """Measure."""
    kernels.library()
    header = (
        "proven over true gap after",
        *map(str, AT),
        "a look, in steps",
        f"steps to {TOLERANCE:g} proven",
        "PDHG's",
        "target",
        "",
    )
    with threads(1):
        return f"{about(__doc__)}\n{table(header, rows())}"


if __name__ == "__main__":
    print(main())
