"""Measure the cost of a step on images when a kernel call makes one step, or fifty.

The table shows nanoseconds per pixel and step, for images with three channels and 20 % missing
pixels. The speed-up is the time with one thread over the time with two threads, measured in turn.
Between two checks all steps are one call. The call keeps a picture in the cache instead of reading
it from memory in every step, and threads synchronise less often.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.contestants import OLDER_ENTRIES, entry
from benchmarks.measure import Row, about, all_printed_by, quick, seconds, table, threads, verdict
from mirrordescent import PDHG, TVInpainting
from mirrordescent.execution import steps_for
from mirrordescent.methods import Method
from mirrordescent.oracles import Default

STEPS = 50
REPEATS = 7
SHORTEST = 0.05  # seconds that a measurement takes at least
THREADS = (1, 2)
FASTER = 1.7  # with two threads
SIZES = {"32 × 3×256²": (32, 256), "1 × 3×96²": (1, 96)}
METHODS: dict[str, Callable[[], Method[Any]]] = {
    "AMD-stencil": lambda: entry(OLDER_ENTRIES[0]),
    "PDHG": lambda: PDHG(0.3),
}


@torch.no_grad()
def print_costs(name: str, images: int, side: int, each: int) -> None:
    """Print the nanoseconds per pixel and step with one thread and with two."""
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(images, 3, side, side, generator=generator)
    problem = TVInpainting(y, torch.rand(side, side, generator=generator) >= 0.2)
    method = METHODS[name]()
    run = steps_for(method, problem, Default(), fused=True)
    start = method.init(problem.start(), problem)

    def walk() -> None:
        state = start
        for _ in range(STEPS // each):
            state = run(state, each)

    times: dict[int, list[float]] = {number: [] for number in THREADS}
    rounds = 1 + int(SHORTEST / seconds(walk))
    for _ in range(1 if quick() else REPEATS):
        for number in THREADS:
            with threads(number):
                walk()
                times[number].append(seconds(lambda: [walk() for _ in range(rounds)]))
    print(
        *(
            1e9 * statistics.median(times[number]) / (rounds * STEPS * y.numel())
            for number in THREADS
        )
    )


def rows() -> Iterator[Row]:
    """Yield a line for every size, method, and number of steps a call."""
    for size, (images, side) in list(SIZES.items())[:: -1 if quick() else 1]:
        for name in METHODS:
            for each in (1, STEPS):
                one, two = all_printed_by(
                    "benchmarks.steps_a_call", name, images, side, each, keep_freed=True
                )
                faster = one / two
                goal = f"≥ {FASTER:g}", verdict(faster >= FASTER)
                yield size, name, f"{each}", f"{one:.2f}", f"{two:.2f}", f"{faster:.2f}", *goal
        if quick():
            break


def main() -> str:
    """Measure."""
    header = (
        "images",
        "method",
        "steps a call",
        "one thread",
        "two threads",
        "speed-up",
        "target",
        "",
    )
    return f"{about(__doc__)}\n{table(header, rows())}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case [name, *numbers]:
            print_costs(name, *map(int, numbers))
        case _:
            print(main())
