"""Runs of ADMM on dense programs, with one product and three elementwise operations a step."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mirrordescent._internal.derived import version_of
from mirrordescent.execution.registry import Run, runner
from mirrordescent.methods.admm import ADMM, ADMMState, DenseWork
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.problems.programs import QP
from mirrordescent.problems.reduced_programs import SparseProgram


@runner(ADMM)
def admm_run(method: ADMM, problem: Problem, oracle: Oracle) -> Run[ADMMState] | None:
    """Return a run in the variable w = z + y/ρ, from which z and y follow.

    .. code-block:: none

        z  = min(max(w, low), high), or the projection in the rows of cones
        w⁺ = αb + (I − αCKCᵀR)(w − 2z) + (2 − α)z

    Only samples that are not solved exactly are iterated.
    """
    if not isinstance(problem, QP):
        return None
    program = problem.reduced
    if isinstance(program, SparseProgram) or program.matrices.C.ndim == 3:
        return None

    def run(state: ADMMState, steps: int) -> ADMMState:
        alphas = relaxations(method, state.k + steps)
        while steps > 0 and not bool(state.exact.all()):
            count = steps
            if method.polish:
                count = min(steps, method.polish - state.k % method.polish)
            state = _iterate(state, alphas[state.k : state.k + count])
            steps -= count
            if method.polish and state.k % method.polish == 0:
                state = state.work.polish(state, method.rounds)
        return state._replace(k=state.k + steps)

    return run


def _iterate(state: ADMMState, alphas: list[float]) -> ADMMState:
    work: DenseWork = state.work
    rho = work.parts.rho
    left: Tensor | slice = slice(None)
    some = bool(state.exact.any())
    if some:
        left = (~state.exact).nonzero().flatten()
    bias = work.bias[left]
    low = work.low[left]
    high = work.high[left]
    w = state.z[left].to(rho) + state.y[left].to(rho) / rho
    z = torch.empty_like(w)
    turned = torch.empty_like(w)
    ahead = torch.empty_like(w)
    cones = work.program.cones
    for alpha in alphas:
        if cones:
            z = cones.project(w, low, high)
        else:
            torch.clamp(w, low, high, out=z)
        torch.sub(w, z, alpha=2, out=turned)
        torch.addmm(bias, turned, work.parts.relaxed(alpha), beta=alpha, out=ahead)
        ahead.add_(z, alpha=2 - alpha)
        w, ahead = ahead, w
    z = cones.project(w, low, high)
    new_z = z.to(state.z)
    new_y = (rho * (w - z)).to(state.y)
    if some:
        new_z = state.z.index_copy(0, left, new_z)  # type: ignore[arg-type]
        new_y = state.y.index_copy(0, left, new_y)  # type: ignore[arg-type]
    return state._replace(k=state.k + len(alphas), z=new_z, y=new_y)


def relaxations(method: ADMM, count: int) -> list[float]:
    """Return the over-relaxation of the first steps as numbers, kept until parameters change."""
    versions = [(id(each), version_of(each)) for each in method.relaxation_parameters()]
    kept = _RELAXATIONS.get(method)
    values: list[float] = []
    if kept is not None and kept[0] is method.relaxation and kept[1] == versions:
        values = kept[2]
    for k in range(len(values) + 1, count + 1):
        values.append(float(method.relaxation(k)))
    _RELAXATIONS[method] = (method.relaxation, versions, values)
    return values


_RELAXATIONS: WeakKeyDictionary[ADMM, tuple[Any, list[tuple[int, object]], list[float]]]
_RELAXATIONS = WeakKeyDictionary()
