"""Run the entry for images on ten kinds of unusual problems, for 10 000 iterations each.

The table shows the largest ratio of the last value to the first, and the median share of the first
gap that is left. Gaps are measured to the best lower bound of PDHG with three step ratios, with as
many iterations in double precision. A gap within rounding counts as 0.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.measure import about, table, verdict
from mirrordescent import PDHG, TVDenoising, TVInpainting, data, relative_gap, solve, zoo
from mirrordescent.methods import Method

SIDE = 32
COUNT = 50
ITERATIONS = 10_000
ENTRY = "image-tv"
LEFT = 1e-4
RATIOS = (0.5, 5.0, 50.0)


def cases(count: int) -> Iterator[tuple[str, TVInpainting]]:
    """Yield kinds of problems, the same number of each."""
    generator = torch.Generator().manual_seed(0)
    photographs = data.photographs("bundled", "test", SIDE)
    clean = photographs[torch.randint(len(photographs), (count,), generator=generator)]
    mask = torch.rand(count, 1, SIDE, SIDE, generator=generator) >= 0.2
    one = (
        torch.zeros(count, SIDE * SIDE)
        .index_fill_(1, torch.tensor([SIDE + 7]), 1.0)
        .reshape(-1, 1, SIDE, SIDE)
    )
    noisy = clean + 0.05 * torch.randn(clean.shape, generator=generator)
    grey = torch.rand(count, 3, 1, 1, generator=generator).expand_as(clean).clone()
    yield "photographs", TVInpainting(noisy, mask)
    yield "constant images", TVInpainting(grey, mask)
    yield "pure noise", TVInpainting(torch.randn(clean.shape, generator=generator), mask)
    yield "all but one pixel missing", TVInpainting(noisy, one)
    yield "λ / 100", TVInpainting(noisy, mask, 0.0015)
    yield "λ × 100", TVInpainting(noisy, mask, 15.0)
    yield "pixels from 0 to 255", TVInpainting(255 * noisy, mask)
    yield "checkerboards", TVDenoising(_checkerboard().expand_as(clean) + 1e-3 * noisy)
    yield "denoising", TVDenoising(noisy)
    yield "one row", TVDenoising(noisy[..., :1, :].contiguous())


def _checkerboard() -> Tensor:
    i = torch.arange(SIDE)
    return ((i[:, None] + i) % 2).to(torch.get_default_dtype())


def rows(count: int, iterations: int) -> Iterator[tuple[str, ...]]:
    """Yield the outcome for every kind of problem."""
    for name, problem in cases(count):
        method = cast(Method[Any], zoo.load(ENTRY))
        x0 = problem.start(fill=problem.mask is not None)
        run = partial(
            solve, problem, iterations=iterations, trace=[0, iterations], fused=True, progress=False
        )
        solution = run(method, x0)
        classical = run(PDHG(0.5, 1.8), x0)
        first, last = solution.trace.values
        precise = copy.deepcopy(problem).double()
        proofs = (
            solve(precise, PDHG(ratio), x0.double(), iterations=iterations, progress=False)
            for ratio in RATIOS
        )
        lower = torch.stack([cast(Tensor, proof.lower) for proof in proofs]).amax(0).to(first)
        # In single precision a value has seven digits: less than that is no gap.
        rounding = 8 * torch.finfo(first.dtype).eps * first
        gaps = [
            torch.where(
                s.value - lower <= rounding, 0.0, relative_gap(s.value, lower, first)
            ).median()
            for s in (solution, classical)
        ]
        worst = float((last / first.clamp(min=torch.finfo(first.dtype).tiny)).nan_to_num(1.0).max())
        yield (
            f"{len(first)} {name}",
            verdict(solution.ok and bool((last <= first).all()) and float(gaps[0]) <= LEFT),
            f"{worst:.4f}",
            *(f"{float(gap):.1e}" for gap in gaps),
        )


def main(count: int = COUNT, iterations: int = ITERATIONS) -> str:
    """Run the entry on all kinds of problems, and tabulate the outcomes."""
    header = ("problems", "status", "worst value / start", "median gap left", "PDHG's")
    return f"{about(__doc__)}\n{table(header, rows(count, iterations))}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="problems of each of ten kinds")
    parser.add_argument("--iterations", type=int, default=ITERATIONS)
    print(main(**vars(parser.parse_args())))
