"""Measure the cost of diagnostics, against a plain run of the same method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import Row, judged, paired_ratio, ratios
from mirrordescent import AMD, MD, SMD, TVInpainting, solve, zoo
from mirrordescent.methods import Method
from mirrordescent.theory import diagnose, observe
from mirrordescent.theory.inverse_consistency import UpdateErrors

ITERATIONS = 200
TARGET = 5.0


def setting() -> tuple[TVInpainting, Tensor]:
    """Return 8 random images of 3×96×96 with a fifth missing, and a point to compare with; any will
    do.
    """
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(8, 3, 96, 96, generator=generator)
    problem = TVInpainting(y, torch.rand(96, 96, generator=generator) > 0.2)
    return problem, problem.start(fill=True)


def methods() -> dict[str, Method[Any]]:
    """The shipped pair for inpainting, primal-stored, dual-stored and accelerated."""
    learned = zoo.load("photo-inpaint-pair")
    assert isinstance(learned, MD)
    mirror = learned.mirror
    t = learned.t
    return {"LMD": MD(mirror, t), "LSMD": SMD(mirror, t), "LAMD": AMD(mirror, t)}


def rows() -> Iterator[Row]:
    """Yield what every method's diagnostics cost."""
    problem, u = setting()
    for name, method in methods().items():
        options: dict[str, Any] = {"minimiser": u, "iterations": ITERATIONS}
        plain = partial(solve, problem, method, iterations=ITERATIONS, progress=False)
        updates = [UpdateErrors()] if isinstance(method, SMD) else []
        ours: dict[str, Callable[[], object]] = {
            f"energies{' and update errors' if updates else ''}": partial(
                observe, problem, method, callbacks=updates, **options
            ),
            "the whole diagnosis": partial(diagnose, method, problem, **options),
        }
        for label, run in ours.items():
            yield judged(
                f"{name}: {label} / plain run, time", paired_ratio(run, plain, repeats=3), TARGET
            )


def main() -> str:
    """Measure."""
    return f"8 images of 3×96×96, {ITERATIONS} iterations.\n\n{ratios(rows())}"


if __name__ == "__main__":
    print(main())
