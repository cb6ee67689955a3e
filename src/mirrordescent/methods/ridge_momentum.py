"""Accelerated gradient steps in the spectral geometry of a learned prior."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from mirrordescent._internal.checks import require_not_negative
from mirrordescent.methods.base import GradientMethod
from mirrordescent.problems.base import Problem
from mirrordescent.problems.composite import Composite
from mirrordescent.problems.fits import SquaredError
from mirrordescent.problems.learned_ridges import LearnedRidges
from mirrordescent.problems.operators import Blur
from mirrordescent.schedules import ScheduleLike, as_schedule
from mirrordescent.trees import Tree, per_sample


class RidgeMomentumState(NamedTuple):
    """Steps taken, the extrapolated point, the iterate, and the geometry.

    ``inverse`` is P at all frequencies, (batch or 1, rows, columns, channels, channels), or None if
    P is a multiple of I; ``unit`` is that multiple, (batch,).
    """

    k: int
    x: Tensor
    iterate: Tensor
    inverse: Tensor | None
    unit: Tensor


class RidgeMomentum(GradientMethod[RidgeMomentumState]):
    """Accelerated gradient steps in a spectral geometry. For k = 1, 2, …, with g = ∇f(x):

    .. code-block:: none

        u⁺ = x − t_k Pg,    x⁺ = u⁺ + β_k (u⁺ − u)
        P  = F⁻¹ (|Â|² + r + s Σⱼ mⱼ ŵⱼŵⱼᴴ)⁻¹ F

    F is the discrete Fourier transform, Â the transform of a blur, ŵⱼ that of filter j, mⱼ the
    largest slope of its profile φⱼ′, and r the weight of quadratic terms. So P is a channels ×
    channels matrix at every frequency, which is cheap beside the filter bank. An operator that is
    not a blur is replaced by its norm. With s = 1, P⁻¹ bounds the Hessian of f from above if the
    blurred pixels near the border are masked, as in a restoration. Then a step with t_k = 1 and
    without momentum does not increase f. If s = 0, P = I/L with the smoothness L of f, and the
    method is Nesterov's with momentum β_k.

    The answer is the point x of the next gradient, so one gradient serves the bound and the step.

    Args:
        t: Step sizes t_k.
        momentum: Momenta β_k.
        share: Weight s of the prior in P; 0 for P = I/L.

    >>> import torch
    >>> import mirrordescent as md
    >>> problem = md.Quadratic(torch.tensor([1.0, 4.0]), centre=torch.ones(1, 2))
    >>> bool(md.solve(problem, RidgeMomentum(1.0, 0.3), iterations=60).value < 1e-9)
    True
    """

    cli_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, t: ScheduleLike, momentum: ScheduleLike, share: float = 0.0) -> None:
        super().__init__()
        require_not_negative(share=share)
        self.t = as_schedule(t, "t")
        self.momentum = as_schedule(momentum, "momentum")
        self.share = float(share)

    def init(self, x0: Tree, problem: Problem | None = None) -> RidgeMomentumState:
        if not isinstance(x0, Tensor):
            raise TypeError("RidgeMomentum needs points that are tensors, got a dict")
        if problem is None:
            raise TypeError(
                "RidgeMomentum needs the problem from the start: call init(x0, problem)"
            )
        if self.share:
            inverse = _inverse_symbol(problem, x0, self.share)
            return RidgeMomentumState(0, x0, x0, inverse, x0.new_ones(len(x0)))
        smoothness = problem.smoothness()
        if smoothness is None:
            raise TypeError(
                f"RidgeMomentum needs a smoothness, which {type(problem).__name__} does not state"
            )
        return RidgeMomentumState(0, x0, x0, None, x0.new_full((len(x0),), 1 / smoothness))

    def update(self, state: RidgeMomentumState, grad: Tree) -> RidgeMomentumState:
        k = state.k + 1
        direction = self._direction(state, cast(Tensor, grad))
        iterate = state.x - self.t(k) * direction
        x = iterate + self.momentum(k) * (iterate - state.iterate)
        return state._replace(k=k, x=x, iterate=iterate)

    def _direction(self, state: RidgeMomentumState, g: Tensor) -> Tensor:
        """Return Pg."""
        if state.inverse is None:
            return per_sample(state.unit, g) * g
        spectrum = torch.fft.rfft2(g).permute(0, 2, 3, 1).unsqueeze(-1)
        product = (state.inverse @ spectrum).squeeze(-1).permute(0, 3, 1, 2)
        return torch.fft.irfft2(product, s=g.shape[-2:])


def _inverse_symbol(problem: Problem, x: Tensor, share: float) -> Tensor:
    """Return P at all frequencies of a composite problem with learned ridges."""
    ridges = [part for part in problem.modules() if isinstance(part, LearnedRidges)]
    fits = isinstance(problem, Composite) and isinstance(problem.smooth, SquaredError)
    if not fits or len(ridges) != 1:
        raise TypeError(
            "the geometry needs a Composite of a SquaredError and one LearnedRidges term; "
            f"got {type(problem).__name__}: use share=0"
        )
    composite = cast(Composite, problem)
    (term,) = ridges
    slopes = term.profile.slopes().amax(-1).clamp(min=0)
    weight = torch.as_tensor(term.scaled_weight, dtype=x.dtype, device=x.device)
    slopes = share * weight.reshape(-1, 1) * slopes.reshape(-1, len(term.filters))
    size = x.shape[-2:]
    spectrum = torch.fft.rfft2(term.filters, s=size)
    # Filters are correlated with the picture, so their symbol is conjugated.
    symbol = torch.einsum(
        "bk,kcij,kdij->bijcd", slopes.to(spectrum.dtype), spectrum, spectrum.conj()
    )
    diagonal = _data_symbol(cast(SquaredError, composite.smooth), size)
    for part in composite.parts:
        if part is not term:
            diagonal = diagonal + cast(LearnedRidges, part).convexity
    identity = torch.eye(x.shape[1], dtype=symbol.dtype, device=symbol.device)
    return torch.linalg.inv(symbol + diagonal.unsqueeze(-1).unsqueeze(-1) * identity)


def _data_symbol(fit: SquaredError, size: torch.Size) -> Tensor:
    """Return c|Â|² at all frequencies, (1 or batch, rows, columns).

    An operator that is not a blur is replaced by its norm. A mask makes the data term smaller.
    """
    if isinstance(fit.operator, Blur):
        kernel = fit.operator.kernel.to(fit.y)
        kernel = kernel if kernel.ndim == 3 else kernel.unsqueeze(0)
        return fit.curvature * torch.fft.rfft2(kernel, s=size).abs().square()
    frequencies = (1, size[0], size[1] // 2 + 1)
    return fit.y.new_full(frequencies, fit.curvature * fit.operator_norm**2)
