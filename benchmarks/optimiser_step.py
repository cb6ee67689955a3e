"""What a step of an optimiser costs, against those of torch on the same parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.measure import CONSOLE, paired_ratio, printed_by, verdict
from mirrordescent import optim
from mirrordescent.mirrors import Layerwise, Multipliers, Spline
from mirrordescent.optim.base import Nonfinite

RATE = 1e-9  # so small that the parameters stay where they are, however often they are measured
SIZES: dict[str, list[tuple[int, int]]] = {
    "1 M": [(1000, 1000)],
    "10 M": [(1000, 1000)] * 10,
    "25 M": [(5000, 1000)] * 5,
    "200 × 4096": [(64, 64)] * 200,
}
STEPS = {"1 M": 10, "10 M": 1, "25 M": 1, "200 × 4096": 10}

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
    ("SMD spline", "SGD foreach", None),
    ("AMD diagonal", "Adam foreach", 0.7),
    ("AMD diagonal, foreach", "Adam foreach", None),
    ("AMD diagonal, looking for NaN", "Adam foreach", 0.7),
    ("AMD diagonal", "Adam fused", None),
    ("AMD diagonal", "AdamW foreach", None),
    ("AMD spline", "Adam foreach", 1.5),
    ("AMD spline", "Adam fused", None),
]


def repeated(optimizer: Optimizer, steps: int) -> None:
    """Take some steps along the same gradients."""
    for _ in range(steps):
        optimizer.step()


def print_ratio(our: str, their: str, size: str) -> None:
    """Print the time of our step over that of theirs."""
    first, second = OURS[our](size), THEIRS[their](size)
    print(paired_ratio(partial(repeated, first, STEPS[size]), partial(repeated, second, STEPS[size]), repeats=7))


def main() -> None:
    """Measure and print."""
    table = Table("time of a step", *SIZES, "target", "", title="A step of an optimiser", title_justify="left")
    for our, their, target in PAIRS:
        ratios = [printed_by("benchmarks.optimiser_step", our, their, size, keep_freed=True) for size in SIZES]
        goal = (f"≤ {target}", verdict(max(ratios) <= target)) if target is not None else ("", "")
        table.add_row(f"{our} / {their}", *(f"{ratio:.2f}" for ratio in ratios), *goal)
    CONSOLE.print(table)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print_ratio(*sys.argv[1:])
    else:
        main()
