"""Lower bounds on total-variation problems from dual points, on a box around the minimisers."""

import torch
from torch import Tensor

from mirrordescent import kernels
from mirrordescent._internal.rounding import rounded_down, sum_error, unit
from mirrordescent.problems.differences import DIRECTIONS, Differences, Groups, add_adjoint
from mirrordescent.problems.pixels import Pixels
from mirrordescent.trees import dot, sum_per_sample


def dual_bound(data: Pixels, u: Differences) -> Tensor:
    """Return min_{x ∈ box} F(x) + ⟨u, Dx⟩ − G*(u) ≤ min f, after projecting u: (batch,).

    Clipping an image to the range of the observed pixels of each channel increases neither term, so
    that the box contains a minimiser, and G(Dx) ≥ ⟨u, Dx⟩ − G*(u). The bound is computed in double
    precision and rounded down. If the kernels are compiled, one pass over the data is enough.
    """
    if _compiled(data, *u.values()):
        pair = tuple(u[name].to(data.y.dtype) for name in DIRECTIONS)
        sums = kernels.dual_value(
            (pair[0], pair[1]),
            None,
            data.y,
            data.mask,
            (data.low, data.high),
            _numbers(data),
            isotropic=data.isotropic,
            coupled=data.coupled,
        )
        huber = data.huber / (2 * _double(data.kink)) * sums[:, 3] if data.huber else 0.0
        return rounded_down(_minus_rounding(data, sums, huber), data.y.dtype)
    feasible = Groups(data.isotropic, data.coupled).project(
        {name: u[name].double() for name in DIRECTIONS}, _double(data.kink)
    )
    w = add_adjoint(feasible["vertical"].new_zeros(data.y.shape), feasible)
    huber = huber_conjugate(feasible, _double(data.kink), data.huber)
    return rounded_down(_minus_rounding(data, _sums_on_box(data, w), huber), data.y.dtype)


def adjoint_bound(data: Pixels, w: Tensor, error: Tensor | float) -> Tensor:
    """Return the bound of w = Dᵀu for an unknown u with |u_g| ≤ sλ: (batch,).

    An error of w changes the bound by at most the error times the width of the box. If |w| exceeds
    4sλ by more than the error, there is no such u, and the bound is −∞.

    Args:
        data: Problem.
        w: Dᵀu, up to errors.
        error: Bound on the error of every entry of w; or a number e for errors of at most
            e·(|w| + 4sλ), for which sums and maxima of |w| are enough.
    """
    limit = 4 * torch.as_tensor(data.kink, dtype=torch.float64, device=w.device)
    width = (data.high.double() - data.low.double()).flatten(1)
    exact = w.detach()
    if isinstance(error, Tensor):
        error = error.detach().double()
        charged = error.sum((2, 3))
        excess = (exact.double().abs() - error).flatten(1).amax(1)
    else:
        sizes = exact.abs()
        rows = sizes.sum(-1) * (1 + unit(exact.shape[-1], exact.dtype))
        sums = rows.double().sum(-1)
        charged = error * (sums + exact[0, 0].numel() * limit.reshape(-1, 1))
        largest = sizes.amax((1, 2, 3)).double()
        excess = largest - error * (largest + limit)
    loss = (charged * width).sum(1) * (1 + unit(exact[0].numel()))
    loss = torch.where(excess > limit, torch.inf, loss)
    if _compiled(data, w):
        sums = kernels.dual_value(None, w, data.y, data.mask, (data.low, data.high), _numbers(data))
    else:
        sums = _sums_on_box(data, w)
    return rounded_down(_minus_rounding(data, sums, loss), data.y.dtype)


def huber_conjugate(u: Differences, kink: float | Tensor, huber: float) -> float | Tensor:
    """(η/(2sλ))‖u‖², the summand of G*(u) that is due to the Huber function."""
    directions = {name: u[name] for name in DIRECTIONS}
    return huber / (2 * kink) * dot(directions, directions) if huber else 0.0


def _sums_on_box(data: Pixels, w: Tensor) -> Tensor:
    """Minimise s‖Z(x−y)‖² + ⟨w, x⟩ over the box, pixel by pixel, in double precision.

    The entries of w add up to 0, so x − low may replace x in ⟨w, x⟩. Every pixel is moved by
    t = x − y, which is −w/(2s), clipped. In this form rounding is relative to the width of the
    box and not to the brightness of the pixels.

    Returns:
        Sum of the minima, and sum of the magnitudes of their summands, (batch, 2).
    """
    scale = data.fidelity / 2
    exact = w.double()
    above = data.y.double() - data.low.double()
    below = data.y.double() - data.high.double()
    t = torch.minimum(torch.maximum(-exact / data.fidelity, -above), -below)
    offset = t + above
    fidelity = scale * t.square()
    if data.mask is not None:
        observed = data.mask.bool()
        width = data.high.double() - data.low.double()
        offset = torch.where(observed, offset, torch.where(exact > 0, 0.0, width))
        fidelity = torch.where(observed, fidelity, 0.0)
    linear = exact * offset
    parts = (fidelity + linear, fidelity + linear.abs())
    return torch.stack([sum_per_sample(part) for part in parts], 1)


def _minus_rounding(data: Pixels, sums: Tensor, loss: float | Tensor) -> Tensor:
    """Subtract losses and a bound on the rounding error from a sum.

    Every summand, and the up to 4sλ that cancelled in w, may be wrong by some units in the last
    place. An error of w acts on x − low, which is at most the width of the box. Sums row by row add
    as many units as a row has pixels and an image has rows.

    Args:
        data: Problem.
        sums: Sum of the summands and sum of their magnitudes, (batch, 2 or more).
        loss: Non-negative numbers to subtract as well.
    """
    *_, channels, height, width = data.y.shape
    extent = (data.high.double() - data.low.double()).sum((1, 2, 3)) * (height * width)
    size = sums[:, 1] + 4 * _double(data.kink) * extent + loss
    return sums[:, 0] - loss - sum_error(size, width + channels * height)


def _compiled(data: Pixels, *tensors: Tensor) -> bool:
    """Tell whether the compiled kernel applies: it is ready, and no derivative is needed."""
    needs_graph = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return kernels.supports(data.y) and not needs_graph and kernels.available()


def _numbers(data: Pixels) -> Tensor:
    """Return s and sλ: (1, 2) or (batch, 2)."""
    kinks = torch.as_tensor(data.kink, dtype=torch.float64).reshape(-1)
    return torch.stack([torch.full_like(kinks, data.fidelity / 2), kinks], 1)


def _double(number: float | Tensor) -> float | Tensor:
    return number.double() if isinstance(number, Tensor) else number
