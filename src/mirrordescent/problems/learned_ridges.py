"""A learned regulariser: the sum of profiles of the responses of a filter bank."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mirrordescent import kernels
from mirrordescent._internal.rounding import sum_error, unit
from mirrordescent.problems.differences import broadcast
from mirrordescent.problems.filter_banks import (
    absolute_norm,
    bank_bound,
    responses,
    responses_adjoint,
)
from mirrordescent.problems.profiles import RidgeProfile
from mirrordescent.problems.ridge_evaluations import LARGEST, evaluate, recall
from mirrordescent.problems.terms import Blocks, Term, largest
from mirrordescent.trees import norm, sum_per_sample

MEAN_TOLERANCE = 1e-5
"""Largest sum of a filter, relative to the sum of its absolute values."""


class LearnedRidges(Term):
    """R(x) = h Σₖ Σₚ φₖ((wₖ ∗ x)ₚ), with filters wₖ and profiles φₖ.

    p runs over the positions at which the filter lies inside the image. Filters have mean 0 in
    every channel, so R does not change if a constant is added to a channel.

    **Convexity.** Let ρₖ ≥ 0 be the modulus of weak convexity of φₖ, and B a bound on
    ‖Wᵀ diag(ρ) W‖ (:func:`~mirrordescent.problems.filter_banks.bank_bound`). Then R + (hB/2)‖x‖² is
    convex, and ``convexity`` is −hB. If hB < 1, the energy ½‖x − y‖² + R(x) is strongly convex with
    the modulus 1 − hB, although R is not convex.

    Args:
        filters: Filters, (count, channels, rows, columns) with odd sides.
        profile: Profiles, one for each filter; or one for each sample and filter.
        weight: Weight h.

    >>> import torch
    >>> difference = torch.tensor([[[[-1.0, 1.0, 0.0]]]])
    >>> huber = RidgeProfile(torch.tensor([[0.1]]), torch.tensor([[1.0]]))
    >>> term = LearnedRidges(difference, huber)
    >>> term.value(torch.tensor([[[[0.0, 1.0, 1.0, 0.0]]]]))
    tensor([0.9500])

    Reference: Goujon, Neumayer, Unser, Learning weakly convex regularizers for convergent
        image-reconstruction algorithms, SIAM J. Imaging Sci. 17 (2024).
    """

    kinked = False
    linearised = True
    blocks = ("responses",)

    filters: Tensor
    profile: RidgeProfile

    def __init__(
        self, filters: Tensor, profile: RidgeProfile, weight: float | Tensor = 1.0
    ) -> None:
        super().__init__(weight)
        if filters.ndim != 4 or filters.shape[-1] % 2 == 0 or filters.shape[-2] % 2 == 0:
            raise ValueError(
                "filters must be (count, channels, rows, columns) with odd sides, "
                f"got {tuple(filters.shape)}"
            )
        if profile.positions.shape[-2] != len(filters):
            raise ValueError(
                f"profile must have one row for each of the {len(filters)} filters, "
                f"got {profile.positions.shape[-2]}"
            )
        sums = filters.detach().double().sum((-2, -1)).abs()
        sizes = filters.detach().double().abs().sum((-2, -1)).amax(1, keepdim=True)
        if not bool((sums <= MEAN_TOLERANCE * sizes).all()):
            raise ValueError(
                "filters must have mean 0 in every channel: subtract their means over the last two "
                "dimensions"
            )
        self.register_buffer("filters", filters)
        self.profile = profile

    def prepare(self, like: Tensor) -> None:
        """Check the channels and the size of the images, and the number of profiles."""
        _, channels, rows, columns = self.filters.shape
        if like.ndim != 4 or like.shape[1] != channels:
            raise ValueError(
                f"points must be images (batch, {channels}, height, width) for these filters, "
                f"got shape {tuple(like.shape)}"
            )
        if like.shape[-2] < rows or like.shape[-1] < columns:
            raise ValueError(
                f"images must have at least {rows} × {columns} pixels, the size of the filters, "
                f"got {like.shape[-2]} × {like.shape[-1]}"
            )
        positions = self.profile.positions
        if positions.ndim == 3 and len(positions) not in (1, len(like)):
            raise ValueError(
                f"profile has {len(positions)} samples, but there are {len(like)} images"
            )
        self.to(like)

    # Facts.

    @property
    def norm(self) -> float:
        """A proven bound on ‖W‖."""
        return math.sqrt(bank_bound(self.filters)) * (1 + unit(0))

    @property
    def curvature(self) -> float:
        """A proven bound on the largest eigenvalue of the Hessian."""
        steep = self.profile.constants().steep
        return largest(self.scaled_weight) * bank_bound(self.filters, steep) * (1 + unit(0))

    @property
    def weakly_convex(self) -> bool:
        return not self.profile.convex

    @property
    def nonnegative(self) -> bool:
        return self.profile.nonnegative

    @property
    def convexity(self) -> float:
        """−hB, or 0 for convex profiles."""
        weak = self.profile.constants().weak
        if not bool(weak.any()):
            return 0.0
        return -largest(self.scaled_weight) * bank_bound(self.filters, weak) * (1 + unit(0))

    # Value and gradient.

    def value(self, x: Tensor) -> Tensor:
        if self._compiled(x):
            return self.scaled_weight * self._sums(x)[0].to(x.dtype)
        u = responses(x, self.filters)
        return self.scaled_weight * sum_per_sample(self.profile.value(u))

    def add_gradient(self, out: Tensor, x: Tensor, width: float | Tensor) -> Tensor:
        """Add hWᵀφ′(Wx); profiles have no kinks to be smoothed."""
        if self._compiled(x, out) and out.shape == x.shape:
            return out + broadcast(self.scaled_weight, x) * self._kernel_gradient(x)
        slope = self.profile.derivative(responses(x, self.filters))
        return out + broadcast(self.scaled_weight, x) * responses_adjoint(slope, self.filters)

    def hessian_product(self, x: Tensor, direction: Tensor) -> Tensor:
        """Return hWᵀ diag(φ″(Wx)) W·direction."""
        curvature = self.profile.curvature(responses(x, self.filters))
        change = curvature * responses(direction, self.filters)
        return broadcast(self.scaled_weight, x) * responses_adjoint(change, self.filters)

    def value_error(self, x: Tensor, value: Tensor) -> Tensor:
        """Bound the rounding error of ``value``: (batch,).

        Let A be the norm of the bank of |wₖ| and n the length of the sum of a response. Responses u
        have an error δ with ‖δ‖ ≤ γₙA‖x‖, which changes Σφ(u) by at most M‖u‖‖δ‖ + M‖δ‖²/2. With
        C ≥ Σ|cⱼ|, the sums over j add γ_J Cu² to φ. The sum over all positions adds γΣ|φ(u)|.
        """
        constants = self.profile.constants()
        pieces = self.profile.positions.shape[-1]
        image = absolute_norm(self.filters) * norm(x)
        delta = self._response_error(image)
        error = constants.lipschitz * delta * (image + delta)
        error = error + sum_error(2 * constants.spread * image.square(), 8 * pieces)
        places = len(self.filters) * x.shape[-1] * x.shape[-2]
        if self._compiled(x):
            sizes = self._sums(x)[1].to(x.dtype)
        else:
            sizes = sum_per_sample(self.profile.value(responses(x, self.filters)).abs())
        return 1.01 * largest(self.scaled_weight) * (error + sum_error(sizes, places))

    def gradient_error(self, x: Tensor) -> Tensor:
        """Bound the rounding error of the gradient in ℓ₂: (batch,).

        In the notation of :meth:`value_error`, φ′(u) changes by at most M‖δ‖, the sums over j add
        γ_J C|u| to it, and the sums of the adjoint add γAM‖u‖.
        """
        constants = self.profile.constants()
        count, _, rows, columns = self.filters.shape
        pieces = self.profile.positions.shape[-1]
        absolute = absolute_norm(self.filters)
        image = absolute * norm(x)
        slope_error = constants.lipschitz * self._response_error(image)
        slope_error = slope_error + sum_error(2 * constants.spread * image, 8 * pieces)
        adjoint_error = sum_error(absolute * constants.lipschitz * image, count * rows * columns)
        error = absolute * slope_error + adjoint_error
        return 1.01 * largest(self.scaled_weight) * error

    def _response_error(self, image: Tensor) -> Tensor:
        """Bound the rounding error of all responses in ℓ₂, given A‖x‖."""
        return sum_error(image, self.filters[0].numel())

    def _compiled(self, x: Tensor, *others: Tensor) -> bool:
        """Return whether the compiled kernel applies: it is available, and no derivative is needed.

        A subclass may change the formula, and uses plain torch.
        """
        if type(self) is not LearnedRidges or type(self.profile) is not RidgeProfile:
            return False
        if not (kernels.supports(x) and kernels.available()):
            return False
        tensors = [x, *others, self.filters, self.profile.positions, self.profile.values]
        if len({(tensor.dtype, tensor.device) for tensor in tensors}) > 1:
            return False
        if isinstance(self.weight, Tensor):
            tensors.append(self.weight)
        return not kernels.tracked(*tensors)

    def _sums(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return Σφ(Wx) and Σ|φ(Wx)| by the kernel, and keep the gradient for its next use."""
        if x.numel() > LARGEST:
            return kernels.ridge_sums(x, *self._bank())
        evaluation = evaluate(x, self._bank())
        return evaluation.sums, evaluation.sizes

    def _kernel_gradient(self, x: Tensor) -> Tensor:
        """Return Wᵀφ′(Wx) by the kernel."""
        bank = self._bank()
        known = recall(x, bank)
        if known is not None:
            return known.gradient
        if x.dtype == torch.float64 and x.numel() <= LARGEST:
            # Bounds are computed in double precision, and need the value as well.
            return evaluate(x, bank).gradient
        return kernels.ridge_gradient(x, *bank, torch.zeros_like(x))

    def _bank(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the filters, and the positions and coefficients of their profiles."""
        return self.filters, self.profile.positions, self.profile.coefficients()

    # The saddle-point form, for convex profiles.

    def K(self, x: Tensor) -> Blocks:
        return {"responses": responses(x, self.filters)}

    def add_adjoint(self, out: Tensor, u: Blocks) -> Tensor:
        return out + responses_adjoint(u["responses"], self.filters)

    def prox(self, u: Tensor, tau: float | Tensor) -> Tensor:
        """The prox of τhφₖ, response by response."""
        return self.profile.prox(u, self._steps(tau))

    def prox_conjugate(self, u: Blocks, sigma: float | Tensor) -> Blocks:
        """u − σ prox_{hφ/σ}(u/σ), by Moreau's identity; for σ = 0, the projection on |u| ≤ hv_J."""
        entries = u["responses"]
        step = torch.as_tensor(sigma, dtype=entries.dtype, device=entries.device)
        if not bool((step > 0).all()):
            limit = self._limits(entries)
            return {"responses": torch.minimum(torch.maximum(entries, -limit), limit)}
        spread_step = broadcast(sigma, entries)
        inner = self.profile.prox(entries / spread_step, self._steps(1 / step))
        return {"responses": entries - spread_step * inner}

    def conjugate(self, u: Blocks) -> Tensor:
        """Σ hφₖ*(u/h)."""
        entries = u["responses"]
        weight = broadcast(self.scaled_weight, entries)
        return self.scaled_weight * sum_per_sample(self.profile.conjugate(entries / weight))

    def dual_gauge(self, u: Blocks) -> Tensor:
        """max |uₖ|/(hv_J) over all filters; infinite if a filter with v_J = 0 has a response."""
        entries = u["responses"]
        ratio = entries.abs() / self._limits(entries)
        return torch.where(entries == 0, 0.0, ratio).flatten(1).amax(1)

    def _limits(self, entries: Tensor) -> Tensor:
        """Return hv_J in a shape that broadcasts to responses."""
        ends = self.profile.values[..., -1].reshape(-1, entries.shape[1], 1, 1)
        return broadcast(self.scaled_weight, entries) * ends

    def _steps(self, tau: float | Tensor) -> float | Tensor:
        """Return τh."""
        return tau * self.scaled_weight
