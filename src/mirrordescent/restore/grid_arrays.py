"""Denoising of signals, volumes and video in memory: arrays with any axes as grids."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrordescent.methods import PDHG, TautString
from mirrordescent.problems import GridTV
from mirrordescent.restore.array_blocks import exact_dtype, exact_tensor
from mirrordescent.solving import Solution, Status, gap as gap_rule, solve

LARGE = 1 << 23
"""Points from which steps are not relaxed, which saves a third of the memory."""

STEPS = 2000
CHECK_EVERY = 10

ROUNDS = 8
"""Largest number of weights that are tried until the residual has the size of the noise."""

CLOSE = 0.02
"""Relative distance of residual and noise that is close enough."""

HALF_NORMAL_MEDIAN = 0.6745
"""Median of |z| for a standard normal z."""


@dataclass(frozen=True, eq=False)
class GridDenoisingResult:
    """A denoised array, and how it was denoised.

    Args:
        array: The result, of the kind, shape and type that was given.
        weight: Weight λ of every grid.
        noise: Standard deviation of the noise of every grid; None if a weight was given.
        gap: Proven relative gap of every grid.
        lower: Proven lower bound of every grid.
        statuses: Status of every grid.
    """

    array: Any
    weight: list[float]
    noise: list[float] | None
    gap: list[float]
    lower: list[float]
    statuses: list[Status]


@torch.no_grad()
def denoise_grids(
    array: Any,
    axes: int | Sequence[int],
    *,
    spacing: Sequence[float] | None = None,
    noise: float | None = None,
    strength: float = 1.0,
    weight: float | None = None,
    gap: float | None = None,
) -> GridDenoisingResult:
    """Denoise an array by isotropic total variation over some of its axes.

    Minimise ½(‖x − y‖² + λ Σ_p |(WDx)_p|) for every grid, where W divides the differences along an
    axis by the distance of neighbours. Without a weight, λ is chosen so that ‖x − y‖² is the number
    of points times σ² (Morozov's discrepancy principle), where σ is the noise.

    Args:
        array: NumPy array or tensor of any real type.
        axes: Axis, or axes, of the grids. All other axes are a batch.
        spacing: Distance of neighbours along each of the axes; 1 by default.
        noise: Standard deviation σ of the noise in the units of the array. By default it is
            estimated for each grid from products of differences along the axes.
        strength: Factor of σ.
        weight: Weight λ, in place of noise and strength.
        gap: Relative gap that must be proven; 1e-3 by default.
    """
    tolerance = 1e-3 if gap is None else gap
    chosen = (axes,) if isinstance(axes, int) else tuple(axes)
    tensor = array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))
    if not chosen or len({axis % max(tensor.ndim, 1) for axis in chosen}) != len(chosen):
        raise ValueError(f"axes must be different axes of the array, got {axes}")
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise TypeError(f"denoise with axes needs real numbers, got {tensor.dtype}")
    if spacing is not None and len(spacing) != len(chosen):
        raise ValueError(f"spacing needs {len(chosen)} numbers, one per axis, got {spacing}")
    if weight is not None and noise is not None:
        raise ValueError("give noise or weight, got both")
    moved = tensor.movedim(chosen, tuple(range(-len(chosen), 0)))
    grid = moved.shape[moved.ndim - len(chosen) :]
    dtype = torch.float64
    if tensor.dtype in (torch.bfloat16, torch.float16, torch.float32):
        dtype = torch.float32
    elif tensor.dtype != torch.float64:
        dtype = exact_dtype(tensor[:0].cpu().numpy().dtype)
    y = moved.reshape(-1, 1, *grid).to(dtype).contiguous()
    if tensor.dtype in (torch.int64, torch.uint64):
        exact_tensor(tensor.cpu().numpy(), dtype)  # raises if numbers are too large
    if not bool(y.isfinite().all()):
        raise ValueError("the array has numbers that are not finite")
    axis_weights = None if spacing is None else [1 / float(distance) for distance in spacing]
    levels = None
    if weight is None:
        levels = _noise_of(y) if noise is None else torch.full((len(y),), float(noise)).to(y)
        weights = _weights_for(y, axis_weights, strength * levels)
    else:
        weights = torch.full((len(y),), float(weight), dtype=dtype)
    problem = GridTV(y, weights, axis_weights=axis_weights, isotropic=True)
    solution = _solve(problem, tolerance)
    x = solution.x
    assert isinstance(x, Tensor)
    assert solution.lower is not None
    start = problem.value(y)
    gaps = (solution.value - solution.lower) / (start - solution.lower).clamp(min=1e-300)
    missed = [s for s in solution.statuses if s not in (Status.CONVERGED, Status.PRECISION)]
    if missed:
        warnings.warn(
            f"the result is proven to be within {float(gaps.max()):.2g} of the best possible, but "
            f"{tolerance:g} was required: give a larger gap",
            stacklevel=3,
        )
    back = x.reshape(moved.shape).movedim(tuple(range(-len(chosen), 0)), chosen)
    return GridDenoisingResult(
        _like(back, array, tensor),
        weights.tolist(),
        None if levels is None else levels.tolist(),
        gaps.tolist(),
        solution.lower.tolist(),
        solution.statuses,
    )


def _solve(problem: GridTV, tolerance: float, state: Any = None) -> Solution:
    rule = gap_rule(tolerance, start_value=problem.value(problem.y))
    if problem.y.ndim == 3:
        return solve(problem, TautString(), iterations=1, stop=rule, progress=False)
    relaxation = 1.0 if problem.y.numel() >= LARGE else 1.8
    return solve(
        problem,
        PDHG(problem.ratio, relaxation),
        iterations=STEPS,
        check_every=CHECK_EVERY,
        stop=rule,
        state=state,
        progress=False,
    )


def _noise_of(y: Tensor) -> Tensor:
    """Return σ = median|d|/0.67 for the products d of differences along all axes, (batch,)."""
    d = y
    for dimension in range(2, y.ndim):
        if y.shape[dimension] > 1:
            d = d.diff(dim=dimension) / math.sqrt(2)
    return d.flatten(1).abs().median(1).values / HALF_NORMAL_MEDIAN


def _weights_for(y: Tensor, axis_weights: list[float] | None, levels: Tensor) -> Tensor:
    """Return weights λ for which ‖x − y‖ = σ√n, up to a few per cent: (batch,).

    λ is multiplied by σ√n/‖x − y‖ until both agree. ‖x − y‖ grows with λ up to that of the mean; a
    noise beyond it keeps the largest λ.
    """
    target = levels * math.sqrt(y[0].numel())
    weights = (2 * levels).clamp(min=torch.finfo(y.dtype).tiny * 1e8)
    state = None
    for _ in range(ROUNDS):
        problem = GridTV(y, weights, axis_weights=axis_weights, isotropic=True)
        solution = _solve(problem, 1e-2, state)
        if y.ndim > 3:
            state = solution.state
        residual = (solution.x - y).flatten(1).norm(dim=1)  # type: ignore[operator]
        ratio = torch.where(residual > 0, target / residual, 2.0).clamp(0.25, 4.0)
        if bool(((ratio - 1).abs() <= CLOSE).all()):
            break
        weights = torch.where(target > 0, weights * ratio, weights)
    return weights


def _like(x: Tensor, array: Any, tensor: Tensor) -> Any:
    """Return a tensor as an array of the kind and type of another one."""
    if not tensor.dtype.is_floating_point:
        limits = torch.iinfo(tensor.dtype)
        x = x.round().clamp(limits.min, limits.max)
    x = x.to(tensor.dtype).contiguous()
    return x if isinstance(array, Tensor) else x.numpy().astype(np.asarray(array).dtype)
