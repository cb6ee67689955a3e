"""Witnesses: the numbers that a certificate keeps, so that its bound can be recomputed."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from mirrordescent.problems import QP, Composite, Problem, TVInpainting
from mirrordescent.problems.duality import Dual
from mirrordescent.problems.fits import Fit
from mirrordescent.problems.hole_duals import reduce_divergence
from mirrordescent.references.composites import DATA, POINT, block_name
from mirrordescent.references.verification import Witness, recompute
from mirrordescent.trees import Tree, where


def witness_of_point(problem: Problem, x: Tree) -> Witness | None:
    """Return the witness of a bound from a point, :meth:`Problem.bound_at`.

    Args:
        problem: Batch of problems in double precision.
        x: Points.
    """
    if not isinstance(x, Tensor):
        return None
    if isinstance(problem, Composite) and isinstance(problem.smooth, Fit):
        plain_tv = isinstance(problem, TVInpainting) and problem.operator is None
        if plain_tv or problem.linearised:
            return Witness("tangent", {"x": x})
        return _of_composite(problem, problem, x, None)
    return Witness("tangent", {"x": x})


def witness_of_pair(problem: Problem, saddle: Any, x: Tensor, u: Tree) -> Witness:
    """Return the witness of a bound from a primal and a dual point.

    Args:
        problem: Batch of problems in double precision.
        saddle: Saddle-point form that the dual point belongs to.
        x: Primal point.
        u: Dual point.
    """
    if isinstance(problem, QP) and isinstance(u, Tensor):
        _, y = problem.best_bound(x, u)
        return Witness("dual point", {"x": x, "y": y})
    if isinstance(u, Tensor):
        return Witness("dual point", {"u": u})
    if isinstance(problem, TVInpainting) and problem.operator is None:
        if problem.mask is not None:
            # In holes the bound is that of a nearby dual point with smaller divergence.
            u = reduce_divergence(u, problem.mask, problem.groups, problem.kink)
        return Witness("dual point", dict(u))
    if isinstance(saddle, Composite):
        return _of_composite(problem, saddle, x, u)
    return Witness("dual point", dict(u))


def _of_composite(
    problem: Problem, form: Composite, x: Tensor, u: dict[str, Tensor] | None
) -> Witness:
    """Return the dual points with the best recomputed bounds, sample by sample."""
    best: Witness | None = None
    best_bound: Tensor | None = None
    for dual in form.proving_points(x, u):
        witness = Witness("dual point", _tensors(x, dual))
        bound = recompute(witness, problem)
        if best is None or best_bound is None or bound is None:
            best = witness if best is None else best
            best_bound = bound
            continue
        better = bound > best_bound
        best = Witness("dual point", cast(Any, where(better, witness.tensors, best.tensors)))
        best_bound = torch.maximum(bound, best_bound)
    assert best is not None
    return best


def _tensors(x: Tensor, dual: Dual) -> dict[str, Tensor]:
    """Return a dual point under the names of a witness."""
    tensors = {POINT: x}
    for index, blocks in enumerate(dual.terms):
        for name, block in blocks.items():
            tensors[block_name(index, name)] = block
    if dual.data is not None:
        tensors[DATA] = dual.data
    return tensors
