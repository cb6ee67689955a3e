"""Measure the cost of an optimiser's step, against torch's optimisers on the same parameters.

The first table shows ratios of times. The second table shows the share of the memory bandwidth that
a step uses. Bytes are the bytes that the algorithm reads and writes per parameter in single
precision; numbers that repeat along a tensor stay in the cache. The bandwidth is that of
x ← x + s·y with as many numbers, measured in turn with the step. A share below 1 means time spent
on arithmetic, or on starting the step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.measure import about, paired_ratio, printed_by, table, verdict
from mirrordescent import optim
from mirrordescent.mirrors import Layerwise, Multipliers, Spline
from mirrordescent.optim.options import Nonfinite

RATE = 1e-9  # so small that the parameters hardly move, however often they are measured
SIZES: dict[str, list[tuple[int, int]]] = {
    "1 M": [(1000, 1000)],
    "10 M": [(1000, 1000)] * 10,
    "25 M": [(5000, 1000)] * 5,
    "200 × 4096": [(64, 64)] * 200,
}
STEPS = {"1 M": 10, "10 M": 1, "25 M": 1, "200 × 4096": 10}
JUDGED = ("10 M", "200 × 4096")
REPEATS = 21

Named = list[tuple[str, Tensor]]


def parameters(size: str) -> Named:
    """Return named parameters with gradients."""
    generator = torch.Generator().manual_seed(0)
    tensors = [nn.Parameter(0.1 * torch.randn(shape, generator=generator)) for shape in SIZES[size]]
    for p in tensors:
        p.grad = torch.randn(p.shape, generator=generator)
    return [(f"p{i}", p) for i, p in enumerate(tensors)]


def multipliers(named: Named) -> Layerwise:
    """Return a learned number for every input of a layer."""
    return Layerwise({name: Multipliers(torch.arange(p.shape[1])[None], 0.5) for name, p in named})


def splines(named: Named) -> Layerwise:
    """Return a spline for every tensor."""
    return Layerwise({name: Spline(torch.tensor(0)) for name, _ in named})


def ours(
    kind: type[optim.MirrorOptimizer],
    mirror: Callable[[Named], Layerwise],
    size: str,
    nonfinite: Nonfinite = None,
    fused: bool = True,
) -> Optimizer:
    """Return one of the optimisers here, with a layer-wise map."""
    named = parameters(size)
    return kind(named, lr=RATE, mirror=mirror(named), nonfinite=nonfinite, fused=fused)


OURS: dict[str, Callable[[str], Optimizer]] = {
    "SMD diagonal, foreach": partial(ours, optim.SMD, multipliers, fused=False),
    "SMD diagonal": partial(ours, optim.SMD, multipliers),
    "SMD diagonal, looking for NaN": partial(ours, optim.SMD, multipliers, nonfinite="raise"),
    "AMD diagonal, foreach": partial(ours, optim.AMD, multipliers, fused=False),
    "AMD diagonal": partial(ours, optim.AMD, multipliers),
    "AMD diagonal, looking for NaN": partial(ours, optim.AMD, multipliers, nonfinite="raise"),
    "SMD spline": partial(ours, optim.SMD, splines),
    "AMD spline": partial(ours, optim.AMD, splines),
}
THEIRS: dict[str, Callable[[str], Optimizer]] = {
    "SGD foreach": lambda size: torch.optim.SGD(parameters(size), lr=RATE, foreach=True),
    "Adam foreach": lambda size: torch.optim.Adam(parameters(size), lr=RATE, foreach=True),
    "Adam fused": lambda size: torch.optim.Adam(parameters(size), lr=RATE, fused=True),
    "AdamW foreach": lambda size: torch.optim.AdamW(parameters(size), lr=RATE, foreach=True),
}
# Pairs to compare, with the largest ratio that is good enough.
PAIRS: list[tuple[str, str, float | None]] = [
    ("SMD diagonal", "SGD foreach", 1.1),
    ("SMD diagonal, foreach", "SGD foreach", None),
    ("SMD diagonal, looking for NaN", "SGD foreach", None),
    ("SMD spline", "SGD foreach", 4),
    ("AMD diagonal", "Adam foreach", 0.7),
    ("AMD diagonal, foreach", "Adam foreach", None),
    ("AMD diagonal, looking for NaN", "Adam foreach", 0.7),
    ("AMD diagonal", "Adam fused", None),
    ("AMD diagonal", "AdamW foreach", None),
    ("AMD spline", "Adam foreach", 1.5),
    ("AMD spline", "Adam fused", 1.5),
]

# Words read and written per parameter: x, z, m, v and what is made on the way both, the gradient g
# only read.
WORDS = {
    "SGD foreach": 3,  # x += a g
    "SMD diagonal": 3,
    "SMD diagonal, looking for NaN": 4,  # a look at g
    "SMD spline": 3,
    "AMD diagonal": 5,  # z += a g, x of x, z, g
    "AMD diagonal, foreach": 11,  # z += a g, x += b g/d, x *= c, x += e z/d
    "AMD diagonal, looking for NaN": 6,
    "AMD spline": 5,
    "Adam fused": 7,
    "Adam foreach": 18,  # m by g, v *= b, v += c g g, s = sqrt(v), s /= d, s += e, x += a m/s
    "AdamW foreach": 20,  # x *= 1 - c first
}


def repeated(optimizer: Optimizer, steps: int) -> None:
    """Take some steps along the same gradients."""
    for _ in range(steps):
        optimizer.step()


def print_ratio(our: str, their: str, size: str) -> None:
    """Print the time of our step over that of theirs."""
    first, second = (
        partial(repeated, make(size), STEPS[size]) for make in (OURS[our], THEIRS[their])
    )
    print(paired_ratio(first, second, repeats=REPEATS))


def print_share(name: str, size: str) -> None:
    """Print the bandwidth that a step reaches over that of x ← x + s·y."""
    step = partial(repeated, (OURS | THEIRS)[name](size), STEPS[size])
    x, y = torch.zeros(2, sum(rows * columns for rows, columns in SIZES[size])).unbind()

    def plain() -> None:
        for _ in range(STEPS[size]):
            x.add_(y, alpha=RATE)

    print(paired_ratio(plain, step, repeats=REPEATS) * WORDS[name] / WORDS["SGD foreach"])


def times() -> Iterator[tuple[str, ...]]:
    """Yield ratios of times of steps."""
    for our, their, target in PAIRS:
        fresh = partial(
            printed_by, "benchmarks.optimiser_step", "ratio", our, their, keep_freed=True
        )
        ratios = {size: fresh(size) for size in SIZES}
        met = target is not None and max(ratios[size] for size in JUDGED) <= target
        goal = ("", "") if target is None else (f"≤ {target}", verdict(met))
        yield f"{our} / {their}", *(f"{ratio:.2f}" for ratio in ratios.values()), *goal


def shares() -> Iterator[tuple[str, ...]]:
    """Yield bytes per parameter, and shares of the bandwidth."""
    for name, words in WORDS.items():
        fresh = partial(printed_by, "benchmarks.optimiser_step", "share", name, keep_freed=True)
        yield name, str(4 * words), *(f"{fresh(size):.2f}" for size in SIZES)


def main() -> str:
    """Measure."""
    ratios = table(("time of a step", *SIZES, "target", ""), times())
    bandwidths = table(("share of the bandwidth", "bytes", *SIZES), shares())
    return f"{about(__doc__)}\n{ratios}\n{bandwidths}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ratio", our, their, size]:
            print_ratio(our, their, size)
        case ["share", name, size]:
            print_share(name, size)
        case _:
            print(main())
