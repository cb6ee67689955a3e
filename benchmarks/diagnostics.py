"""What diagnostics cost: against the plain run of the same method."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from benchmarks.measure import CONSOLE, paired_ratio, verdict
from mirrordescent import AMD, MD, SMD, TVInpainting, solve, zoo
from mirrordescent.methods import Method
from mirrordescent.theory import UpdateErrors, diagnose, observe

ITERATIONS, TARGET = 200, 5.0


def setting() -> tuple[TVInpainting, Tensor]:
    """Return 8 random images of 3×96×96 with a fifth missing, and a point to compare with: any will do."""
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(8, 3, 96, 96, generator=generator)
    problem = TVInpainting(y, torch.rand(96, 96, generator=generator) > 0.2)
    return problem, problem.start(fill=True)


def methods() -> dict[str, Method[Any]]:
    """The shipped pair for inpainting, primal-stored, dual-stored and accelerated."""
    learned = zoo.load("photo-inpaint")
    assert isinstance(learned, MD)
    mirror, t = learned.mirror, learned.t
    return {"LMD": MD(mirror, t), "LSMD": SMD(mirror, t), "LAMD": AMD(mirror, t)}


def main() -> None:
    """Measure and print."""
    problem, u = setting()
    table = Table(
        "ratio", "measured", "target", "", title="Diagnostics, 8×3×96×96, 200 iterations", title_justify="left"
    )

    def row(label: str, ours: Callable[[], object], method: Method[Any]) -> None:
        plain = lambda: solve(problem, method, iterations=ITERATIONS, progress=False)  # noqa: E731
        ratio = paired_ratio(ours, plain, repeats=3)
        table.add_row(f"{label} / plain run, time", f"{ratio:.2f}", f"< {TARGET:g}", verdict(ratio < TARGET))

    for name, method in methods().items():
        updates = [UpdateErrors()] if isinstance(method, SMD) else []
        row(
            f"{name}: energies{' and update errors' if updates else ''}",
            lambda method=method, callbacks=updates: observe(  # type: ignore[misc]
                problem, method, minimiser=u, iterations=ITERATIONS, callbacks=callbacks
            ),
            method,
        )
        row(
            f"{name}: the whole diagnosis",
            lambda method=method: diagnose(method, problem, minimiser=u, iterations=ITERATIONS),  # type: ignore[misc]
            method,
        )
    CONSOLE.print(table)


if __name__ == "__main__":
    main()
