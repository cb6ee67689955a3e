"""What the solve loop costs: against a hand-written loop, in memory, and in batches."""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mirrordescent import AMD, GD, TVInpainting, solve
from mirrordescent.mirrors import Euclidean

STEP, R = 0.01, 3.0
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
    """Gradient descent as one would write it without a library, recording the trace."""
    values = []
    for k in range(ITERATIONS):
        if k in TRACE:
            values.append(value_by_hand(x, y, mask, weight))
        x = x - STEP * gradient_by_hand(x, y, mask, weight)
    return [*values, value_by_hand(x, y, mask, weight)]


@torch.no_grad()
def amd_by_hand(x0: Tensor, y: Tensor, mask: Tensor, weight: float) -> list[Tensor]:
    """Accelerated mirror descent with the Euclidean map, likewise."""
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


def seconds(run: Callable[[], object]) -> float:
    """Time one call."""
    began = perf_counter()
    run()
    return perf_counter() - began


def paired_ratio(ours: Callable[[], object], theirs: Callable[[], object], repeats: int = 5) -> float:
    """Return the median of ratios of runs taken in turn, so that a busy moment hits both."""
    ours()
    theirs()
    return statistics.median(seconds(ours) / seconds(theirs) for _ in range(repeats))


def overhead(table: Table) -> None:
    """The loop against the same arithmetic by hand, 8×3×96×96."""
    problem = problem_of(8)
    assert problem.mask is not None
    by_hand = (problem.y, problem.mask, problem.weight)
    x0 = problem.start()
    for name, method, loop in (("GD", GD(STEP), gd_by_hand), ("AMD", AMD(Euclidean(), STEP), amd_by_hand)):
        ours = partial(solve, problem, method, x0, iterations=ITERATIONS, trace=TRACE, progress=False)
        theirs = partial(loop, x0, *by_hand)
        torch.testing.assert_close(ours().trace.values, torch.stack(theirs()), rtol=1e-4, atol=1e-2)
        ratio = paired_ratio(ours, theirs)
        table.add_row(f"solve({name}) / hand-written loop, time", f"{ratio:.3f}", "≤ 1.15", verdict(ratio <= 1.15))


def memory(table: Table) -> None:
    """Peak memory of a process that iterates 20 times as long."""
    script = (
        "import resource, sys; from benchmarks.solve_loop import *;"
        "solve(problem_of(8), AMD(Euclidean(), STEP), iterations=int(sys.argv[1]), trace=[0], progress=False);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = [
        int(subprocess.run([sys.executable, "-c", script, str(n)], check=True, capture_output=True, text=True).stdout)
        for n in (100, 2000)
    ]
    ratio = peaks[1] / peaks[0]
    table.add_row("peak memory, 2000 / 100 iterations", f"{ratio:.3f}", "≈ 1", verdict(ratio <= 1.05))


def batching(table: Table) -> None:
    """Time per image in a batch, against single solves."""

    def run(batch: int) -> float:
        problem = problem_of(batch)
        method = GD(STEP)
        return min(seconds(lambda: solve(problem, method, iterations=200, progress=False)) for _ in range(5)) / batch

    single = run(1)
    for batch in (1, 8, 64):
        ratio = run(batch) / single
        target = "< 1" if batch == 64 else ""
        table.add_row(
            f"time per image, batch {batch} / single", f"{ratio:.3f}", target, verdict(ratio < 1) if target else ""
        )


def verdict(met: bool) -> str:
    """Say whether a target was met."""
    return "met" if met else "NOT MET"


def main() -> None:
    """Measure and print."""
    console = Console()
    console.print(f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    table = Table("ratio", "measured", "target", "", title="The solve loop", title_justify="left")
    for measure in (overhead, memory, batching):
        measure(table)
    console.print(table)
