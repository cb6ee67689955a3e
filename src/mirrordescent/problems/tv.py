"""Image restoration by total variation: denoising, and inpainting with an optional operator in
front.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent._internal.checks import require_data, require_not_negative, require_positive
from mirrordescent._internal.image_arrays import ImageLike, as_images, as_mask
from mirrordescent.kernels import available, supports
from mirrordescent.mirrors import MirrorMap, Stencil
from mirrordescent.parts import Config, Part
from mirrordescent.problems.base import Pixels
from mirrordescent.problems.composite import Composite
from mirrordescent.problems.differences import Differences, Groups, differences, times
from mirrordescent.problems.features import image_features
from mirrordescent.problems.fits import SquaredError
from mirrordescent.problems.hole_duals import closed
from mirrordescent.problems.operators import LinearOperator
from mirrordescent.problems.tv_bounds import adjoint_bound, dual_bound
from mirrordescent.problems.variation import TV
from mirrordescent.trees import spread


class TVInpainting(Composite):
    """f(x) = s·(‖Z(Ax − y)‖² + λ Σ_g h(|(Dx)_g|)): total-variation restoration of observed pixels.

    Z keeps the pixels where ``mask`` is 1, A is an optional linear operator such as a blur, D takes
    forward differences d without wrapping, and |d_g| is the Euclidean norm of a group of them:

    .. code-block:: none

        anisotropic, the default    |d| of every difference by itself: ‖Dx‖₁
        isotropic                   √(d↓² + d→²) of the two differences of a pixel
        coupled                     √(Σ_c d²) over the channels, for each direction
        isotropic and coupled       √(Σ_c (d↓² + d→²))

        h(r) = r,  or with η = huber > 0  the Huber function r²/(2η) for r ≤ η, r − η/2 beyond

    The subgradient of a norm is 0 at 0. Transposing images changes none of these; mirroring them
    changes the isotropic ones a little, where other differences meet. It is a
    :class:`~mirrordescent.problems.Composite` of a squared error and a total variation, with what
    is known about this one besides: kernels, features, and tighter bounds.

    Args:
        y: the observed images, (batch, channels, height, width), of any size and with any number of
            channels; or what :func:`~mirrordescent._internal.image_arrays.as_images` turns into such: Pillow
            images, NumPy arrays, lists of them.
        mask: 1 or True where a pixel was observed, broadcastable to y; or an array or Pillow image
            that is white there.
        weight: λ, one for all images or a tensor (batch,).
        scale: s. The default ½ is the scale to which published step sizes and gaps refer.
        operator: anything with ``A`` and ``A_adjoint``, such as the physics of deepinv; None means
            A = I.
        isotropic: take the two differences of a pixel together.
        coupled: take the channels together.
        huber: η, in units of the pixels; small differences cost less, and gradients of intensity
            are not made stairs.

    >>> import torch
    >>> y = torch.tensor([[[[0.0, 1.0]]]])
    >>> problem = TVInpainting(y, torch.ones(1, 2), weight=0.2)
    >>> problem.value(y), problem.fidelity(y), problem.total_variation(y)
    (tensor([0.1000]), tensor([0.]), tensor([1.]))
    >>> TVInpainting(torch.zeros(1, 1, 2, 2), None, isotropic=True).total_variation(torch.eye(2).expand(1, 1, 2, 2))
    tensor([3.4142])
    """

    smooth: SquaredError
    low: Tensor
    high: Tensor

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
                f"y must be images (batch, channels, height, width), got {tuple(y.shape)}"
            )
        require_positive(scale=scale)
        require_not_negative(huber=huber)
        if isinstance(weight, Tensor) and weight.ndim:
            _check_weight(weight, y)
        else:
            weight = float(weight)
        variation = TV(weight, isotropic, coupled, huber)
        variation.factor = float(scale)
        super().__init__(SquaredError(y, operator, mask, 2 * variation.factor), [variation])
        _require_something_seen(self.mask, y)
        self.scale = variation.factor
        low, high = _observed_range(self.y, self.mask)
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def config(self) -> Config:
        return Part.config(self)

    def __repr__(self) -> str:
        """Show what it was made with, and not of what parts it is."""
        behind = "" if self.operator is None else f", operator={self.operator}"
        return f"{type(self).__name__}({self.extra_repr()}{behind})"

    @property
    def y(self) -> Tensor:
        """The observed images."""
        return self.smooth.y

    @property
    def mask(self) -> Tensor | None:
        """1 where a pixel was observed; None if all were."""
        return self.smooth.mask

    @property
    def operator(self) -> LinearOperator | None:
        """A; None means A = I."""
        return self.smooth.operator

    @property
    def variation(self) -> TV:
        """The term."""
        return cast(TV, self.parts[0])

    @property
    def weight(self) -> float | Tensor:
        """λ."""
        return self.variation.weight

    @property
    def isotropic(self) -> bool:
        """Whether the two differences of a pixel are taken together."""
        return self.variation.isotropic

    @property
    def coupled(self) -> bool:
        """Whether the channels are taken together."""
        return self.variation.coupled

    @property
    def huber(self) -> float:
        """η."""
        return self.variation.huber

    @property
    def kink(self) -> float | Tensor:
        """sλ: a number, or (batch,) if the weight is."""
        return self.variation.height

    @property
    def groups(self) -> Groups:
        """The differences whose norms are added up."""
        return self.variation.groups

    def fidelity(self, x: Tensor) -> Tensor:
        """‖Z(Ax − y)‖², without the scale."""
        return self.smooth.value(x) / self.scale

    def total_variation(self, x: Tensor) -> Tensor:
        """Σ_g h(|(Dx)_g|), without weight and scale."""
        return self.groups.total(differences(x), self.huber)

    def pixels(self) -> Pixels | None:
        """Return the data, unless there is an operator or a subclass has another objective."""
        if (
            self.operator is not None
            or type(self) not in (TVInpainting, TVDenoising)
            or not supports(self.y)
        ):
            return None
        return self._data

    @property
    def _data(self) -> Pixels:
        return Pixels(
            self.y,
            self.mask,
            self.low,
            self.high,
            2 * self.scale,
            self.kink,
            self.isotropic,
            self.coupled,
            self.huber,
        )

    def features(self, x0: Tensor | None = None) -> dict[str, Tensor]:
        """Return what :func:`~mirrordescent.problems.features.image_features` finds."""
        x0 = self.start() if x0 is None else x0
        return image_features(
            self.y, self.mask, self.weight, self.scale, x0, self.operator, self.smooth.operator_norm
        )

    def start(self, batch: int | None = None, *, fill: bool = False) -> Tensor:
        """Return y, with holes black as in the paper or filled from their neighbours; Aᵀy if A
        changes the shape.
        """
        if self.operator is not None and self.y.shape[1:] != self.sample_shape:
            return self.smooth.back(self.y)
        if self.mask is None:
            return self.y.clone()
        return fill_holes(self.y, self.mask) if fill else self.smooth.masked(self.y)

    # The saddle-point form. Without an operator, F is the fidelity on a box that contains the
    # minimisers: clipping an image to the range of the observed pixels of a channel increases
    # neither term.

    @property
    def ratio(self) -> float:
        """The one of 0.1, …, 2 that takes images in [0, 1] to a relative gap of 1e-6 fastest."""
        return 0.25 if self.operator is None else 1.5

    @property
    def block_scales(self) -> list[float]:
        """1: what was learned and tuned for these problems is for blocks as they are."""
        return [1.0] * len(self.block_norms)

    def K_norm_in(self, mirror: MirrorMap) -> float:
        """‖SDᵀD‖^½ for a stencil and K = D, the root of max 4(a + b)(1 − qa)(1 − qb) over a, b in
        [0, 1].
        """
        if self.dual_data or type(mirror) is not Stencil:
            return super().K_norm_in(mirror)
        q = mirror.damping.detach()
        return float(torch.where(q >= 1 / 3, 32 / (27 * q), 8 * (1 - q).square()).max()) ** 0.5

    def prox_F(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """Pull observed pixels towards y, then clip to the box."""
        if self.operator is not None:
            return super().prox_F(x, tau)
        tau = spread(tau, x) if isinstance(tau, Tensor) else tau
        pull = 2 * self.scale * tau / (1 + 2 * self.scale * tau)
        return (x + pull * self.smooth.masked(self.y - x)).clamp(self.low, self.high)

    def argmin_F(self, w: Tensor) -> Tensor:
        """argmin s‖x − y‖² + ⟨w, x⟩ over the box: y − w/(2s), clipped."""
        return self.smooth.argmin(w).clamp(self.low, self.high)

    def lower_bound(self, u: Differences) -> Tensor:
        """Return a proven lower bound on min f from any dual point: the dual value of the nearest
        feasible one.
        """
        if self.operator is not None:
            return super().lower_bound(u)
        if (
            self.mask is not None
            and supports(self.y)
            and available()
            and not u["vertical"].requires_grad
        ):
            u = closed(u, self.mask, self.groups, self.kink)  # which costs some steps
        return dual_bound(self._data, u)

    def bound_of_pair(self, x: Tensor, u: Differences) -> Tensor:
        return self.lower_bound(u) if self.operator is None else super().bound_of_pair(x, u)

    def tight_bound(self, u: Differences, x: Tensor | None = None) -> Tensor:
        """Return the better of two lower bounds: that of u, and that of a point near it which suits
        the holes.

        There the minimum over the box is far below f unless Dᵀu = 0, which ``holes.closed`` brings
        about. With kernels ``lower_bound`` does that too; without, it costs as much as a hundred
        steps, so it is for few looks. Nothing passes a derivative through it.
        """
        if self.operator is not None:
            return super().tight_bound(u, x)
        if self.mask is None:
            return self.lower_bound(u)
        near = closed(u, self.mask, self.groups, self.kink)
        return torch.maximum(dual_bound(self._data, u), dual_bound(self._data, near))

    def bound_from_means(self, gradient: Tensor, x: Tensor, told: int = 1) -> Tensor | None:
        """Use that ḡ − 2sZ(x̄ − y) = Dᵀū with a mean ū of feasible dual points; there is no bound
        with an operator.

        The difference cancels, and both means were rounded n times, each time by half a unit in the
        last place; with weights ∝ i² what is left of that is n/8 units. Some more come from the
        gradients themselves. For a Huber function one has to know ū itself; but there x̄ has a dual
        point of its own, sλd_g/max(|d_g|, η).
        """
        if self.operator is not None:
            return None
        if self.huber:
            return self.lower_bound(
                times(self.kink, self.groups.slopes(differences(x), self.huber))
            )
        units = (told / 8 + 8) * torch.finfo(x.dtype).eps
        size = gradient.abs()
        if x is not self.y:  # where kernels have left the data out of the gradients
            size = size + 2 * self.scale * self.smooth.masked(x.abs() + self.y.abs())
        return adjoint_bound(self._data, gradient - self.grad_F(x), error=units * size)


class TVDenoising(TVInpainting):
    """f(x) = s·(‖x − y‖² + λ Σ_g h(|(Dx)_g|)): total-variation denoising, every pixel observed.

    By default Σ_g h(|(Dx)_g|) is ‖Dx‖₁; see :class:`TVInpainting` for the others.
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
    """Fill every hole with the mean of the known pixels in its 3×3 neighbourhood, growing
    inwards.
    """
    known = mask.expand_as(y).contiguous()
    filled = known * y
    while not bool(known.all()):
        weight = F.avg_pool2d(known, 3, stride=1, padding=1)
        mean = F.avg_pool2d(filled, 3, stride=1, padding=1) / weight.clamp(min=1e-6)
        filled = torch.where(known.bool(), filled, mean * (weight > 0))
        known = ((known + weight) > 0).to(y.dtype)
    return filled


def _observed_range(y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest observed pixel of every channel, (batch, channels, 1, 1)
    each.
    """
    if mask is None:
        return y.amin((-2, -1), keepdim=True), y.amax((-2, -1), keepdim=True)
    hidden = ~mask.bool().expand_as(y)
    low = y.masked_fill(hidden, torch.inf).amin((-2, -1), keepdim=True)
    return low, y.masked_fill(hidden, -torch.inf).amax((-2, -1), keepdim=True)


def _check_weight(weight: Tensor, y: Tensor) -> None:
    if weight.shape != y.shape[:1]:
        raise ValueError(
            f"weight must be a number or of shape ({len(y)},), one for each image: {tuple(weight.shape)}"
        )
    require_data(weight=weight, y=y)
    for sample, number in enumerate(weight.tolist()):
        if number <= 0:
            raise ValueError(f"weight must be positive, got {number:g} for image {sample}")


def _require_something_seen(mask: Tensor | None, y: Tensor) -> None:
    if mask is None:
        return
    blind = (~mask.expand_as(y).bool().flatten(2).any(-1)).nonzero()
    if len(blind):
        sample, channel = blind[0].tolist()
        raise ValueError(f"mask has no observed pixel in sample {sample}, channel {channel}")
