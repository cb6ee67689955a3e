"""Measure the cost of the solve loop: against a hand-written loop, in memory, and in batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import (
    Row,
    judged,
    paired_ratio,
    peak_megabytes,
    printed_by,
    ratios,
    seconds,
)
from mirrordescent import AMD, GD, TVInpainting, solve
from mirrordescent.methods import Method
from mirrordescent.mirrors import Euclidean

STEP = 0.01
R = 3.0
ITERATIONS = 2000
TRACE = sorted({round(ITERATIONS ** (i / 19)) for i in range(20)} | {0})


def problem_of(batch: int) -> TVInpainting:
    """Return random images, 20 % missing; the arithmetic does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(batch, 3, 96, 96, generator=generator)
    return TVInpainting(y, torch.rand(96, 96, generator=generator) > 0.2)


def value_by_hand(x: Tensor, y: Tensor, mask: Tensor, weight: float) -> Tensor:
    """½(‖Z(x−y)‖² + λ‖Dx‖₁), inlined."""
    fidelity = (mask * (x - y)).square().flatten(1).sum(1)
    vertical = (x[..., 1:, :] - x[..., :-1, :]).abs().flatten(1).sum(1)
    horizontal = (x[..., 1:] - x[..., :-1]).abs().flatten(1).sum(1)
    return 0.5 * (fidelity + weight * (vertical + horizontal))


def gradient_by_hand(x: Tensor, y: Tensor, mask: Tensor, weight: float) -> Tensor:
    """Return its gradient, inlined."""
    g = mask * (x - y)
    s = (x[..., 1:, :] - x[..., :-1, :]).sign()
    g[..., 1:, :].add_(s, alpha=0.5 * weight)
    g[..., :-1, :].sub_(s, alpha=0.5 * weight)
    s = (x[..., 1:] - x[..., :-1]).sign()
    g[..., 1:].add_(s, alpha=0.5 * weight)
    g[..., :-1].sub_(s, alpha=0.5 * weight)
    return g


@torch.no_grad()
def gd_by_hand(x: Tensor, y: Tensor, mask: Tensor, weight: float) -> list[Tensor]:
    """Gradient descent as one would write it without a library, with a trace."""
    values = []
    for k in range(ITERATIONS):
        if k in TRACE:
            values.append(value_by_hand(x, y, mask, weight))
        x = x - STEP * gradient_by_hand(x, y, mask, weight)
    return [*values, value_by_hand(x, y, mask, weight)]


@torch.no_grad()
def amd_by_hand(x0: Tensor, y: Tensor, mask: Tensor, weight: float) -> list[Tensor]:
    """Accelerated mirror descent with the Euclidean map, written by hand as well."""
    x = x_tilde = z = x0
    values = []
    for k in range(ITERATIONS):
        if k in TRACE:
            values.append(value_by_hand(x, y, mask, weight))
        g = gradient_by_hand(x, y, mask, weight)
        z = z - (k / R * STEP) * g
        x_tilde = x - STEP * g
        x = torch.lerp(x_tilde, z, R / (R + k + 1))
    return [*values, value_by_hand(x, y, mask, weight)]


METHODS: dict[str, tuple[Method[Any], Callable[..., list[Tensor]]]] = {
    "GD": (GD(STEP), gd_by_hand),
    "AMD": (AMD(Euclidean(), STEP), amd_by_hand),
}


def print_overhead(name: str) -> None:
    """Print the time of the loop over that of the same arithmetic by hand, 8×3×96×96."""
    problem = problem_of(8)
    assert problem.mask is not None
    x0 = problem.start()
    (method, loop) = METHODS[name]
    ours = partial(solve, problem, method, x0, iterations=ITERATIONS, trace=TRACE, progress=False)
    theirs = partial(loop, x0, problem.y, problem.mask, problem.weight)
    torch.testing.assert_close(ours().trace.values, torch.stack(theirs()), rtol=1e-4, atol=1e-2)
    print(paired_ratio(ours, theirs))


def overhead() -> Iterator[Row]:
    """The loop against the same arithmetic by hand, for every method."""
    for name in METHODS:
        ratio = printed_by("benchmarks.solve_loop", "overhead", name, keep_freed=True)
        yield judged(f"solve({name}) / hand-written loop, time", ratio, 1.15)


def print_peak(iterations: int) -> None:
    """Print the peak memory of a run."""
    solve(problem_of(8), AMD(Euclidean(), STEP), iterations=iterations, trace=[0], progress=False)
    print(peak_megabytes())


def memory() -> Iterator[Row]:
    """Peak memory of a process that iterates 20 times as long."""
    peak = partial(printed_by, "benchmarks.solve_loop", "peak", keep_freed=False)
    yield judged("peak memory, 2000 / 100 iterations", peak(2000) / peak(100), 1.02, ".3f")


def batching() -> Iterator[Row]:
    """Time per image in a batch, against single solves."""

    def run(batch: int) -> float:
        problem = problem_of(batch)
        method = GD(STEP)
        return (
            min(
                seconds(lambda: solve(problem, method, iterations=200, progress=False))
                for _ in range(5)
            )
            / batch
        )

    single = run(1)
    for batch in (1, 8, 64):
        yield judged(
            f"time per image, batch {batch} / single",
            run(batch) / single,
            1.0 if batch == 64 else None,
        )


def main() -> str:
    """Measure."""
    return ratios([*overhead(), *memory(), *batching()])


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(main())
    elif sys.argv[1] == "peak":
        print_peak(int(sys.argv[2]))
    else:
        print_overhead(sys.argv[2])
