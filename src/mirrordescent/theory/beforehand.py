"""The constants of the theorems' bounds, as far as they can be known before a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Generator, Tensor

from mirrordescent.oracles import Oracle
from mirrordescent.problems import Problem
from mirrordescent.theory.constants import SAFETY
from mirrordescent.theory.energies import moved, value_at
from mirrordescent.theory.geometry import Coupling, difference, squared_dual_norm
from mirrordescent.trees import Tree, dot, tree_map

DRAWS = 16  # of a stochastic gradient at every point


@dataclass(frozen=True)
class Beforehand:
    """What a bound asks for, sampled before the first step, times 1.25 for safety: (batch,) each.

    =====================
    =============================================================================================
    ``second_moment``      σ², the largest E‖G + U‖_*² ``variance``           the largest E‖Δ‖_*²
    ``pairing``            C, the largest −⟨U, x − u⟩, at least 0 ``squared_error``      C', the
    largest ‖U‖₂² ``energy_error``       M, the largest ⟨∇ψ(z̃) − ∇ψ(ẑ), z̃ − u⟩, at least 0
    ``squared_distance``   the largest ‖x − u‖₂² ``squared_gradient``   ‖∇f(u)‖_*²
    =====================
    =============================================================================================

    A theorem's own constants hold on the whole domain, on which most of them are infinite. These
    are the largest at a few points that are known before the run, so what is computed with them
    says what the theorem promises to a run that meets nothing worse. One that diverges does, and is
    found above its bound; constants that are measured along the run itself would grow with it.
    """

    second_moment: Tensor
    variance: Tensor
    pairing: Tensor
    squared_error: Tensor
    energy_error: Tensor
    squared_distance: Tensor
    squared_gradient: Tensor


@torch.no_grad()
def beforehand(
    method: Any,
    problem: Problem,
    coupling: Coupling,
    points: Sequence[Tree],
    oracle: Oracle,
    generator: Generator,
    iterations: int,
    exact: bool,
) -> Beforehand:
    """Sample at points; ``exact`` tells whether the run makes no errors in its geometry.

    The error of a step with an inexact inverse is U = e/t, so it is sampled with the shortest and
    the longest step, and for AMD with the lightest and the heaviest weight, all of which are known
    in advance.
    """
    mirror = coupling.mirror
    u = coupling.u
    steps = [value_at(method.t, k + 1) for k in range(iterations)]
    weights = (
        [t * value_at(method.dual_weight, k + 1) for k, t in enumerate(steps)]
        if _weighted(method)
        else steps
    )
    rows: list[dict[str, Tensor]] = []
    for x in points:
        g = problem.grad(x)
        from_u = difference(x, u)
        told = [oracle(problem, x, 0, generator) for _ in range(DRAWS if oracle.stochastic else 1)]
        noise = _mean([squared_dual_norm(mirror, difference(G, g)) for G in told])
        zero = torch.zeros_like(noise)
        found = {"variance": noise, "squared_distance": dot(from_u, from_u)}
        found |= {"second_moment": _mean([squared_dual_norm(mirror, G) for G in told])}
        rows.append(found | dict.fromkeys(("pairing", "squared_error", "energy_error"), zero))
        if exact:
            continue
        for t in {min(steps), max(steps)}:
            totals = [_moved_by(method, mirror.to_dual, x, G, t) for G in told]
            error = tree_map(
                lambda *each: torch.stack(each).mean(0), *map(difference, totals, told)
            )
            rows.append(
                {"second_moment": _mean([squared_dual_norm(mirror, total) for total in totals])}
            )
            rows.append({"pairing": -dot(error, from_u), "squared_error": dot(error, error)})
        for w in {min(weights), max(weights)}:
            aimed = moved(mirror.to_dual(x), told[0], w)
            z = method.mirror.to_primal(aimed)
            rows.append(
                {"energy_error": dot(difference(mirror.to_dual(z), aimed), difference(z, u))}
            )
    least = problem.grad(u)
    largest = {name: SAFETY * _largest(rows, name) for name in rows[0]}
    return Beforehand(**largest, squared_gradient=squared_dual_norm(mirror, least))


def _weighted(method: Any) -> bool:
    return hasattr(method, "dual_weight")


def _moved_by(method: Any, to_dual: Callable[[Tree], Tree], x: Tree, g: Tree, t: float) -> Tree:
    """(∇ψ(x) − ∇ψ(x⁺))/t = G + U, for the step that the method takes from x."""
    there = to_dual(x)
    after = to_dual(method.mirror.to_primal(moved(method.mirror.to_dual(x), g, t)))
    return tree_map(lambda a, b: (a - b) / t, there, after)


def _mean(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(rows)).mean(0)


def _largest(rows: Sequence[dict[str, Tensor]], name: str) -> Tensor:
    return reduce(torch.maximum, [row[name] for row in rows if name in row]).clamp(min=0)
