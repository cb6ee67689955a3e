"""Image restoration by total variation: denoising, and inpainting with an optional operator."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent._internal.checks import require_data, require_not_negative, require_positive
from mirrordescent._internal.derived import Derived
from mirrordescent._internal.image_arrays import ImageLike, as_images, as_mask
from mirrordescent.kernels import available, supports
from mirrordescent.mirrors import MirrorMap, Stencil
from mirrordescent.parts import Config, Part
from mirrordescent.problems.composite import Composite
from mirrordescent.problems.differences import (
    Differences,
    Groups,
    broadcast,
    differences,
    times,
)
from mirrordescent.problems.features import image_features
from mirrordescent.problems.fits import SquaredError
from mirrordescent.problems.hole_duals import reduce_divergence
from mirrordescent.problems.operators import LinearOperator
from mirrordescent.problems.pixels import Pixels
from mirrordescent.problems.tv_bounds import adjoint_bound, dual_bound
from mirrordescent.problems.variation import TV
from mirrordescent.trees import spread


class TVInpainting(Composite):
    """f(x) = s·(‖Z(Ax − y)‖² + λ Σ_g h(|(Dx)_g|)): total-variation restoration of images.

    Z keeps the pixels where ``mask`` is 1, and A is an optional linear operator such as a blur.
    D takes forward differences d of neighbouring pixels, without wrapping at the border. |d_g| is
    the Euclidean norm of a group of differences:

    .. code-block:: none

        anisotropic (default)       |d| of every difference: ‖Dx‖₁
        isotropic                   √(d↓² + d→²) of the two differences of a pixel
        coupled                     √(Σ_c d²) over the channels, for each direction
        isotropic and coupled       √(Σ_c (d↓² + d→²))

        h(r) = r;  for η = huber > 0, the Huber function r²/(2η) for r ≤ η, r − η/2 beyond

    The subgradient of a norm is 0 at 0. All variants are invariant under transposition of the
    images. The anisotropic ones are also invariant under reflection; the isotropic ones only
    approximately, because a reflection pairs other differences.

    The problem is a :class:`~mirrordescent.problems.Composite` of a squared error and a total
    variation, with compiled kernels, features and tighter bounds.

    Args:
        y: Observed images, (batch, channels, height, width), of any size and number of channels; or
            a Pillow image, a NumPy array, or a list of them.
        mask: 1 or True where a pixel was observed; must broadcast to y. An array or Pillow image
            that is white there is accepted too. None means that all pixels were observed.
        weight: Weight λ, a number or a tensor (batch,). A tensor of shape () that requires
            derivatives is the weight of all images.
        scale: Scale s. Published step sizes and gaps refer to the default ½.
        operator: Operator A: any object with ``A`` and ``A_adjoint``, such as a physics of
            deepinv; None means the identity.
        isotropic: Whether the two differences of a pixel are one group.
        coupled: Whether a group extends over all channels.
        huber: Width η in units of the pixels. A positive width reduces the staircase effect in
            smooth gradients of intensity.

    >>> import torch
    >>> y = torch.tensor([[[[0.0, 1.0]]]])
    >>> problem = TVInpainting(y, torch.ones(1, 2), weight=0.2)
    >>> problem.value(y), problem.fidelity(y), problem.total_variation(y)
    (tensor([0.1000]), tensor([0.]), tensor([1.]))
    >>> isotropic = TVInpainting(torch.zeros(1, 1, 2, 2), None, isotropic=True)
    >>> isotropic.total_variation(torch.eye(2).expand(1, 1, 2, 2))
    tensor([3.4142])
    """

    smooth: SquaredError

    def __init__(
        self,
        y: ImageLike | Sequence[ImageLike],
        mask: ImageLike | None,
        weight: float | Tensor = 0.15,
        scale: float = 0.5,
        operator: LinearOperator | None = None,
        *,
        isotropic: bool = False,
        coupled: bool = False,
        huber: float = 0.0,
    ) -> None:
        y = y if isinstance(y, Tensor) else as_images(y)
        mask = mask if mask is None or isinstance(mask, Tensor) else as_mask(mask)
        if y.ndim != 4 or 0 in y.shape[1:]:
            raise ValueError(
                f"y must be images (batch, channels, height, width), got shape {tuple(y.shape)}"
            )
        require_positive(scale=scale)
        require_not_negative(huber=huber)
        if isinstance(weight, Tensor) and (weight.ndim or weight.requires_grad):
            if weight.ndim == 0:  # keep its graph
                weight = weight.to(y).expand(len(y)).contiguous()
            _check_weight(weight, y)
        else:
            weight = float(weight)
        variation = TV(weight, isotropic, coupled, huber)
        variation.factor = float(scale)
        super().__init__(SquaredError(y, operator, mask, 2 * variation.factor), [variation])
        _require_observed_pixels(self.mask, y)
        self.scale = variation.factor

    def config(self) -> Config:
        return Part.config(self)

    def __repr__(self) -> str:
        """Show the constructor arguments instead of the submodules."""
        operator = "" if self.operator is None else f", operator={self.operator}"
        return f"{type(self).__name__}({self.extra_repr()}{operator})"

    @property
    def y(self) -> Tensor:
        """The observed images."""
        return self.smooth.y

    @property
    def mask(self) -> Tensor | None:
        """1 where a pixel was observed; None if all pixels were observed."""
        return self.smooth.mask

    @property
    def operator(self) -> LinearOperator | None:
        """The operator A; None means the identity."""
        return self.smooth.operator

    @property
    def variation(self) -> TV:
        """The total-variation term."""
        return cast(TV, self.parts[0])

    @property
    def weight(self) -> float | Tensor:
        """The weight λ."""
        return self.variation.weight

    @property
    def isotropic(self) -> bool:
        """Whether the two differences of a pixel are one group."""
        return self.variation.isotropic

    @property
    def coupled(self) -> bool:
        """Whether a group extends over all channels."""
        return self.variation.coupled

    @property
    def huber(self) -> float:
        """The width η of the Huber function."""
        return self.variation.huber

    @property
    def kink(self) -> float | Tensor:
        """sλ: a number, or (batch,)."""
        return self.variation.scaled_weight

    @property
    def groups(self) -> Groups:
        """The groups of differences whose norms are added."""
        return self.variation.groups

    @property
    def low(self) -> Tensor:
        """The least observed pixel of every channel, (batch, channels, 1, 1)."""
        return observed_range(self.y, self.mask)[0]

    @property
    def high(self) -> Tensor:
        """The largest observed pixel of every channel, (batch, channels, 1, 1)."""
        return observed_range(self.y, self.mask)[1]

    def fidelity(self, x: Tensor) -> Tensor:
        """‖Z(Ax − y)‖², without the scale."""
        return self.smooth.value(x) / self.scale

    def total_variation(self, x: Tensor) -> Tensor:
        """Σ_g h(|(Dx)_g|), without weight and scale."""
        return self.groups.total(differences(x), self.huber)

    @property
    def pixels(self) -> Pixels:
        """The images, the mask and the numbers of the objective, without the operator.

        The box is computed from the data as they are now, because bounds rest on it.
        """
        low, high = observed_range(self.y, self.mask)
        return Pixels(
            self.y,
            self.mask,
            low,
            high,
            2 * self.scale,
            self.kink,
            self.isotropic,
            self.coupled,
            self.huber,
        )

    def features(self, x0: Tensor | None = None) -> dict[str, Tensor]:
        """Return the features of :func:`~mirrordescent.problems.features.image_features`."""
        x0 = self.start() if x0 is None else x0
        return image_features(
            self.y, self.mask, self.weight, self.scale, x0, self.operator, self.smooth.operator_norm
        )

    def start(self, batch: int | None = None, *, fill: bool = False) -> Tensor:
        """Return y, or AᵀZy if A changes the shape of images.

        Args:
            batch: Ignored; the batch is that of y.
            fill: Whether to fill missing pixels from their neighbours. By default they are 0, as in
                the paper.
        """
        if self.operator is not None and self.y.shape[1:] != self.sample_shape:
            return self.smooth.observe_adjoint(self.y)
        if self.mask is None:
            return self.y.clone()
        return fill_holes(self.y, self.mask) if fill else self.smooth.apply_mask(self.y)

    # The saddle-point form. Without an operator, F is the fidelity on a box that contains the
    # minimisers: clipping an image to the range of the observed pixels of a channel increases
    # neither term.

    @property
    def ratio(self) -> float:
        """The fastest ratio among 0.1, …, 2 to a relative gap of 1e-6, for images in [0, 1]."""
        return 0.25 if self.operator is None else 1.5

    @property
    def block_scales(self) -> list[float]:
        """1 for every block, because stored methods were learned for unscaled blocks."""
        return [1.0] * len(self.block_norms)

    def K_norm_in(self, mirror: MirrorMap) -> float:
        """‖SDᵀD‖^½ for a stencil S and K = D.

        This is the square root of max 4(a + b)(1 − qa)(1 − qb) over a, b in [0, 1].
        """
        if self.dual_data or type(mirror) is not Stencil:
            return super().K_norm_in(mirror)
        q = mirror.damping.detach()
        return float(torch.where(q >= 1 / 3, 32 / (27 * q), 8 * (1 - q).square()).max()) ** 0.5

    def prox_F(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """Move observed pixels towards y, then clip to the box."""
        if self.operator is not None:
            return super().prox_F(x, tau)
        tau = spread(tau, x) if isinstance(tau, Tensor) else tau
        pull = 2 * self.scale * tau / (1 + 2 * self.scale * tau)
        low, high = _KNOWN_RANGE(self, self.y, self.mask)
        return (x + pull * self.smooth.apply_mask(self.y - x)).clamp(low, high)

    def argmin_F(self, w: Tensor) -> Tensor:
        """argmin_{x ∈ box} s‖x − y‖² + ⟨w, x⟩: y − w/(2s), clipped to the box."""
        low, high = _KNOWN_RANGE(self, self.y, self.mask)
        return self.smooth.argmin(w).clamp(low, high)

    def lower_bound(self, u: Differences) -> Tensor:
        """Return the dual value at the projection of u onto feasible points, a bound on min f."""
        if self.operator is not None:
            return super().lower_bound(u)
        compiled = supports(self.y) and available() and not u["vertical"].requires_grad
        if self.mask is not None and compiled:  # costs as much as a few steps
            u = reduce_divergence(u, self.mask, self.groups, self.kink)
        return self.variation.charged(dual_bound(self.pixels, u))

    def bound_of_pair(self, x: Tensor, u: Differences) -> Tensor:
        return self.lower_bound(u) if self.operator is None else super().bound_of_pair(x, u)

    def tight_bound(self, u: Differences, x: Tensor | None = None) -> Tensor:
        """Return the better of two bounds: that of u, and that of a nearby u with smaller Dᵀu.

        At missing pixels the minimum over the box is far below f unless Dᵀu = 0;
        :func:`~mirrordescent.problems.hole_duals.reduce_divergence` reduces Dᵀu there. With
        compiled kernels ``lower_bound`` does this too. Without them it costs as much as a hundred
        steps, so call this method rarely. It has no derivative.
        """
        if self.operator is not None:
            return super().tight_bound(u, x)
        if self.mask is None:
            return self.lower_bound(u)
        nearby = reduce_divergence(u, self.mask, self.groups, self.kink)
        better = torch.maximum(dual_bound(self.pixels, u), dual_bound(self.pixels, nearby))
        return self.variation.charged(better)

    def bound_from_means(self, gradient: Tensor, x: Tensor, count: int = 1) -> Tensor | None:
        """Return the bound of Dᵀū = ḡ − 2sZ(x̄ − y), where ū is a mean of feasible dual points.

        The difference cancels. Both means were rounded ``count`` times by half a unit in the last
        place; with weights ∝ i² this leaves count/8 units, and the gradients add a few more. Twice
        as many units are charged, of |ḡ|, the 4sλ that may have cancelled in ḡ, and
        2s(|x̄| + |y|).

        A Huber function needs ū itself, so the bound uses the dual point sλd_g/max(|d_g|, η) of x̄
        instead. With an operator there is no bound.
        """
        if self.operator is not None:
            return None
        if self.huber:
            slopes = self.groups.slopes(differences(x), self.huber)
            return self.lower_bound(times(self.kink, slopes))
        units = (count / 4 + 16) * torch.finfo(x.dtype).eps
        if x is self.y:  # kernels pass y if they have left the data term out of the gradients
            return self.variation.charged(adjoint_bound(self.pixels, gradient, error=units))
        size = gradient.abs() + 4 * broadcast(self.kink, gradient)
        size = size + 2 * self.scale * self.smooth.apply_mask(x.abs() + self.y.abs())
        bound = adjoint_bound(self.pixels, gradient - self.grad_F(x), error=units * size)
        return self.variation.charged(bound)


class TVDenoising(TVInpainting):
    """f(x) = s·(‖x − y‖² + λ Σ_g h(|(Dx)_g|)): total-variation denoising.

    By default Σ_g h(|(Dx)_g|) = ‖Dx‖₁; :class:`TVInpainting` describes the other variants and the
    arguments.
    """

    def __init__(
        self,
        y: ImageLike | Sequence[ImageLike],
        weight: float | Tensor = 0.15,
        scale: float = 0.5,
        *,
        isotropic: bool = False,
        coupled: bool = False,
        huber: float = 0.0,
    ) -> None:
        super().__init__(y, None, weight, scale, isotropic=isotropic, coupled=coupled, huber=huber)


def fill_holes(y: Tensor, mask: Tensor) -> Tensor:
    """Fill missing pixels with the mean of the known pixels in their 3×3 neighbourhood.

    Holes are filled from their border inwards.
    """
    known = mask.expand_as(y).contiguous()
    filled = known * y
    while not bool(known.all()):
        weight = F.avg_pool2d(known, 3, stride=1, padding=1)
        mean = F.avg_pool2d(filled, 3, stride=1, padding=1) / weight.clamp(min=1e-6)
        filled = torch.where(known.bool(), filled, mean * (weight > 0))
        known = ((known + weight) > 0).to(y.dtype)
    return filled


def observed_range(y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the range of the observed pixels of every channel, (batch, channels, 1, 1) each."""
    if mask is None:
        return y.amin((-2, -1), keepdim=True), y.amax((-2, -1), keepdim=True)
    hidden = ~mask.bool().expand_as(y)
    low = y.masked_fill(hidden, torch.inf).amin((-2, -1), keepdim=True)
    return low, y.masked_fill(hidden, -torch.inf).amax((-2, -1), keepdim=True)


_KNOWN_RANGE = Derived(observed_range)


def _check_weight(weight: Tensor, y: Tensor) -> None:
    if weight.shape != y.shape[:1]:
        raise ValueError(
            f"weight must be a number or a tensor of shape ({len(y)},), one weight per image, "
            f"got shape {tuple(weight.shape)}"
        )
    require_data(weight=weight, y=y)
    for sample, number in enumerate(weight.tolist()):
        if number <= 0:
            raise ValueError(f"weight must be positive, got {number:g} for image {sample}")


def _require_observed_pixels(mask: Tensor | None, y: Tensor) -> None:
    """Raise an error if a channel of an image has no observed pixel."""
    if mask is None:
        return
    unobserved = (~mask.expand_as(y).bool().flatten(2).any(-1)).nonzero()
    if len(unobserved):
        sample, channel = unobserved[0].tolist()
        raise ValueError(
            "mask needs an observed pixel in every channel, "
            f"but has no observed pixel in sample {sample}, channel {channel}"
        )
