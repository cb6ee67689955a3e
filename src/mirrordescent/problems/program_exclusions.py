"""Proofs in rational arithmetic that a program has no feasible point, or no minimum.

A method finds multipliers or a direction in floating point. They prove nothing until signs and
zeros hold exactly, so numbers close by with small denominators are tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import torch
from torch import Tensor

from mirrordescent.problems.outside_operators import SparseMatrix
from mirrordescent.problems.programs import QP

DENOMINATORS = (1, 2, 3, 4, 6, 10, 60, 4096)
"""Denominators of the numbers that are tried in place of those of a method."""

MOST_ENTRIES = 20_000
"""Largest number of entries of A and P for which proofs are attempted."""

Row = Sequence[Fraction]


def is_infeasible(program: QP, sample: int, multipliers: Tensor) -> bool:
    """Return whether multipliers y close to the given ones prove that no point is feasible.

    For every feasible x, ⟨Aᵀy, x⟩ = ⟨y, Ax⟩ ≤ Σᵢ max(uᵢyᵢ, lᵢyᵢ). If the least value of the left
    side over the bounds of single variables is larger than the right side, no x is feasible. In the
    rows of cones, −y ∈ K, and the terms of the right side are lᵢyᵢ.

    Args:
        program: Batch of programs.
        sample: Index of the program in the batch.
        multipliers: y, (m,).
    """
    if _too_large(program) or not bool(multipliers.isfinite().all()):
        return False
    rows = _matrix(program.A, sample)
    lower = _numbers(_of(program.l, sample))
    upper = _numbers(_of(program.u, sample))
    low, high = program.bounds_from_rows()
    least = _numbers(_of(low, sample))
    most = _numbers(_of(high, sample))
    for close in _close_by(multipliers):
        y = _in_polar_cones(close, program)
        if _supported(y, lower, upper, program) and any(y):
            support = _support(y, lower, upper, program)
            pull = _times_transposed(rows, y, len(least))
            smallest = _smallest(pull, least, most)
            if smallest is not None and smallest > support:
                return True
    return False


def is_unbounded(program: QP, sample: int, direction: Tensor) -> bool:
    """Return whether a direction d close to the given one proves that f has no minimum.

    If Pd = 0, ⟨q, d⟩ < 0 and no constraint becomes more violated along d, f decreases without bound
    along d from every point.

    Args:
        program: Batch of programs.
        sample: Index of the program in the batch.
        direction: d, (n,).
    """
    if _too_large(program) or not bool(direction.isfinite().all()):
        return False
    rows = _matrix(program.A, sample)
    curvature = [] if program.P is None else _matrix(program.P, sample)
    costs = _finite(_of(program.q, sample))
    lower = _numbers(_of(program.l, sample))
    upper = _numbers(_of(program.u, sample))
    for d in _close_by(direction):
        if _dot(costs, d) >= 0 or any(_dot(row, d) for row in curvature):
            continue
        images = [_dot(row, d) for row in rows]
        scalar, cones = _parts_of(images, program)
        stays = all(
            (image <= 0 or above is None) and (image >= 0 or below is None)
            for image, below, above in zip(scalar, lower, upper, strict=False)
        )
        if stays and all(map(_in_cone, cones)):
            return True
    return False


def _too_large(program: QP) -> bool:
    n = program.q.shape[-1]
    return n * (n + program.rows) > MOST_ENTRIES


def _of(tensor: Tensor, sample: int) -> Tensor:
    """Return the vector of a sample; one vector may serve all samples."""
    return tensor[sample if len(tensor) > 1 else 0] if tensor.ndim == 2 else tensor


def _matrix(matrix: Tensor | SparseMatrix, sample: int) -> list[Row]:
    if isinstance(matrix, SparseMatrix):
        units = torch.eye(math.prod(matrix.shape), dtype=matrix.entries.dtype)
        matrix = matrix.A(units.to(matrix.entries.device)).mT
    if matrix.ndim == 3:
        matrix = matrix[sample if len(matrix) > 1 else 0]
    return [_finite(row) for row in matrix]


def _finite(vector: Tensor) -> Row:
    return [Fraction(each) for each in vector.double().tolist()]


def _numbers(vector: Tensor) -> list[Fraction | None]:
    """Return numbers exactly, with None for infinite ones."""
    return [Fraction(each) if math.isfinite(each) else None for each in vector.double().tolist()]


def _close_by(vector: Tensor) -> Iterator[Row]:
    """Yield the numbers of a vector themselves, and rounded to small denominators."""
    exact = _finite(vector)
    yield exact
    for denominator in DENOMINATORS:
        yield [Fraction(round(each * denominator), denominator) for each in exact]


def _dot(a: Row, b: Row) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True) if x and y), Fraction(0))


def _times_transposed(rows: Sequence[Row], y: Row, n: int) -> Row:
    """Return Aᵀy."""
    used = [(row, each) for row, each in zip(rows, y, strict=True) if each]
    return [sum((row[j] * each for row, each in used), Fraction(0)) for j in range(n)]


def _parts_of(vector: Row, program: QP) -> tuple[Row, list[Row]]:
    """Return the entries of the scalar rows, and those of every cone."""
    first = len(vector) - sum(program.cones)
    parts = []
    begin = first
    for size in program.cones:
        parts.append(vector[begin : begin + size])
        begin += size
    return vector[:first], parts


def _in_cone(w: Row) -> bool:
    """Return whether ‖s‖ ≤ t for w = (t, s)."""
    return w[0] >= 0 and sum((each * each for each in w[1:]), Fraction(0)) <= w[0] * w[0]


def _in_polar_cones(y: Row, program: QP) -> Row:
    """Lower the first multiplier of every cone until −y ∈ K."""
    scalar, cones = _parts_of(y, program)
    moved = list(scalar)
    for cone in cones:
        head = cone[0]
        if not _in_cone([-each for each in cone]):
            length = math.hypot(*map(float, cone[1:]))
            if math.isinf(length):
                return [Fraction(0)] * len(y)
            head = -Fraction(length) * (1 + Fraction(1, 10**12))
        moved += [head, *cone[1:]]
    return moved


def _supported(
    y: Row, lower: Sequence[Fraction | None], upper: Sequence[Fraction | None], program: QP
) -> bool:
    """Return whether every multiplier belongs to a bound or a cone that exists."""
    scalar, cones = _parts_of(y, program)
    if not all(_in_cone([-each for each in cone]) for cone in cones):
        return False
    return all(
        not (each > 0 and above is None) and not (each < 0 and below is None)
        for each, below, above in zip(scalar, lower, upper, strict=False)
    )


def _support(
    y: Row, lower: Sequence[Fraction | None], upper: Sequence[Fraction | None], program: QP
) -> Fraction:
    """Return Σᵢ max(uᵢyᵢ, lᵢyᵢ), with lᵢyᵢ in the rows of cones."""
    total = Fraction(0)
    first = len(y) - sum(program.cones)
    for i, (each, below, above) in enumerate(zip(y, lower, upper, strict=True)):
        bound = above if each > 0 and i < first else below
        if each and bound is not None:
            total += each * bound
    return total


def _smallest(
    pull: Row, low: Sequence[Fraction | None], high: Sequence[Fraction | None]
) -> Fraction | None:
    """Return the least ⟨pull, x⟩ over low ≤ x ≤ high, or None if it is not bounded."""
    total = Fraction(0)
    for each, a, b in zip(pull, low, high, strict=True):
        bound = a if each > 0 else b
        if not each:
            continue
        if bound is None:
            return None
        total += each * bound
    return total
