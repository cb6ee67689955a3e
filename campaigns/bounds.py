"""Lower bounds of every problem class against exact minima.

A bound must not exceed the minimum, and a run may be called converged only if its relative gap is
within the tolerance. Certificates are verified, with their own witnesses and with forged ones.
Minima come from rational arithmetic, or are values of f with 60 digits at
very good points. Every case is one sample of a small batch.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import mpmath
import torch
from torch import Tensor

import mirrordescent as md
from campaigns.exact import (
    as_mpf,
    exact_value,
    game_value,
    is_feasible,
    least_squares_minimum,
    program_minimum,
)
from campaigns.tally import Tally
from campaigns.verification import check_verification
from mirrordescent import methods
from mirrordescent.domains import Box, Domain, PositiveOrthant, Simplex, WholeSpace
from mirrordescent.mirrors import Diagonal
from mirrordescent.problems import (
    L1,
    TV,
    Anchor,
    Composite,
    Counts,
    EntropicTransport,
    Haar,
    LearnedRidges,
    LeastSquares,
    LogisticRegression,
    MatrixGame,
    Quadratic,
    Ridge,
    Roughness,
    SquaredError,
)
from mirrordescent.problems.base import Problem
from mirrordescent.problems.beam import ParallelBeam
from mirrordescent.problems.operators import Blur, Matrix
from mirrordescent.problems.profiles import RidgeProfile
from mirrordescent.problems.tomography import PoissonTomography
from mirrordescent.solving import Status

KINDS = (
    "ordinary",
    "mixed signs",
    "ill-conditioned",
    "tiny units",
    "huge units",
    "zero residual",
    "constant",
    "rank-deficient",
    "degenerate sample",
)
BATCH = 9
TOLERANCE = 1e-3
STEPS = 120
"""Steps of the runs whose bounds are examined."""

REFERENCE_STEPS = 300
"""Steps, in double precision, of the runs that find good points."""

DOUBLE = torch.float64

OUTCOMES = ("below the minimum", "no bound")
"""Outcomes of the bounds of a problem, apart from faults."""


@dataclass
class Draw:
    """Random data of one kind.

    Args:
        random: Random generator of the choices.
        generator: Random generator of the tensors.
        kind: One of ``KINDS``.
    """

    random: Random
    generator: torch.Generator
    kind: str

    @property
    def units(self) -> float:
        """The unit of measurement of the data."""
        if self.kind == "tiny units":
            return self.random.choice((1e-12, 1e-9, 1e-6))
        if self.kind == "huge units":
            return self.random.choice((1e12, 1e9, 1e6))
        return 1.0

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=DOUBLE)

    def matrix(self, rows: int, columns: int) -> Tensor:
        """Return matrices (batch, rows, columns)."""
        A = self.normal(BATCH, rows, columns)
        if self.kind == "ordinary":
            A = A.abs()
        elif self.kind == "ill-conditioned":
            A = A * 10.0 ** -torch.arange(0, 5 * columns, 5, dtype=DOUBLE)
            if self.random.random() < 0.5:
                i = torch.arange(rows, dtype=DOUBLE)
                j = torch.arange(columns, dtype=DOUBLE)
                A = (1 / (100 + i[:, None] + j)).expand(BATCH, -1, -1) * (1 + 1e-9 * A)
        elif self.kind == "constant":
            A = torch.ones_like(A)
        elif self.kind == "rank-deficient":
            A = A.mul(4).round()
            A[..., -1] = A[..., 0] * self.random.choice((0, 1, -2))
        elif self.kind == "degenerate sample":
            A[0] = 0
        return A * self.units

    def semidefinite(self, n: int, dtype: torch.dtype) -> Tensor:
        """Return symmetric positive semidefinite matrices (batch, n, n), up to rounding."""
        B = self.matrix(n, n)
        P = (B.mT @ B).to(dtype)
        return (P + P.mT) / 2

    def vector(self, A: Tensor) -> Tensor:
        """Return right-hand sides (batch, rows)."""
        b = self.normal(BATCH, A.shape[-2])
        if self.kind == "zero residual":
            b = (A @ self.normal(BATCH, A.shape[-1], 1)).squeeze(-1)
        elif self.kind == "constant":
            b = torch.ones_like(b)
        return b * self.units

    def images(self, channels: int = 1, height: int = 4, width: int = 4) -> Tensor:
        """Return images (batch, channels, height, width)."""
        y = torch.rand(BATCH, channels, height, width, generator=self.generator, dtype=DOUBLE)
        if self.kind == "mixed signs":
            y = 2 * y - 1
        elif self.kind == "ill-conditioned":  # a bright image with hardly any differences
            y = 1 + 10.0 ** -self.random.choice((4, 8, 12, 15)) * y
        elif self.kind == "zero residual":
            y = (y > 0.5).double()
        elif self.kind == "constant":
            y = torch.full_like(y, self.random.choice((0.0, 0.7, -3.0)))
        elif self.kind == "rank-deficient":
            y = y[..., :1].expand_as(y).clone()
        elif self.kind == "degenerate sample":
            y[0] = 0.3
        return y * self.units

    def weight(self) -> float:
        """Return the weight of a norm, in the units of the data."""
        return self.random.choice((1e-3, 0.05, 0.3, 3.0)) * self.units

    def dtype(self) -> torch.dtype:
        return self.random.choice((torch.float32, DOUBLE))


@dataclass
class Case:
    """A batch of problems, and how its bounds and minima are found.

    Args:
        problem: Problems.
        bounds: Function that yields lower bounds (batch,).
        minimum: Function from a sample to an upper bound on its minimum, exact or nearly so.
        run: Function that solves the problem to ``TOLERANCE``; None if runs are not examined.
    """

    problem: Problem
    bounds: Callable[[], Iterator[Tensor]]
    minimum: Callable[[int], Any]
    run: Callable[[], md.Solution] | None = None


def _least_squares(draw: Draw, domain: Domain) -> Case:
    A = draw.matrix(draw.random.choice((2, 3, 5)), draw.random.choice((2, 3)))
    b = draw.vector(A)
    dtype = draw.dtype()
    problem = LeastSquares(A.to(dtype), b.to(dtype), domain)

    def minimum(sample: int) -> Any:
        return as_mpf(least_squares_minimum(problem.A[sample], problem.b[sample], domain))

    def bounds() -> Iterator[Tensor]:
        size = 10.0 ** draw.random.choice((-3, 0, 3))
        for _ in range(4):
            points = draw.normal(BATCH, A.shape[-1]) * size
            yield problem.bound_at(torch.as_tensor(domain.project(points)).to(dtype))
        precise = LeastSquares(problem.A.double(), problem.b.double(), domain)
        if isinstance(domain, WholeSpace):
            optimum = problem.minimiser(1e-6)
            assert optimum is not None
            yield optimum[1]
            return
        found = md.solve(precise, md.FISTA(), iterations=STEPS, progress=False)
        x = torch.as_tensor(found.best_x)
        yield precise.bound_at(x)
        yield problem.bound_at(x.to(dtype))

    return Case(problem, bounds, minimum, lambda: _solve(problem, md.FISTA()))


def _quadratic(draw: Draw) -> Case:
    n = draw.random.choice((2, 3, 4))
    B = draw.matrix(n + 1, n)
    A = B.mT @ B
    A = (A + A.mT) / 2
    if draw.kind == "mixed signs":
        A = A - draw.random.choice((1e-8, 1.0)) * draw.units**2 * torch.eye(n, dtype=DOUBLE)
    if draw.random.random() < 0.3:
        A = A.diagonal(dim1=-2, dim2=-1)[0].clone()
    problem = Quadratic(A, draw.normal(BATCH, n))

    def minimum(sample: int) -> Any:
        """0, or −∞ if a direction of negative curvature is found."""
        matrix = problem.A.diag() if problem.A.ndim == 1 else problem.A[sample]
        directions = torch.linalg.eigh(matrix).eigenvectors.mT
        for direction in directions:
            x = problem.centre[sample] + 1e3 * direction
            if exact_value(problem, sample, x) < 0:
                return -mpmath.inf
        return mpmath.mpf(0)

    def bounds() -> Iterator[Tensor]:
        optimum = problem.minimiser(1e-6)
        if optimum is not None:
            yield optimum[1]
        bound = problem.bound_at(draw.normal(BATCH, n))
        if bound is not None:
            yield bound

    return Case(problem, bounds, minimum)


def _game(draw: Draw) -> Case:
    A = draw.matrix(3, 3)
    dtype = draw.dtype()
    problem = MatrixGame(A.to(dtype))
    solver = methods.PDHG(1.0)

    def bounds() -> Iterator[Tensor]:
        for _ in range(3):
            yield problem.lower_bound(draw.normal(BATCH, 3).to(dtype))

    return Case(
        problem,
        bounds,
        lambda sample: as_mpf(game_value(problem.A[sample])),
        lambda: _solve(problem, solver),
    )


def _linear_model(draw: Draw, machine: bool) -> Case:
    features = draw.matrix(8, 2)
    labels = torch.where(draw.normal(BATCH, 8) > 0, 1.0, -1.0).double()
    if draw.kind == "constant":
        labels = torch.ones_like(labels)
    if draw.kind == "zero residual":  # separable classes
        labels = torch.where(features[..., 0] > 0, 1.0, -1.0).double()
    dtype = draw.dtype()
    problem: Problem
    if machine:
        problem = md.SVM(features.to(dtype), labels.to(dtype), draw.random.choice((1e-3, 1.0, 1e3)))
    else:
        ridge = draw.random.choice((1e-8, 1e-3, 1.0)) * draw.units**2
        problem = LogisticRegression(features.to(dtype), labels.to(dtype), ridge)
    precise = _precise(problem)
    found: list[Tensor] = []

    def best() -> Tensor:
        if not found:
            if machine:
                found.append(precise.minimiser(1e-12)[0])  # type: ignore[index]
            else:
                run = md.solve(precise, methods.LBFGS(), iterations=60, progress=False)
                found.append(torch.as_tensor(run.best_x))
        return found[0]

    def minimum(sample: int) -> Any:
        points = (best()[sample], torch.zeros_like(best()[sample]))
        return min(exact_value(problem, sample, x) for x in points)

    def bounds() -> Iterator[Tensor]:
        if machine:
            yield problem.minimiser(1e-9)[1]  # type: ignore[index]
            return
        for x in (best(), torch.zeros_like(best()), draw.normal(*best().shape)):
            for each in (problem, precise):
                bound = each.bound_at(x.to(next(each.buffers()).dtype))
                assert bound is not None
                yield bound

    def run() -> md.Solution:
        return _solve(problem, methods.LBFGS())

    return Case(problem, bounds, minimum, None if machine else run)


def _program(draw: Draw, linear: bool) -> Case:
    """A program in two or three variables, each bounded, with other rows and a known point."""
    n = draw.random.choice((2, 3))
    dtype = draw.dtype()
    rows = draw.matrix(2, n)
    box = torch.eye(n, dtype=DOUBLE).expand(BATCH, n, n) * draw.units
    A = torch.cat([box, rows], 1).to(dtype)
    inside = draw.normal(BATCH, n).to(dtype)
    images = (A @ inside.unsqueeze(-1)).squeeze(-1)
    slack = draw.normal(BATCH, n + 2).abs() * draw.units
    slack[:, n:] *= draw.random.choice((1e-3, 1.0))
    l = (images - slack).to(dtype)  # noqa: E741
    u = (images + slack.flip(0)).to(dtype)
    P = None
    if not linear:
        P = draw.semidefinite(n, dtype)
    q = draw.normal(BATCH, n).to(dtype) * draw.units
    if draw.kind == "zero residual":
        q = torch.zeros_like(q)
    problem = md.QP(P, q, A, l, u)

    def bounds() -> Iterator[Tensor]:
        size = 10.0 ** draw.random.choice((-3, 0, 3))
        for _ in range(3):
            x = (draw.normal(BATCH, n) * size).to(dtype)
            y = (draw.normal(BATCH, n + 2) * size).to(dtype)
            yield problem.bound_of_pair(x, y)
            yield problem.lower_bound(y)
        optimum = problem.minimiser(1e-6)
        if optimum is not None:
            yield optimum[1]

    def minimum(sample: int) -> Any:
        return program_minimum(problem, sample)

    return Case(problem, bounds, minimum, lambda: _solve(problem, md.ADMM()))


def _cone_program(draw: Draw) -> Case:
    """A program with bounded variables, second-order cones and a point inside."""
    n = draw.random.choice((2, 3))
    sizes = draw.random.choice(([3], [2], [3, 1], [2, 3]))
    dtype = draw.dtype()
    box = torch.eye(n, dtype=DOUBLE).expand(BATCH, n, n) * draw.units
    A = torch.cat([box, draw.matrix(sum(sizes), n)], 1).to(dtype)
    inside = draw.normal(BATCH, n).to(dtype)
    images = (A @ inside.unsqueeze(-1)).squeeze(-1)
    below = draw.normal(BATCH, n).abs() * draw.units
    above = draw.normal(BATCH, n).abs() * draw.units
    parts = [below]
    width = draw.random.choice((1e-3, 1.0))
    for size in sizes:
        s = draw.normal(BATCH, size - 1)
        t = s.norm(dim=1, keepdim=True) + width * draw.normal(BATCH, 1).abs()
        parts.append(torch.cat([t, s], 1) * draw.units)
    lower = (images - torch.cat(parts, 1)).to(dtype)
    upper = torch.full_like(lower, math.inf)
    upper[:, :n] = images[:, :n] + above.to(dtype)
    P = None
    if draw.random.random() < 0.5:
        P = draw.semidefinite(n, dtype)
    q = draw.normal(BATCH, n).to(dtype) * draw.units
    if draw.kind == "zero residual":
        q = torch.zeros_like(q)
    problem = md.QP(P, q, A, lower, upper, cones=sizes)
    good: list[Tensor] = []

    def minimum(sample: int) -> Any:
        """The least exact value of feasible points between a good point and the one inside."""
        if not good:
            precise = _precise(problem)
            found = md.solve(precise, md.ADMM(), iterations=1000, check_every=500, progress=False)
            good.append(torch.as_tensor(found.best_x))
        centre = inside[sample].double()
        values = [mpmath.inf]
        for share in (0.0, 1e-12, 1e-9, 1e-6, 1e-4, 1e-2, 0.3, 1.0):
            x = torch.lerp(good[0][sample], centre, share)
            if _finite(x) and is_feasible(problem, sample, x):
                values.append(exact_value(problem, sample, x))
        return min(values)

    def bounds() -> Iterator[Tensor]:
        size = 10.0 ** draw.random.choice((-3, 0, 3))
        for _ in range(3):
            x = (draw.normal(BATCH, n) * size).to(dtype)
            y = (draw.normal(*lower.shape) * size).to(dtype)
            yield problem.bound_of_pair(x, y)
            yield problem.lower_bound(y)

    return Case(problem, bounds, minimum, lambda: _solve(problem, md.ADMM()))


def _transport(draw: Draw) -> Case:
    dtype = draw.dtype()
    C = draw.matrix(4, 3).to(dtype)
    a = draw.normal(BATCH, 4).abs().add(1e-3)
    b = draw.normal(BATCH, 3).abs().add(1e-3)
    if draw.kind == "constant":
        a = torch.ones_like(a)
    if draw.kind == "zero residual":  # nearly all of the mass at one source
        a[:, 0] = 1e6
    epsilon = draw.random.choice((0.02, 0.3, 5.0)) * draw.units
    problem = EntropicTransport(C, a.to(dtype), b.to(dtype), epsilon)
    precise = _precise(problem)
    found: list[Tensor] = []

    def best() -> Tensor:
        if not found:
            run = md.solve(precise, methods.LBFGS(), iterations=100, progress=False)
            found.append(torch.as_tensor(run.best_x))
        return found[0]

    def minimum(sample: int) -> Any:
        points = (best()[sample], torch.zeros_like(best()[sample]))
        return min(exact_value(problem, sample, x) for x in points if _finite(x))

    def bounds() -> Iterator[Tensor]:
        noise = draw.normal(BATCH, 4) * draw.units
        for x in (best(), torch.zeros_like(best()), best() + noise, 100 * noise):
            yield problem.bound_at(x.to(dtype))
            yield precise.bound_at(x)

    return Case(problem, bounds, minimum, lambda: _solve(problem, methods.LBFGS()))


def _ridges(draw: Draw, convex: bool) -> Case:
    """Denoising by a learned regulariser, weakly convex; or a convex one, for holes and blur."""
    dtype = draw.dtype()
    count = 3
    filters = draw.normal(count, 1, 3, 3)
    if draw.kind == "rank-deficient":
        filters[1] = -filters[0]
    filters = filters - filters.mean((-2, -1), keepdim=True)
    filters = filters / filters.square().sum((-2, -1), keepdim=True).sqrt()
    if draw.kind == "ill-conditioned":
        filters = filters * torch.tensor([1.0, 1e-3, 1e-6], dtype=DOUBLE).view(-1, 1, 1, 1)
    positions = draw.normal(count, 4).abs().add(1e-2).cumsum(-1) * draw.units
    steepness = draw.normal(count, 4).abs()
    if not convex:
        # Nine entries of a filter of norm 1 have a symbol of at most 9, and there are 3 filters.
        steepness = steepness - 1 / 40
        steepness[:, 2:] = -1 / 40
    widths = torch.diff(positions, prepend=torch.zeros(count, 1, dtype=DOUBLE))
    values = (steepness * widths).cumsum(-1)
    profile = RidgeProfile(positions.to(dtype), values.to(dtype))
    y = draw.images(1, 4, 5)
    terms: list[Any] = [LearnedRidges(filters.to(dtype), profile)]
    fit = SquaredError(y.to(dtype))
    if convex:
        mask = (torch.rand(4, 5, generator=draw.generator) < 0.7).to(dtype)
        fit = SquaredError(y.to(dtype), mask=mask)
        centre = draw.images(1, 4, 5).to(dtype)
        terms.append(Anchor(draw.random.choice((1e-3, 0.1)), centre))
    problem = Composite(fit, terms)
    precise = _precise(problem)
    good: list[Tensor] = []

    def minimum(sample: int) -> Any:
        if not good:
            step = 1 / precise.smoothness()
            run = md.solve(
                precise, md.Nesterov(step), iterations=2000, check_every=500, progress=False
            )
            good.extend((torch.as_tensor(run.best_x), torch.as_tensor(precise.start())))
        return min(exact_value(problem, sample, x[sample]) for x in good)

    def bounds() -> Iterator[Tensor]:
        for size in (1e-6, 1.0):
            noise = (draw.normal(*y.shape) * size * draw.units).to(dtype)
            yield problem.bound_at(y.to(dtype) + noise)
        found = md.solve(problem, md.Nesterov(1 / problem.smoothness()), iterations=60)
        yield problem.bound_at(torch.as_tensor(found.best_x))

    solver = methods.TangentBound(md.Nesterov(1 / problem.smoothness()))
    return Case(problem, bounds, minimum, lambda: _solve(problem, solver))


def _tv(draw: Draw, kind: str) -> Case:
    options: dict[str, Any] = draw.random.choice(
        ({}, {"isotropic": True}, {"coupled": True}, {"isotropic": True, "coupled": True})
    )
    huber = draw.random.choice((0.0, 0.0, 0.1)) * draw.units
    dtype = draw.dtype()
    y = draw.images(draw.random.choice((1, 2)), 3, draw.random.choice((1, 4))).to(dtype)
    weight = draw.weight()
    problem: md.TVInpainting
    if kind == "denoising":
        problem = md.TVDenoising(y, weight, huber=huber, **options)
    elif kind == "inpainting" or kind == "means":
        mask = (torch.rand(y.shape[-2:], generator=draw.generator) < 0.7).to(dtype)
        mask[0, 0] = 1
        problem = md.TVInpainting(y, mask, weight, huber=huber, **options)
    else:
        kernel = torch.rand(3, 1, generator=draw.generator).to(dtype)
        if draw.kind == "mixed signs":
            kernel = kernel - 0.5
        problem = md.TVInpainting(y, None, weight, operator=Blur(kernel), **options)
    solver: methods.Method[Any] = md.PDHG(problem.ratio)
    if kind == "denoising" and draw.random.random() < 0.5:
        solver = md.DualFISTA()
    elif kind == "means":
        solver = methods.Certified(md.AMD(Diagonal(1.0), draw.random.choice((0.05, 0.3))))
        solver.to(dtype)
    return _image_case(draw, problem, solver)


def _grid(draw: Draw, trends: bool) -> Case:
    """Signals, images or volumes with a weight for every axis."""
    dtype = draw.dtype()
    shape = draw.random.choice(((12,), (3, 4), (2, 3, 2)))
    y = draw.images(draw.random.choice((1, 2)), 3, 4).flatten(2)
    y = y.reshape(*y.shape[:2], *shape).to(dtype)
    weights = [draw.random.choice((0.3, 1.0, 2.5)) for _ in shape]
    weight = draw.weight()
    if trends:
        trend = md.TrendFiltering(y, weight, axis_weights=weights)
        exact: methods.Method[Any] = methods.TrendInteriorPoint()
        return _image_case(draw, trend, exact if len(shape) == 1 else md.PDHG(trend.ratio, 1.8))
    problem = md.GridTV(
        y,
        weight,
        axis_weights=weights,
        isotropic=draw.random.random() < 0.5,
        coupled=draw.random.random() < 0.3,
        huber=draw.random.choice((0.0, 0.0, 0.1)) * draw.units,
    )
    solver: methods.Method[Any] = md.PDHG(problem.ratio, draw.random.choice((1.0, 1.8)))
    if len(shape) == 1 and not problem.huber and not (problem.coupled and y.shape[1] > 1):
        solver = methods.TautString()
    return _image_case(draw, problem, solver)


def _composite(draw: Draw, make: Callable[[Draw, torch.dtype], Composite]) -> Case:
    problem = make(draw, draw.dtype())
    return _image_case(draw, problem, None)


def _image_case(draw: Draw, problem: Composite, solver: methods.Method[Any] | None) -> Case:
    """A problem with a saddle-point form: bounds of runs, of random dual points and of points."""
    precise = _precise(problem)
    ratio = draw.random.choice((0.1, 1.0, 10.0))
    if solver is None:
        solver = methods.PDHG(ratio) if problem.proximable else methods.CondatVu(ratio)
    chosen = solver
    good: list[Tensor] = []

    def points() -> list[Tensor]:
        if not good:
            form = precise.saddle_point()
            assert form is not None
            start = torch.as_tensor(precise.start())
            good.append(start)
            constant = start.mean(tuple(range(2, start.ndim)), keepdim=True).expand_as(start)
            good.append(torch.as_tensor(precise.domain.project(constant)))
            good.append(torch.as_tensor(precise.domain.project(torch.zeros_like(start))))
            reference: methods.Method[Any] = methods.CondatVu(ratio)
            if form.F_convexity > 0:
                reference = md.DualFISTA()
            elif form.proximable:
                reference = methods.PDHG(precise.ratio or ratio)
            run = md.solve(
                precise,
                reference,
                iterations=REFERENCE_STEPS,
                check_every=REFERENCE_STEPS // 3,  # every check computes bounds
                progress=False,
            )
            x = torch.as_tensor(run.best_x)
            good.append(x)
            good.append(torch.as_tensor(precise.domain.project(_merged(x))))
        return good

    def minimum(sample: int) -> Any:
        return min(exact_value(problem, sample, x[sample]) for x in points() if _finite(x[sample]))

    def bounds() -> Iterator[Tensor]:
        x = torch.as_tensor(problem.start())
        u = problem.K(x)
        for size in (1e-3, 1.0):
            noise = {}
            for name, block in u.items():
                noise[name] = (draw.normal(*block.shape) * size * draw.units).to(x.dtype)
            yield problem.bound_of_pair(x, noise)
        best = points()[3].to(x.dtype)
        at = problem.bound_at(best)
        if at is not None and bool((at.dtype == x.dtype) and at.numel()):
            yield at

    return Case(problem, bounds, minimum, lambda: _solve(problem, chosen))


def _merged(x: Tensor) -> Tensor:
    """Replace pixels that differ by next to nothing by one value."""
    flat = x.flatten(1)
    width = (flat.amax(1) - flat.amin(1)).clamp(min=1e-300) * 1e-7
    cells = ((flat - flat.amin(1, keepdim=True)) / width[:, None]).round()
    merged = flat.clone()
    for sample in range(len(flat)):
        for cell in cells[sample].unique():
            chosen = cells[sample] == cell
            merged[sample][chosen] = flat[sample][chosen].mean()
    return merged.reshape(x.shape)


def _shared_matrix(draw: Draw, dtype: torch.dtype) -> SquaredError:
    """Return a squared error with one matrix for all samples."""
    A = draw.matrix(4, 3)[-1]
    b = draw.vector(A.expand(BATCH, -1, -1))
    if draw.kind == "degenerate sample":
        b[0] = 0
    return SquaredError(b.to(dtype), Matrix(A.to(dtype)))


def _lasso(draw: Draw, dtype: torch.dtype) -> Composite:
    fit = _shared_matrix(draw, dtype)
    return Composite(fit, [L1(draw.weight() * draw.units)])


def _wavelets(draw: Draw, dtype: torch.dtype) -> Composite:
    return Composite(SquaredError(draw.images().to(dtype)), [L1(draw.weight(), Haar(1))])


def _wavelets_and_tv(draw: Draw, dtype: torch.dtype) -> Composite:
    blur = Blur(torch.rand(3, 3, generator=draw.generator).to(dtype))
    return Composite(
        SquaredError(draw.images().to(dtype), blur), [TV(draw.weight()), L1(draw.weight(), Haar(1))]
    )


def _volumes(draw: Draw, dtype: torch.dtype) -> Composite:
    y = draw.images(1, 3, 4).reshape(BATCH, 1, 3, 2, 2).to(dtype)
    mask = (torch.rand(3, 2, 2, generator=draw.generator) < 0.7).to(dtype)
    mask[0, 0, 0] = 1
    weights = [draw.random.choice((0.3, 1.0, 2.5)) for _ in range(3)]
    return Composite(SquaredError(y, mask=mask), [TV(draw.weight(), axis_weights=weights)])


def _tv_of_data(draw: Draw, dtype: torch.dtype) -> Composite:
    y = draw.images(height=2)
    A = torch.randn(6, 8, generator=draw.generator, dtype=DOUBLE)
    seen = (y.flatten(1) @ A.mT).to(dtype)
    return Composite(SquaredError(seen, Matrix(A.to(dtype), (1, 2, 4))), [TV(draw.weight())])


def _ridge(draw: Draw, dtype: torch.dtype) -> Composite:
    fit = _shared_matrix(draw, dtype)
    return Composite(fit, [Ridge(draw.random.choice((1e-6, 1.0)) * draw.units**2)])


def _roughness(draw: Draw, dtype: torch.dtype) -> Composite:
    blur = Blur(torch.rand(3, 3, generator=draw.generator).to(dtype))
    weight = draw.random.choice((1e-3, 1.0))
    return Composite(SquaredError(draw.images().to(dtype), blur), [Roughness(weight)])


def _non_negative(draw: Draw, dtype: torch.dtype) -> Composite:
    fit = _shared_matrix(draw, dtype)
    return Composite(fit, [PositiveOrthant()])


def _box(draw: Draw, dtype: torch.dtype) -> Composite:
    y = draw.images()
    blur = Blur(torch.rand(3, 3, generator=draw.generator).to(dtype))
    box = Box(0.0, 0.6 * draw.units)
    return Composite(SquaredError(y.to(dtype), blur), [TV(draw.weight()), box])


def _counts(draw: Draw, dtype: torch.dtype) -> Composite:
    y = draw.images().abs().to(dtype)
    background = 0.1 * max(float(y.mean()), 1e-30)
    return Composite(Counts(y, background=background), [TV(draw.random.choice((0.05, 0.5)))])


def _tomography(draw: Draw, dtype: torch.dtype) -> Composite:
    beam = ParallelBeam(3, angles=3, detectors=5)
    y = (10 * draw.images(1, 3, 5)).abs().to(dtype)
    background = 0.1 * max(float(y.mean()), 1e-30)
    weight = draw.random.choice((0.0, 0.1, 1.0))
    return PoissonTomography(y, beam, background=background, weight=weight)


def _classifier(draw: Draw, dtype: torch.dtype) -> Composite:
    features = draw.matrix(6, 2)
    labels = torch.where(draw.normal(BATCH, 6) > 0, 1.0, -1.0)
    ridge = draw.random.choice((1e-3, 1.0)) * draw.units**2
    model = LogisticRegression(features.to(dtype), labels.to(dtype), ridge)
    return Composite(model, [L1(draw.random.choice((1e-3, 0.1)) * draw.units)])


FORMULAS: dict[str, Callable[[Draw], Case]] = {
    "least squares": lambda draw: _least_squares(draw, WholeSpace()),
    "least squares, x ≥ 0": lambda draw: _least_squares(draw, PositiveOrthant()),
    "least squares, simplex": lambda draw: _least_squares(draw, Simplex()),
    "least squares, box": lambda draw: _least_squares(draw, Box(-0.5, 0.5)),
    "quadratic": _quadratic,
    "matrix game": _game,
    "logistic regression": lambda draw: _linear_model(draw, False),
    "support vector machine": lambda draw: _linear_model(draw, True),
    "TV denoising": lambda draw: _tv(draw, "denoising"),
    "TV inpainting": lambda draw: _tv(draw, "inpainting"),
    "TV, means of gradients": lambda draw: _tv(draw, "means"),
    "TV deblurring": lambda draw: _tv(draw, "deblurring"),
    "TV on grids": lambda draw: _grid(draw, False),
    "trend filtering": lambda draw: _grid(draw, True),
    "composite, volumes": lambda draw: _composite(draw, _volumes),
    "composite, L1": lambda draw: _composite(draw, _lasso),
    "composite, wavelets": lambda draw: _composite(draw, _wavelets),
    "composite, wavelets and TV": lambda draw: _composite(draw, _wavelets_and_tv),
    "composite, TV of data": lambda draw: _composite(draw, _tv_of_data),
    "composite, ridge": lambda draw: _composite(draw, _ridge),
    "composite, roughness": lambda draw: _composite(draw, _roughness),
    "composite, x ≥ 0": lambda draw: _composite(draw, _non_negative),
    "composite, box": lambda draw: _composite(draw, _box),
    "composite, counts": lambda draw: _composite(draw, _counts),
    "composite, logistic regression": lambda draw: _composite(draw, _classifier),
    "tomography": lambda draw: _composite(draw, _tomography),
    "quadratic program": lambda draw: _program(draw, False),
    "linear program": lambda draw: _program(draw, True),
    "cone program": _cone_program,
    "entropic transport": _transport,
    "learned ridges, denoising": lambda draw: _ridges(draw, False),
    "learned ridges, convex": lambda draw: _ridges(draw, True),
}


def run(tally: Tally) -> None:
    """Run the campaign; pairs of formula and kind take turns."""
    warnings.simplefilter("ignore")
    statuses = Counter[str]()
    pairs = [(formula, kind) for formula in FORMULAS for kind in KINDS]
    offset = tally.random.randrange(len(pairs))
    for number in tally.cases():
        formula, kind = pairs[(offset + 101 * number) % len(pairs)]
        seed = tally.seed * 10**6 + number
        draw = Draw(Random(seed), torch.Generator().manual_seed(seed), kind)
        name = f"{formula}, {kind}"
        try:
            statuses.update(check(tally, name, FORMULAS[formula](draw)))
        except md.DomainError as error:
            tally.note(name, f"refused, {type(error).__name__}")
        except Exception as error:
            tally.fault(f"{name}, {type(error).__name__}", f"case {number}: {error}")
    listed = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    tally.measure("statuses of the runs", listed)
    counts = [
        sum(tally.outcomes[f"{formula}, {kind}: {outcome}"] for outcome in OUTCOMES)
        for formula, kind in pairs
    ]
    tally.measure("pairs of formula and kind", str(len(pairs)))
    tally.measure("fewest problems of a pair", str(min(counts)))


def check(tally: Tally, name: str, case: Case) -> list[str]:
    """Compare all bounds of one batch with the minima of its samples; return the statuses."""
    bounds = [bound.double() for bound in case.bounds()]
    solution = None if case.run is None else case.run()
    if solution is not None and solution.lower is not None:
        bounds.append(solution.lower.double())
    count = len(bounds[0]) if bounds else (case.problem.batch or 1)
    minima = [case.minimum(sample) for sample in range(count)]
    check_verification(tally, name, case.problem, minima)
    for sample, minimum in enumerate(minima):
        lower = max((float(bound[sample]) for bound in bounds), default=-math.inf)
        if math.isnan(lower) or lower > minimum:
            excess = mpmath.nstr(mpmath.mpf(lower) - minimum, 5)
            tally.fault(name, f"lower {lower} above the minimum by {excess}")
            continue
        status = None if solution is None else solution.statuses[sample]
        if solution is not None and status is Status.CONVERGED:
            _check_gap(tally, name, case.problem, solution, sample, minimum)
        if status in (Status.INFEASIBLE, Status.UNBOUNDED) and mpmath.isfinite(minimum):
            tally.fault(f"{name}, status", f"{status}, but the minimum is {minimum}")
        tally.note(name, OUTCOMES[0] if lower > -math.inf else OUTCOMES[1])
    return [] if solution is None else [str(status) for status in solution.statuses]


def _check_gap(
    tally: Tally, name: str, problem: Problem, solution: md.Solution, sample: int, minimum: Any
) -> None:
    """Count a fault if a run is called converged at a relative gap above the tolerance."""
    start = exact_value(problem, sample, torch.as_tensor(problem.start())[sample])
    value = exact_value(problem, sample, torch.as_tensor(solution.best_x)[sample])
    rounding = 1e-12 * abs(start)
    if value - minimum > TOLERANCE * (start - minimum) * mpmath.mpf(1 + 1e-6) + rounding:
        share = mpmath.nstr((value - minimum) / max(start - minimum, mpmath.mpf(1e-300)), 5)
        tally.fault(f"{name}, status", f"converged at a relative gap of {share}")


def _solve(problem: Problem, method: methods.Method[Any]) -> md.Solution:
    return md.solve(
        problem, method, iterations=STEPS, stop=md.gap(TOLERANCE), check_every=20, progress=False
    )


def _precise(problem: Any) -> Any:
    """Return a copy in double precision."""
    return copy.deepcopy(problem).double()


def _finite(x: Tensor) -> bool:
    return bool(x.isfinite().all())


def seed_of_clock() -> int:
    """Return a seed from the clock."""
    return time.time_ns() // 10**6 % 10**6
