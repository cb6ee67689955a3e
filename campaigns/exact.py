"""Exact minima of tiny problems, and exact values of f, for the campaign of bounds.

Minima are computed in rational arithmetic by enumeration. Values have 60 digits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import mpmath
import torch
from gmpy2 import mpq
from torch import Tensor

from mirrordescent.domains import Box, Domain, PositiveOrthant, Simplex
from mirrordescent.problems import (
    L1,
    TV,
    Anchor,
    Composite,
    Counts,
    EntropicTransport,
    LearnedRidges,
    LeastSquares,
    LogisticRegression,
    MatrixGame,
    Quadratic,
    Ridge,
    Roughness,
    SquaredError,
    Trend,
)
from mirrordescent.problems.base import Problem
from mirrordescent.problems.filter_banks import responses
from mirrordescent.problems.profiles import RidgeProfile
from mirrordescent.problems.programs import QP
from mirrordescent.problems.variation import DifferenceTerm

Number = Any
"""A number of mpmath."""

Row = list[mpq]

mpmath.mp.dps = 60


def solve_exactly(matrix: Sequence[Sequence[mpq]], right: Sequence[mpq]) -> Row | None:
    """Solve a linear system by row reduction; None if it has no solution or several."""
    n = len(matrix[0])
    rows = [[*row, b] for row, b in zip(matrix, right, strict=True)]
    for column in range(n):
        pivot = next((i for i in range(column, len(rows)) if rows[i][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column]
        for i, row in enumerate(rows):
            if i != column and row[column]:
                factor = row[column] / head[column]
                rows[i] = [a - factor * b for a, b in zip(row, head, strict=True)]
    if any(row[n] for row in rows[n:]):
        return None
    return [rows[i][n] / rows[i][i] for i in range(n)]


def least_squares_minimum(A: Tensor, b: Tensor, domain: Domain) -> mpq:
    """Return the minimum of ½‖Ax − b‖² over a set, by enumeration of active constraints."""
    matrix = [[mpq(a) for a in row] for row in A.tolist()]
    right = [mpq(e) for e in b.tolist()]
    n = len(matrix[0])
    choices: list[tuple[mpq | None, ...]]
    if isinstance(domain, Box):
        choices = [(None, mpq(domain.lower), mpq(domain.upper))] * n
    else:
        choices = [(None, mpq(0))] * n
    best: mpq | None = None
    for fixed in itertools.product(*choices):
        x = _face_minimiser(matrix, right, fixed, isinstance(domain, Simplex))
        if x is None or not _inside(x, domain):
            continue
        value = _half_square(matrix, right, x)
        best = value if best is None else min(best, value)
    assert best is not None
    return best


def _face_minimiser(
    matrix: list[Row], right: Row, fixed: Sequence[mpq | None], on_simplex: bool
) -> Row | None:
    """Minimise over the free entries of x; None if the minimiser is not unique."""
    free = [j for j, each in enumerate(fixed) if each is None]
    held = [each or mpq(0) for each in fixed]
    rest = [
        b - sum((a * x for a, x in zip(row, held, strict=True)), mpq(0))
        for row, b in zip(matrix, right, strict=True)
    ]
    columns = [[row[j] for row in matrix] for j in free]
    system = [[_dot(a, b) for b in columns] for a in columns]
    target = [_dot(a, rest) for a in columns]
    if on_simplex:
        system = [[*row, mpq(1)] for row in system]
        system.append([mpq(1)] * len(free) + [mpq(0)])
        target.append(mpq(1))
    solution: Row | None = []
    if system:
        solution = solve_exactly(system, target)
    if solution is None:
        return None
    x = list(held)
    for j, value in zip(free, solution, strict=False):
        x[j] = value
    return x


def _inside(x: Row, domain: Domain) -> bool:
    if isinstance(domain, Box):
        return all(domain.lower <= each <= domain.upper for each in x)
    if isinstance(domain, Simplex):
        return sum(x) == 1 and min(x) >= 0
    return not isinstance(domain, PositiveOrthant) or min(x) >= 0


def _dot(a: Row, b: Row) -> mpq:
    return sum((x * y for x, y in zip(a, b, strict=True)), mpq(0))


def _half_square(matrix: list[Row], right: Row, x: Row) -> mpq:
    residuals = [_dot(row, x) - b for row, b in zip(matrix, right, strict=True)]
    return _dot(residuals, residuals) / 2


def game_value(A: Tensor) -> mpq:
    """Return min over the simplex of maxᵢ (Ax)ᵢ, by enumeration of supports and best replies."""
    matrix = [[mpq(a) for a in row] for row in A.tolist()]
    m, n = len(matrix), len(matrix[0])
    best = min(max(row[j] for row in matrix) for j in range(n))
    for size in range(2, min(m, n) + 1):
        for support in itertools.combinations(range(n), size):
            for replies in itertools.combinations(range(m), size):
                system = [[matrix[i][j] for j in support] + [mpq(-1)] for i in replies]
                system.append([mpq(1)] * size + [mpq(0)])
                solution = solve_exactly(system, [mpq(0)] * size + [mpq(1)])
                if solution is None or min(solution[:size]) < 0:
                    continue
                payoffs = [_dot([row[j] for j in support], solution[:size]) for row in matrix]
                best = min(best, max(payoffs))
    return best


def program_minimum(program: QP, sample: int) -> Number:
    """Return the minimum of ½⟨x, Px⟩ + ⟨q, x⟩ over l ≤ Ax ≤ u, a bounded set.

    It is ∞ if the set is empty, because the bounds were rounded.

    Some minimiser is the only solution of the optimality conditions of its active constraints, or
    of some of them that are linearly independent. So all sets of at most n constraints are tried.
    """
    P, q, A, lower, upper = _program_data(program, sample)
    n = len(q)
    sides = [(i, bound[i]) for i in range(len(A)) for bound in (lower, upper)]
    best: mpq | None = None
    for count in range(n + 1):
        for active in itertools.combinations(sides, count):
            if len({i for i, _ in active}) < count:
                continue
            system = [[*P[k], *(A[i][k] for i, _ in active)] for k in range(n)]
            system += [[*A[i], *[mpq(0)] * count] for i, _ in active]
            target = [*(-each for each in q), *(bound for _, bound in active)]
            solution = solve_exactly(system, target)
            if solution is None:
                continue
            x = solution[:n]
            images = [_dot(row, x) for row in A]
            if any(z < a or z > b for z, a, b in zip(images, lower, upper, strict=True)):
                continue
            value = _dot(x, [_dot(row, x) for row in P]) / 2 + _dot(q, x)
            best = value if best is None else min(best, value)
    return mpmath.inf if best is None else as_mpf(best)


def _program_data(program: QP, sample: int) -> tuple[list[Row], Row, list[Row], Row, Row]:
    """Return P, q, A, l and u of one sample."""
    assert isinstance(program.A, Tensor)
    q = _fractions(_of_sample(program.q, sample, 1))
    P = [[mpq(0)] * len(q) for _ in q]
    if program.P is not None:
        assert isinstance(program.P, Tensor)
        P = [_fractions(row) for row in _of_sample(program.P, sample, 2)]
    A = [_fractions(row) for row in _of_sample(program.A, sample, 2)]
    lower = _fractions(_of_sample(program.l, sample, 1))
    first = len(A) - sum(program.cones)
    upper = _fractions(_of_sample(program.u, sample, 1)[:first])
    return P, q, A, lower, upper


def _fractions(x: Tensor) -> Row:
    return [mpq(each) for each in x.tolist()]


def is_feasible(program: QP, sample: int, x: Tensor) -> bool:
    """Return whether a point satisfies all constraints of a program exactly, cones included."""
    _, _, A, lower, upper = _program_data(program, sample)
    point = _fractions(x)
    first = len(A) - sum(program.cones)
    for row, a, b in zip(A[:first], lower, upper, strict=False):
        if not a <= _dot(row, point) <= b:
            return False
    return all(
        t >= 0 and sum(e * e for e in s) <= t * t for t, *s in _points_in_cones(program, sample, x)
    )


def _points_in_cones(program: QP, sample: int, x: Tensor) -> list[Row]:
    """Return Ax − l of the rows of every cone."""
    _, _, A, lower, _ = _program_data(program, sample)
    point = _fractions(x)
    images = [_dot(row, point) - a for row, a in zip(A, lower, strict=True)]
    parts = []
    begin = len(A) - sum(program.cones)
    for size in program.cones:
        parts.append(images[begin : begin + size])
        begin += size
    return parts


def _program_value(program: QP, sample: int, x: Tensor) -> Number:
    """Return ½⟨x, Px⟩ + ⟨q, x⟩ + κ Σ violations."""
    P, q, A, lower, upper = _program_data(program, sample)
    point = _fractions(x)
    value = _dot(point, [_dot(row, point) for row in P]) / 2 + _dot(q, point)
    weights = program.weight
    weight = mpq(float(weights[sample] if len(weights) > 1 else weights[0]))
    first = len(A) - sum(program.cones)
    for row, a, b in zip(A[:first], lower, upper, strict=False):
        image = _dot(row, point)
        value += weight * max(image - b, a - image, mpq(0))
    total = as_mpf(value)
    for t, *s in _points_in_cones(program, sample, x):
        length = mpmath.sqrt(as_mpf(sum((e * e for e in s), mpq(0))))
        total += as_mpf(weight) * max(length - as_mpf(t), mpmath.mpf(0))
    return total


def as_mpf(number: mpq) -> Number:
    """Return a rational number with 60 digits."""
    return mpmath.mpf(number.numerator) / mpmath.mpf(number.denominator)


def exact_value(problem: Problem, sample: int, x: Tensor) -> Number:
    """Return f(x) of one sample with 60 digits, for the data and the point as they are stored."""
    if isinstance(problem, QP):
        return _program_value(problem, sample, x)
    point = _numbers(x)
    if isinstance(problem, LeastSquares):
        r = _residual(_of_sample(problem.A, sample, 2), _of_sample(problem.b, sample, 1), point)
        return _squares(r) / 2
    if isinstance(problem, Quadratic):
        centre = _numbers(_of_sample(problem.centre, sample, 1))
        d = [a - c for a, c in zip(point, centre, strict=True)]
        if problem.A.ndim == 1:
            return sum(a * e * e for a, e in zip(_numbers(problem.A), d, strict=True)) / 2
        return mpmath.fdot(d, _times(_of_sample(problem.A, sample, 2), d)) / 2
    if isinstance(problem, MatrixGame):
        return max(_times(_of_sample(problem.A, sample, 2), point))
    if isinstance(problem, Composite):
        value = _smooth_value(problem.smooth, sample, x)
        return value + sum(_term_value(term, sample, x) for term in problem.parts)
    return _smooth_value(problem, sample, x)


def _smooth_value(smooth: Problem, sample: int, x: Tensor) -> Number:
    if isinstance(smooth, SquaredError):
        z = _observed(smooth, sample, x)
        y = _numbers(smooth.y[sample])
        return (
            mpmath.mpf(smooth.curvature)
            / 2
            * _squares(
                [
                    a - b if m else mpmath.mpf(0)
                    for a, b, m in zip(z, y, _mask(smooth, sample), strict=True)
                ]
            )
        )
    if isinstance(smooth, Counts):
        total = mpmath.mpf(0)
        for z, y in zip(_observed(smooth, sample, x), _numbers(smooth.y[sample]), strict=True):
            mean = z + mpmath.mpf(smooth.background)
            total += mean - y + (y * mpmath.log(y / mean) if y else 0)
        return total
    point = _numbers(x)
    if isinstance(smooth, EntropicTransport):
        return _transport_value(smooth, sample, point)
    ridge = _numbers(smooth.ridge)
    margins = _times(_of_sample(smooth.signed, sample, 2), point)
    loss: Callable[[Number], Number] = _hinge
    if isinstance(smooth, LogisticRegression):
        loss = _logistic
    regulariser = sum(r * e * e for r, e in zip(ridge, point, strict=True)) / 2
    return regulariser + mpmath.mpf(smooth.C) * sum(map(loss, margins)) / len(margins)


def _transport_value(problem: EntropicTransport, sample: int, x: list[Number]) -> Number:
    """Return ε Σⱼ βⱼ log Σᵢ αᵢ exp((xᵢ − ⟨α, x⟩ − Cᵢⱼ)/ε)."""
    alpha = _numbers(_of_sample(problem.a, sample, 1))
    beta = _numbers(_of_sample(problem.b, sample, 1))
    costs = [_numbers(row) for row in _of_sample(problem.C, sample, 2)]
    epsilon = mpmath.mpf(problem.epsilon)
    alpha = [a / sum(alpha) for a in alpha]
    mean = mpmath.fdot(alpha, x)
    total = mpmath.mpf(0)
    for j, mass in enumerate(beta):
        exponents = [(xi - mean - row[j]) / epsilon for xi, row in zip(x, costs, strict=True)]
        largest = max(exponents)
        shares = [a * mpmath.exp(e - largest) for a, e in zip(alpha, exponents, strict=True)]
        total += mass / sum(beta) * (largest + mpmath.log(sum(shares)))
    return epsilon * total


def _hinge(margin: Number) -> Number:
    return max(mpmath.mpf(0), 1 - margin)


def _logistic(margin: Number) -> Number:
    return (
        mpmath.log1p(mpmath.exp(-margin))
        if margin > 0
        else (-margin + mpmath.log1p(mpmath.exp(margin)))
    )


def _term_value(term: Any, sample: int, x: Tensor) -> Number:
    weight = term.scaled_weight
    weight = mpmath.mpf(float(weight[sample] if isinstance(weight, Tensor) else weight))
    if isinstance(term, Ridge):
        return weight / 2 * _squares(_numbers(x))
    if isinstance(term, Anchor):
        centre = _numbers(term.centre.expand(term.centre.shape[0], *x.shape)[sample])
        return weight / 2 * _squares([a - c for a, c in zip(_numbers(x), centre, strict=True)])
    if isinstance(term, LearnedRidges):
        return weight * _ridge_sum(term, x)
    if isinstance(term, L1):
        if term.operator is None:
            return weight * sum(map(abs, _numbers(x)))
        return weight * sum(map(abs, _times(dense(term.operator, x), _numbers(x))))
    if isinstance(term, Roughness):
        return weight / 2 * sum(_squares(group) for group in _groups(x, term))
    if isinstance(term, Trend):
        return weight * sum(abs(d) for group in _groups(x, term) for d in group)
    assert isinstance(term, TV)
    total = mpmath.mpf(0)
    width = mpmath.mpf(term.huber)
    for group in _groups(x, term):
        size = mpmath.sqrt(_squares(group)) if len(group) > 1 else abs(group[0])
        total += size - width / 2 if size >= width else size * size / (2 * width)
    return weight * total


def _ridge_sum(term: LearnedRidges, x: Tensor) -> Number:
    """Return Σ φ(u) over all responses u of the filters."""
    units = torch.eye(x.numel(), dtype=torch.float64).reshape(-1, *x.shape)
    rows = responses(units, term.filters.double()).flatten(2)  # entries of filters, exactly
    total = mpmath.mpf(0)
    for k in range(len(term.filters)):
        for u in _times(rows[:, k].mT, _numbers(x)):
            total += _profile_value(term.profile, k, abs(u))
    return total


def _profile_value(profile: RidgeProfile, k: int, t: Number) -> Number:
    """Return the integral from 0 to t ≥ 0 of the line through (0, 0) and the pairs of filter k."""
    positions = [mpmath.mpf(0), *_numbers(profile.positions[k])]
    values = [mpmath.mpf(0), *_numbers(profile.values[k])]
    total = mpmath.mpf(0)
    for i in range(1, len(positions)):
        length = min(t, positions[i]) - positions[i - 1]
        if length <= 0:
            return total
        slope = (values[i] - values[i - 1]) / (positions[i] - positions[i - 1])
        total += values[i - 1] * length + slope * length**2 / 2
    return total + values[-1] * max(mpmath.mpf(0), t - positions[-1])


def _groups(x: Tensor, term: DifferenceTerm) -> list[list[Number]]:
    """Return the groups of weighted differences of one point (channels, …)."""
    isotropic = isinstance(term, TV) and term.isotropic
    coupled = isinstance(term, TV) and term.coupled
    order = 2 if isinstance(term, Trend) else 1
    groups: dict[tuple[int, ...], list[Number]] = {}
    for place in itertools.product(*map(range, x.shape)):
        for axis, weight in enumerate(term.weights_of_axes):
            if place[1 + axis] + order >= x.shape[1 + axis]:
                continue
            line = []
            for step in range(order + 1):
                at = list(place)
                at[1 + axis] += step
                line.append(mpmath.mpf(float(x[tuple(at)])))
            d = line[1] - line[0] if order == 1 else line[0] - 2 * line[1] + line[2]
            key = (*place[1:], 0 if isotropic else axis, 0 if coupled else place[0])
            groups.setdefault(key, []).append(mpmath.mpf(weight) * d)
    return list(groups.values())


def dense(operator: Any, like: Tensor) -> Tensor:
    """Return the matrix of an operator on one sample, from its images of all unit vectors."""
    n = like.numel()
    units = torch.eye(n, dtype=torch.float64).reshape(n, *like.shape)
    columns = [operator.A(unit.unsqueeze(0)).flatten() for unit in units]
    return torch.stack(columns, 1)


def _observed(fit: Any, sample: int, x: Tensor) -> list[Number]:
    if fit.operator is None:
        return _numbers(x)
    return _times(dense(fit.operator, x), _numbers(x))


def _mask(fit: SquaredError, sample: int) -> list[bool]:
    if fit.mask is None:
        return [True] * fit.y[sample].numel()
    return [bool(each) for each in fit.mask.expand_as(fit.y)[sample].flatten().tolist()]


def _of_sample(tensor: Tensor, sample: int, dimensions: int) -> Tensor:
    return tensor[sample] if tensor.ndim > dimensions else tensor


def _numbers(x: Tensor) -> list[Number]:
    return [mpmath.mpf(each) for each in x.flatten().tolist()]


def _times(A: Tensor, x: Sequence[Number]) -> list[Number]:
    return [mpmath.fdot(zip(map(mpmath.mpf, row), x, strict=True)) for row in A.tolist()]


def _residual(A: Tensor, b: Tensor, x: Sequence[Number]) -> list[Number]:
    return [z - e for z, e in zip(_times(A, x), _numbers(b), strict=True)]


def _squares(numbers: Sequence[Number]) -> Number:
    return mpmath.fsum(numbers, squared=True)
