"""Random convex problems with maps, in float64, and their minimisers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from mirrordescent import SVM, LeastSquares, LogisticRegression, MatrixGame, Quadratic
from mirrordescent.domains import Box, Simplex
from mirrordescent.mirrors import (
    Diagonal,
    Euclidean,
    Logit,
    MirrorMap,
    SimplexEntropy,
    SquaredPNorm,
)
from mirrordescent.problems import Problem

seeds = st.integers(0, 2**31 - 1)


class Case(NamedTuple):
    """A batch of problems with a map for their domain, a start and points to compare with.

    The points are minimisers if the problems are smooth.
    """

    problem: Problem
    mirror: MirrorMap
    x0: Tensor
    u: Tensor


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def uniform(generator, *shape):
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


BATCH = 3


def on_the_whole_space(kind, geometry, seed, n=4):
    g = torch.Generator().manual_seed(seed)
    scale = 10 ** float(2 * uniform(g, 1) - 1)
    u = normal(g, BATCH, n)
    x0 = 2 * normal(g, BATCH, n)
    match kind:
        case "quadratic":
            A = normal(g, BATCH, n, int(1 + 5 * float(uniform(g, 1)))) * scale
            problem = Quadratic(A @ A.mT, u)
        case "least squares":
            A = scale * normal(g, BATCH, 3, n)
            problem = LeastSquares(A, torch.einsum("bmn,bn->bm", A, u))
        case "logistic":
            problem = LogisticRegression(
                scale * normal(g, BATCH, 7, n), normal(g, BATCH, 7).sign(), ridge=0.1
            )
            u = newton(problem, u)
        case "SVM":
            problem = SVM(scale * normal(g, BATCH, 7, n - 1), normal(g, BATCH, 7).sign())
    match geometry:
        case "euclidean":
            mirror = Euclidean()
        case "diagonal":
            mirror = Diagonal(0.2 + 3 * uniform(g, n))
        case "squared norm":
            mirror = SquaredPNorm(1.2 + 0.8 * float(uniform(g, 1)))
    return Case(problem, mirror, x0, u)


def on_a_set(kind, geometry, seed, n=5):
    g = torch.Generator().manual_seed(seed)
    if "simplex" in geometry:
        u = normal(g, BATCH, n).softmax(-1)
        x0 = (3 * normal(g, BATCH, n)).softmax(-1)
        domain = Simplex()
        mirror = SimplexEntropy() if "entropy" in geometry else Euclidean(domain)
    else:
        u = uniform(g, BATCH, n)
        x0 = uniform(g, BATCH, n)
        domain = Box(0.0, 1.0)
        mirror = Logit(0.0, 1.0) if "logit" in geometry else Euclidean(domain)
    A = normal(g, BATCH, 3, n)
    if kind == "game" and "simplex" in geometry:
        problem = MatrixGame(A)
    else:
        problem = LeastSquares(A, torch.einsum("bmn,bn->bm", A, u), domain)
    return Case(problem, mirror, x0, u)


def newton(problem, x):
    """Minimise a regularised logistic loss to rounding, by Newton's method with step halving."""
    for _ in range(100):
        g = problem.grad(x)
        if (g.abs() < 1e-11).all():
            return x
        slopes = torch.einsum("bni,bi->bn", problem.signed, x).sigmoid()
        weights = slopes * (1 - slopes) / problem.terms
        hessian = torch.einsum(
            "bni,bn,bnj->bij", problem.signed, weights, problem.signed
        ) + torch.diag(problem.ridge)
        step = torch.linalg.solve(hessian, g)
        length = torch.ones_like(x[:, :1])
        for _ in range(40):
            target = problem.value(x) - 0.1 * length[:, 0] * (g * step).sum(1) + 1e-14
            length = torch.where(
                (problem.value(x - length * step) > target)[:, None], 0.5 * length, length
            )
        x = x - length * step
    raise AssertionError("Newton's method has not converged")


smooth = st.one_of(
    st.builds(
        on_the_whole_space,
        st.sampled_from(["quadratic", "least squares", "logistic"]),
        st.sampled_from(["euclidean", "diagonal", "squared norm"]),
        seeds,
    ),
    st.builds(
        on_a_set,
        st.just("least squares"),
        st.sampled_from(["simplex entropy", "simplex projection", "box logit", "box projection"]),
        seeds,
    ),
)
any_convex = st.one_of(
    smooth,
    st.builds(
        on_the_whole_space,
        st.just("SVM"),
        st.sampled_from(["euclidean", "diagonal", "squared norm"]),
        seeds,
    ),
    st.builds(
        on_a_set, st.just("game"), st.sampled_from(["simplex entropy", "simplex projection"]), seeds
    ),
)
