"""Measure how the time and the memory of a solve grow with pixels, images and iterations.

The table shows seconds per pixel and iteration, relative to one image of 128×128 pixels with 50
iterations. At 1 the cost grows in proportion. Below 1, more pixels share the fixed cost of an
iteration. Above 1, images no longer fit into the cache. The last line is the peak memory with 20
times as many iterations, as a ratio.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.contestants import entry, learned_entry
from benchmarks.measure import about, peak_megabytes, printed_by, quick, seconds, table
from mirrordescent import PDHG, TVInpainting, solve
from mirrordescent.methods import Method

ITERATIONS = 50
REPEATS = 5
SIDE = 128
SMALLEST = (1, SIDE, ITERATIONS)
SIZES = {  # images, side, iterations
    "4 × the pixels": (1, 2 * SIDE, ITERATIONS),
    "16 × the pixels": (1, 4 * SIDE, ITERATIONS),
    "64 × the pixels": (1, 8 * SIDE, ITERATIONS),
    "4 images": (4, SIDE, ITERATIONS),
    "16 images": (16, SIDE, ITERATIONS),
    "64 images": (64, SIDE, ITERATIONS),
    "4 × the iterations": (1, SIDE, 4 * ITERATIONS),
    "20 × the iterations": (1, SIDE, 20 * ITERATIONS),
}


def learned() -> Method[Any]:
    """Return the learned method."""
    return entry(learned_entry())


METHODS: dict[str, tuple[Callable[[], Method[Any]], bool]] = {  # and whether to use kernels
    "learned": (learned, False),
    "learned, fused": (learned, True),
    "PDHG": (lambda: PDHG(0.3), False),
    "PDHG, fused": (lambda: PDHG(0.3), True),
}


def run(name: str, images: int, side: int, iterations: int) -> Callable[[], object]:
    """Return a solve of random grey images with a fifth of the pixels missing; the time does not
    depend on them.
    """
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(images, 1, side, side, generator=generator)
    problem = TVInpainting(y, torch.rand(side, side, generator=generator) >= 0.2)
    (make, fused) = METHODS[name]
    return partial(
        solve,
        problem,
        make(),
        problem.start(),
        iterations=iterations,
        check_every=iterations,
        fused=fused,
        progress=False,
    )


def print_growth(name: str, images: int, side: int, iterations: int) -> None:
    """Print the seconds per pixel and iteration, over those of the smallest."""
    large = run(name, images, side, iterations)
    small = run(name, *SMALLEST)
    large()
    small()
    times = [min(seconds(each) for _ in range(REPEATS)) for each in (large, small)]
    print(times[0] / times[1] * _work(*SMALLEST) / _work(images, side, iterations))


def _work(images: int, side: int, iterations: int) -> int:
    return images * side * side * iterations


def print_peak(name: str, iterations: int) -> None:
    """Print the peak memory of a run on 8 images of 256×256."""
    run(name, 8, 256, iterations)()
    print(peak_megabytes())


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a line for every way to grow."""
    time = partial(printed_by, "benchmarks.cost_growth", "time", keep_freed=True)
    for label, size in list(SIZES.items())[: 1 if quick() else None]:
        yield label, *(f"{time(name, *size):.2f}" for name in METHODS)
    peak = partial(printed_by, "benchmarks.cost_growth", "peak", keep_freed=False)
    yield (
        "memory, 20 × the iterations",
        *(f"{peak(name, 200) / peak(name, 10):.2f}" for name in METHODS),
    )


def main() -> str:
    """Measure."""
    return (
        f"{about(__doc__)}\nThe learned method is "
        f"{learned_entry()}.\n\n{table(('grown', *METHODS), rows())}"
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["time", name, *size]:
            print_growth(name, *map(int, size))
        case ["peak", name, iterations]:
            print_peak(name, int(iterations))
        case _:
            print(main())
