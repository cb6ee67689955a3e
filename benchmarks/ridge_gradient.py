"""Measure the gradient and the value of the learned regulariser, against torch.

The table shows milliseconds of processor time for one picture with filters of 7 × 7, and the
multiplications per nanosecond of the gradient: two for each weight of each filter and each
position. "Convolutions" are the two convolutions of a gradient in torch without the profiles in
between, and "torch" is the whole gradient without kernels. The speed-up is the time on the clock
with one thread over that with two threads, measured in turn.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from time import process_time

import torch
import torch.nn.functional as F

from benchmarks.measure import Row, about, all_printed_by, quick, seconds, table, threads, verdict
from mirrordescent import kernels
from mirrordescent.problems import LearnedRidges, RidgeProfile

SIDE = 7
PIECES = 9
REPEATS = 9
LONGEST = 15.0  # milliseconds for the gradient of a colour picture of 160² in single precision
FASTER = 1.7  # with two threads
CASES = {
    # channels, filters, side of the picture, precision
    "3×160², float32": (3, 64, 160, "float32"),
    "3×160², float64": (3, 64, 160, "float64"),
    "1×160², float32": (1, 48, 160, "float32"),
    "1×160², float64": (1, 48, 160, "float64"),
    "3×640², float32": (3, 64, 640, "float32"),
}
JUDGED = "3×160², float32"


def processor_seconds(run: Callable[[], object]) -> float:
    """Return the median processor time of a call."""
    run()
    times = []
    for _ in range(1 if quick() else REPEATS):
        began = process_time()
        run()
        times.append(process_time() - began)
    return statistics.median(times)


@torch.no_grad()
def print_costs(channels: int, count: int, side: int, precision: str) -> None:
    """Print the seconds of gradient, value, convolutions and torch, and the speed-up."""
    dtype = getattr(torch, precision)
    generator = torch.Generator().manual_seed(0)
    filters = torch.randn(count, channels, SIDE, SIDE, generator=generator, dtype=dtype)
    filters = filters - filters.mean((-2, -1), keepdim=True)
    filters = filters / filters.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
    steps = 0.1 * torch.rand(count, PIECES, generator=generator, dtype=dtype) + 0.01
    values = torch.rand(count, PIECES, generator=generator, dtype=dtype)
    term = LearnedRidges(filters, RidgeProfile(steps.cumsum(-1), values))
    x = torch.rand(1, channels, side, side, generator=generator, dtype=dtype)
    zeros = torch.zeros_like(x)

    def gradient() -> None:
        term.add_gradient(zeros, x, 0.0)

    def plain() -> None:
        with kernels.disabled():
            term.add_gradient(zeros, x, 0.0)

    with threads(1):
        costs = [
            processor_seconds(gradient),
            processor_seconds(lambda: term.value(x)),
            processor_seconds(lambda: F.conv_transpose2d(F.conv2d(x, filters), filters)),
            processor_seconds(plain),
        ]
    ratios = []
    for _ in range(1 if quick() else REPEATS):
        times = []
        for number in (1, 2):
            with threads(number):
                gradient()
                times.append(seconds(gradient))
        ratios.append(times[0] / times[1])
    print(*costs, statistics.median(ratios))


def rows() -> Iterator[Row]:
    """Yield a line for every kind of picture."""
    cases = list(CASES.items())
    for name, case in cases[:1] if quick() else cases:
        channels, count, side, _ = case
        *costs, faster = all_printed_by("benchmarks.ridge_gradient", *case, keep_freed=True)
        places = (side - SIDE + 1) ** 2
        products = 2 * places * count * channels * SIDE**2
        goal = ("", "")
        if name == JUDGED:
            met = 1e3 * costs[0] <= LONGEST and faster >= FASTER
            goal = (f"≤ {LONGEST:g} ms, speed-up ≥ {FASTER:g}", verdict(met))
        yield (
            name,
            *(f"{1e3 * cost:.1f}" for cost in costs),
            f"{1e-9 * products / costs[0]:.1f}",
            f"{faster:.2f}",
            *goal,
        )


def main() -> str:
    """Measure."""
    header = (
        "picture",
        "gradient",
        "value",
        "convolutions",
        "torch",
        "products per ns",
        "speed-up",
        "target",
        "",
    )
    return f"{about(__doc__)}\n{table(header, rows())}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case [channels, count, side, precision]:
            print_costs(int(channels), int(count), int(side), precision)
        case _:
            print(main())
