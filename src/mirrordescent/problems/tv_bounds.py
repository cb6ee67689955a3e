"""Lower bounds on total-variation problems from dual points, over a box that contains the
minimisers.
"""

import torch
from torch import Tensor

from mirrordescent import kernels
from mirrordescent._internal.rounding import rounded_down
from mirrordescent.problems.base import Pixels
from mirrordescent.problems.differences import DIRECTIONS, Differences, Groups, add_adjoint
from mirrordescent.trees import dot, sum_per_sample


def dual_bound(data: Pixels, u: Differences) -> Tensor:
    """Return min over the box of F(x) + ⟨u, Dx⟩, minus G*(u), of the feasible point nearest to u: a
    bound on min f.

    It is computed in double precision and rounded down, in one pass if kernels are there.
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
        bend = data.huber / (2 * _double(data.kink)) * sums[:, 3] if data.huber else 0.0
        return rounded_down(_of_sums(data, sums, torch.float64) - bend, data.y.dtype)
    feasible = Groups(data.isotropic, data.coupled).project(
        {name: u[name].double() for name in DIRECTIONS}, _double(data.kink)
    )
    zero = feasible["vertical"].new_zeros(data.y.shape)
    bound = _value_on_box(data, add_adjoint(zero, feasible)) - bend_of(
        feasible, data.kink, data.huber
    )
    return rounded_down(bound, data.y.dtype)


def adjoint_bound(data: Pixels, w: Tensor, error: Tensor) -> Tensor:
    """Return the same for a w = Dᵀu with |u_g| ≤ sλ, without knowing u, where every entry of w may
    be so much in error.

    An error is worth at most the width of the box. If w is so far off that not even |w| ≤ 4sλ,
    nothing is known.
    """
    width = data.high.double() - data.low.double()
    kinks = torch.as_tensor(data.kink, dtype=torch.float64)
    lost = sum_per_sample(error.detach().double() * width)
    wrong = (w.detach().abs() - error > 4 * kinks.to(w).reshape(-1, 1, 1, 1)).flatten(1).any(1)
    lost = torch.where(wrong, torch.inf, lost)
    if _compiled(data, w):
        sums = kernels.dual_value(None, w, data.y, data.mask, (data.low, data.high), _numbers(data))
        return rounded_down(_of_sums(data, sums, w.dtype) - lost, data.y.dtype)
    return rounded_down(_value_on_box(data, w) - lost, data.y.dtype)


def bend_of(u: Differences, kink: float | Tensor, huber: float) -> float | Tensor:
    """(η/(2sλ))‖u‖², which a Huber function adds to G*(u)."""
    directions = {name: u[name] for name in DIRECTIONS}
    return huber / (2 * kink) * dot(directions, directions) if huber else 0.0


def _value_on_box(data: Pixels, w: Tensor) -> Tensor:
    """min over the box of s‖Z(x−y)‖² + ⟨w, x⟩, pixel by pixel, in double precision.

    The sum of w is 0, so x may be counted from the end of the box.
    """
    scale = data.fidelity / 2
    y = data.y.double()
    low = data.low.double()
    high = data.high.double()
    exact = w.double()
    x = (y - exact / data.fidelity).clamp(low, high)
    residual = x - y
    if data.mask is not None:
        x = torch.where(data.mask.bool(), x, torch.where(w > 0, low, high))
        residual = data.mask * (x - y)
    fidelity = scale * residual.square()
    linear = exact * (x - low)
    parts = (fidelity + linear, fidelity + linear.abs(), x - low)
    return _of_sums(data, torch.stack([sum_per_sample(part) for part in parts], 1), w.dtype)


def _of_sums(data: Pixels, sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Take off what rounding may have added: some units in the last place of every term, and of the
    4sλ that may have cancelled in w; and for sums that are added up row by row, as many units as a
    row has terms and an image rows.
    """
    *_, channels, height, width = data.y.shape
    units = 16 * torch.finfo(dtype).eps + (width + channels * height) * torch.finfo(sums.dtype).eps
    size = sums[:, 1] + 4 * _double(data.kink) * sums[:, 2]
    return sums[:, 0] - units * size.detach()


def _compiled(data: Pixels, *tensors: Tensor) -> bool:
    derived = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return kernels.supports(data.y) and not derived and kernels.available()


def _numbers(data: Pixels) -> Tensor:
    """s and sλ, (1, 2) or (batch, 2)."""
    kinks = torch.as_tensor(data.kink, dtype=torch.float64).reshape(-1)
    return torch.stack([torch.full_like(kinks, data.fidelity / 2), kinks], 1)


def _double(number: float | Tensor) -> float | Tensor:
    return number.double() if isinstance(number, Tensor) else number
