"""Profiles of ridge functions: functions of one number with a piecewise-linear derivative."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mirrordescent._internal.rounding import unit
from mirrordescent.parts import Part


class ProfileConstants(NamedTuple):
    """Constants of the profiles of all filters, in double precision.

    Attributes:
        weak: Numbers ρₖ ≥ 0 such that φₖ + (ρₖ/2)t² is convex, (filters,), rounded up.
        steep: Numbers Mₖ ≥ 0 with φₖ″ ≤ Mₖ, (filters,), rounded up.
        lipschitz: The largest |φₖ″|.
        spread: A bound on Σⱼ|cⱼ| of all filters, for rounding errors.
    """

    weak: Tensor
    steep: Tensor
    lipschitz: float
    spread: float


class RidgeProfile(Part, nn.Module):
    """Even functions φₖ with φₖ(0) = 0 whose derivatives are piecewise linear.

    φₖ′ is odd. It interpolates (0, 0), (b₁, v₁), …, (b_J, v_J), and is v_J beyond b_J. With the
    slopes mⱼ = (vⱼ − vⱼ₋₁)/(bⱼ − bⱼ₋₁), m_{J+1} = 0 and cⱼ = mⱼ − mⱼ₊₁,

    .. code-block:: none

        φ′(t) = Σⱼ cⱼ tⱼ,    φ(t) = Σⱼ cⱼ (t tⱼ − tⱼ²/2),    tⱼ = min(max(t, −bⱼ), bⱼ)

    φₖ is convex if 0 ≤ v₁ ≤ … ≤ v_J. Otherwise it is weakly convex: φₖ + (ρₖ/2)t² is convex for
    ρₖ = −minⱼ mⱼ. Negative values are allowed: then large |t| are rewarded, and φₖ is not bounded
    from below.

    Args:
        positions: Positions 0 < b₁ < … < b_J, (filters, J); or (batch, filters, J).
        values: Values vⱼ of φ′ there, of the same shape.

    >>> import torch
    >>> huber = RidgeProfile(torch.tensor([[1.0]]), torch.tensor([[2.0]]))
    >>> u = torch.tensor([0.5, 3.0]).reshape(1, 1, 1, 2)
    >>> huber.value(u).flatten(), huber.derivative(u).flatten()
    (tensor([0.2500, 5.0000]), tensor([1., 2.]))
    """

    kind = "profile"

    positions: Tensor
    values: Tensor

    def __init__(self, positions: Tensor, values: Tensor) -> None:
        super().__init__()
        if positions.ndim not in (2, 3) or positions.shape != values.shape:
            raise ValueError(
                "positions and values must have the same shape, (filters, J) or "
                f"(batch, filters, J); got {tuple(positions.shape)} and {tuple(values.shape)}"
            )
        ends = torch.cat([torch.zeros_like(positions[..., :1]), positions], -1).detach()
        if not bool((ends.diff(dim=-1) > 0).all() & ends.isfinite().all()):
            raise ValueError("positions must be positive, finite and strictly increasing")
        if not bool(values.detach().isfinite().all()):
            raise ValueError("values must be finite")
        self.register_buffer("positions", positions)
        self.register_buffer("values", values)

    @property
    def convex(self) -> bool:
        """Whether all φₖ are convex."""
        values = self.values.detach()
        values = torch.cat([torch.zeros_like(values[..., :1]), values], -1)
        return bool(_rising(values).all())

    @property
    def nonnegative(self) -> bool:
        """Whether all φₖ are known to be at least 0, because φₖ′(t) ≥ 0 for t ≥ 0."""
        return bool((self.values.detach() >= 0).all())

    def slopes(self) -> Tensor:
        """Return m₁, …, m_J, in the shape of the positions."""
        zero = torch.zeros_like(self.positions[..., :1])
        positions = torch.cat([zero, self.positions], -1)
        values = torch.cat([zero, self.values], -1)
        return values.diff(dim=-1) / positions.diff(dim=-1)

    def coefficients(self) -> Tensor:
        """Return c₁, …, c_J, in the shape of the positions."""
        slopes = self.slopes()
        return slopes - torch.cat([slopes[..., 1:], torch.zeros_like(slopes[..., :1])], -1)

    def derivative(self, u: Tensor) -> Tensor:
        """φₖ′ of responses (batch, filters, …)."""
        return _clamped_sum(u, self.positions, self.coefficients())

    def value(self, u: Tensor) -> Tensor:
        """φₖ of responses (batch, filters, …)."""
        total = torch.zeros_like(u)
        for position, coefficient in _pieces(u, self.positions, self.coefficients()):
            t = torch.minimum(torch.maximum(u, -position), position)
            total = total + coefficient * t * (u - t / 2)
        return total

    def curvature(self, u: Tensor) -> Tensor:
        """φₖ″ of responses; at a position, the slope to its right."""
        size = u.abs()
        total = torch.zeros_like(u)
        for position, coefficient in _pieces(u, self.positions, self.coefficients()):
            total = total + torch.where(size < position, coefficient, 0.0)
        return total

    def prox(self, u: Tensor, tau: float | Tensor) -> Tensor:
        """argmin_s τφₖ(s) + (s − u)²/2 of responses, for a τ with τρₖ < 1.

        s + τφ′(s) = u is piecewise linear in s and increasing, and so is its inverse: with the
        positions b'ⱼ = bⱼ + τvⱼ, s is piecewise linear in u and has slope 1 beyond b'_J.

        Args:
            u: Responses, (batch, filters, …).
            tau: Step τ, a number or (batch,).
        """
        step = torch.as_tensor(tau, dtype=u.dtype, device=u.device).reshape(-1, 1, 1)
        if not bool((1 + step * self.slopes() > 0).all()):
            raise ValueError("the prox needs τρ < 1, where ρ is the modulus of weak convexity")
        positions = self.positions + step * self.values
        inverse = RidgeProfile(positions, self.positions.expand_as(positions))
        *_, (outermost, _) = _pieces(u, positions, positions)
        beyond = u - torch.minimum(torch.maximum(u, -outermost), outermost)
        return inverse.derivative(u) + beyond

    def conjugate(self, u: Tensor) -> Tensor:
        """φₖ*(u) = ut − φₖ(t) with φₖ′(t) = u, for convex profiles and |u| ≤ v_J.

        Where a slope is 0, every t of the piece gives the same number.
        """
        if not self.convex:
            raise ValueError("the conjugate is available for convex profiles only")
        t = torch.zeros_like(u)
        zero = torch.zeros_like(self.positions[..., :1])
        starts = torch.cat([zero, self.values[..., :-1]], -1)
        widths = torch.cat([zero, self.positions], -1).diff(dim=-1)
        rises = self.values - starts
        size = u.abs()
        shares = zip(_pieces(u, starts, rises), _pieces(u, widths, widths), strict=True)
        for (start, rise), (width, _) in shares:
            tiny = torch.finfo(u.dtype).tiny
            share = ((size - start) / rise.clamp(min=tiny)).clamp(0, 1)
            t = t + width * torch.where(rise > 0, share, 0.0)
        return size * t - self.value(t)

    def constants(self) -> ProfileConstants:
        """Return bounds on the slopes, with the rounding errors of their computation."""
        zero = torch.zeros_like(self.positions[..., :1]).double()
        positions = torch.cat([zero, self.positions.detach().double()], -1)
        values = torch.cat([zero, self.values.detach().double()], -1)
        widths = positions.diff(dim=-1)
        slopes = values.diff(dim=-1) / widths
        # The differences of stored numbers are rounded once, and so is the quotient.
        sizes = values[..., 1:].abs() + values[..., :-1].abs()
        error = unit(0) * sizes / widths
        error = torch.where(slopes == 0, 0.0, error)
        least = (slopes - error).amin(-1).reshape(-1, slopes.shape[-2]).amin(0)
        largest = (slopes + error).amax(-1).reshape(-1, slopes.shape[-2]).amax(0)
        weak = torch.where(_rising(values), 0.0, (-least).clamp(min=0))
        steep = largest.clamp(min=0)
        jumps = 2 * sizes / widths
        return ProfileConstants(
            weak, steep, float(torch.maximum(weak, steep).max()), float(jumps.sum(-1).max())
        )


def _rising(values: Tensor) -> Tensor:
    """Return the filters whose values do not decrease, in all samples: (filters,)."""
    rising = (values.diff(dim=-1) >= 0).all(-1)
    return rising.reshape(-1, rising.shape[-1]).all(0)


def _pieces(u: Tensor, first: Tensor, second: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the columns of two tables (…, filters, J), in a shape that broadcasts to u."""
    count = first.shape[-1]
    shape = (-1, u.shape[1], *(1,) * (u.ndim - 2))
    first = first if first.ndim == 3 else first.unsqueeze(0)
    second = second if second.ndim == 3 else second.unsqueeze(0)
    return [(first[..., j].reshape(shape), second[..., j].reshape(shape)) for j in range(count)]


def _clamped_sum(u: Tensor, positions: Tensor, coefficients: Tensor) -> Tensor:
    """Σⱼ cⱼ min(max(u, −bⱼ), bⱼ)."""
    total = torch.zeros_like(u)
    for position, coefficient in _pieces(u, positions, coefficients):
        total = total + coefficient * torch.minimum(torch.maximum(u, -position), position)
    return total
