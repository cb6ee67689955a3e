"""Image restoration by total variation: denoising, and inpainting with an optional operator in front."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.checks import require_data, require_not_negative, require_positive
from mirrordescent.cosine import solve_poisson
from mirrordescent.images import ImageLike, as_images, as_mask
from mirrordescent.kernels import ready, suits
from mirrordescent.mirrors import MirrorMap, Stencil
from mirrordescent.problems.base import Pixels, Problem
from mirrordescent.problems.bounds import adjoint_bound, bend_of, dual_bound
from mirrordescent.problems.differences import Differences, Groups, add_adjoint, differences, times
from mirrordescent.problems.features import image_features
from mirrordescent.problems.holes import closed
from mirrordescent.problems.operators import LinearOperator, norm_bound, require_adjoint
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.rounding import rounded_down
from mirrordescent.trees import fits, spread, sum_per_sample


class TVInpainting(Problem, SaddlePoint):
    """f(x) = s·(‖Z(Ax − y)‖² + λ Σ_g h(|(Dx)_g|)): total-variation restoration of observed pixels.

    Z keeps the pixels where ``mask`` is 1, A is an optional linear operator such as a blur, D takes forward differences
    d without wrapping, and |d_g| is the Euclidean norm of a group of them:

    .. code-block:: none

        anisotropic, the default    |d| of every difference by itself: ‖Dx‖₁
        isotropic                   √(d↓² + d→²) of the two differences of a pixel
        coupled                     √(Σ_c d²) over the channels, for each direction
        isotropic and coupled       √(Σ_c (d↓² + d→²))

        h(r) = r,  or with η = huber > 0  the Huber function r²/(2η) for r ≤ η, r − η/2 beyond

    The subgradient of a norm is 0 at 0. Transposing images changes none of these; mirroring them changes the isotropic
    ones a little, where other differences meet.

    Args:
        y: the observed images, (batch, channels, height, width), of any size and with any number of channels; or what
            :func:`~mirrordescent.images.as_images` turns into such: Pillow images, NumPy arrays, lists of them.
        mask: 1 or True where a pixel was observed, broadcastable to y; or an array or Pillow image that is white there.
        weight: λ, one for all images or a tensor (batch,).
        scale: s. The default ½ is the scale to which published step sizes and gaps refer.
        operator: anything with ``A`` and ``A_adjoint``, such as the physics of deepinv; None means A = I.
        isotropic: take the two differences of a pixel together.
        coupled: take the channels together.
        huber: η, in units of the pixels; small differences cost less, and gradients of intensity are not made stairs.

    >>> import torch
    >>> y = torch.tensor([[[[0.0, 1.0]]]])
    >>> problem = TVInpainting(y, torch.ones(1, 2), weight=0.2)
    >>> problem.value(y), problem.fidelity(y), problem.total_variation(y)
    (tensor([0.1000]), tensor([0.]), tensor([1.]))
    >>> TVInpainting(torch.zeros(1, 1, 2, 2), None, isotropic=True).total_variation(torch.eye(2).expand(1, 1, 2, 2))
    tensor([3.4142])
    """

    convex = True
    never_below = 0.0

    sample_shape: tuple[int, ...]
    y: Tensor
    mask: Tensor | None
    weight: float | Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self, y: ImageLike | Sequence[ImageLike], mask: ImageLike | None, weight: float | Tensor = 0.15,
        scale: float = 0.5, operator: LinearOperator | None = None, *, isotropic: bool = False, coupled: bool = False,
        huber: float = 0.0,
    ) -> None:  # fmt: skip
        y = y if isinstance(y, Tensor) else as_images(y)
        mask = mask if mask is None or isinstance(mask, Tensor) else as_mask(mask)
        if y.ndim != 4 or 0 in y.shape[1:]:
            raise ValueError(f"y must be images (batch, channels, height, width), got {tuple(y.shape)}")
        shape = y.shape if operator is None else operator.A_adjoint(y).shape
        super().__init__(y.shape[0], tuple(shape[1:]), y=y)
        require_positive(scale=scale)
        require_not_negative(huber=huber)
        self.scale, self.operator, self.huber = float(scale), operator, float(huber)
        self.isotropic, self.coupled = bool(isotropic), bool(coupled)
        if isinstance(weight, Tensor) and weight.ndim:
            self.register_buffer("weight", _check_weight(weight, y))
        else:
            self.weight = float(weight)
            require_positive(weight=self.weight)
        self.register_buffer("mask", _check_mask(mask, y))
        if operator is not None:
            require_adjoint(operator, y.new_zeros(shape), y)
        self._operator_norm = None if operator is None else norm_bound(operator, y.new_zeros(shape))
        low, high = _observed_range(self.y, self.mask)
        self.register_buffer("low", low)
        self.register_buffer("high", high)

    def value(self, x: Tensor) -> Tensor:
        """s·(fidelity + λ·total variation)."""
        return self.scale * (self.fidelity(x) + self.weight * self.total_variation(x))

    def fidelity(self, x: Tensor) -> Tensor:
        """‖Z(Ax − y)‖², without the scale."""
        return sum_per_sample(self._residual(x).square())

    def total_variation(self, x: Tensor) -> Tensor:
        """Σ_g h(|(Dx)_g|), without weight and scale."""
        return self.groups.total(differences(x), self.huber)

    def grad(self, x: Tensor) -> Tensor:
        """s·(2AᵀZ(Ax − y) + λDᵀu), u_g = d_g/max(|d_g|, η), d = Dx: for η = 0 sign(d) or d_g/|d_g|, 0 at 0."""
        return self._grad(x, self.huber)

    def smoothed_grad(self, x: Tensor, width: float | Tensor) -> Tensor:
        """Replace |d_g| by the Huber function that is quadratic for |d_g| ≤ max(width, η); a width may be (batch,)."""
        if self.huber:
            width = width.clamp(min=self.huber) if isinstance(width, Tensor) else max(width, self.huber)
        return self._grad(x, width)

    @property
    def groups(self) -> Groups:
        """The differences whose norms are added up."""
        return Groups(self.isotropic, self.coupled)

    @property
    def kink(self) -> float | Tensor:
        """sλ: a number, or (batch,) if the weight is."""
        return self.scale * self.weight

    def smoothness(self) -> float:
        """2s‖A‖² + 8sλ/η, for the greatest λ; infinite without a Huber function."""
        if not self.huber:
            return math.inf
        kink = float(self.kink.max()) if isinstance(self.kink, Tensor) else self.kink
        return 2 * self.scale * (1.0 if self._operator_norm is None else self._operator_norm**2) + 8 * kink / self.huber

    def strong_convexity(self) -> float:
        return self.F_convexity

    def pixels(self) -> Pixels | None:
        """Return the data, unless there is an operator or a subclass has another objective."""
        if self.operator is not None or type(self) not in (TVInpainting, TVDenoising) or not suits(self.y):
            return None
        return self._data

    @property
    def _data(self) -> Pixels:
        return Pixels(
            self.y, self.mask, self.low, self.high, 2 * self.scale, self.kink, self.isotropic, self.coupled, self.huber
        )

    def features(self, x0: Tensor | None = None) -> dict[str, Tensor]:
        """Return what :func:`~mirrordescent.problems.features.image_features` finds."""
        x0 = self.start() if x0 is None else x0
        return image_features(self.y, self.mask, self.weight, self.scale, x0, self.operator, self._operator_norm or 1.0)

    def start(self, batch: int | None = None, *, fill: bool = False) -> Tensor:
        """Return y, with holes black as in the paper or filled from their neighbours; Aᵀy if A changes the shape."""
        if self.operator is not None and self.y.shape[1:] != self.sample_shape:
            return self.operator.A_adjoint(self._masked(self.y))
        if self.mask is None:
            return self.y.clone()
        return fill_holes(self.y, self.mask) if fill else self._masked(self.y)

    # The saddle-point form F(x) + G(Kx). Without an operator, F is the fidelity on a box that contains the minimisers:
    # clipping an image to the range of the observed pixels of a channel increases neither term. With an operator, F = 0
    # and the fidelity is a second block of G.

    @property
    def ratio(self) -> float:
        """The one of 0.1, …, 2 that takes images in [0, 1] to a relative gap of 1e-6 fastest."""
        return 0.25 if self.operator is None else 1.5

    @property
    def K_norm(self) -> float:
        """√(8 + ‖A‖²) ≥ ‖K‖."""
        return (8 + (self._operator_norm or 0.0) ** 2) ** 0.5

    def K_norm_in(self, mirror: MirrorMap) -> float:
        """‖SDᵀD‖^½ for a stencil without an operator, the root of max 4(a + b)(1 − qa)(1 − qb) over a, b in [0, 1]."""
        if self.operator is not None or type(mirror) is not Stencil:
            return super().K_norm_in(mirror)
        q = mirror.damping.detach()
        return float(torch.where(q >= 1 / 3, 32 / (27 * q), 8 * (1 - q).square()).max()) ** 0.5

    @property
    def F_convexity(self) -> float:
        """2s when every pixel is observed directly."""
        return 2 * self.scale if self.operator is None and self.mask is None else 0.0

    @property
    def F_smoothness(self) -> float:
        """2s, or 0 with an operator, where the fidelity is in G."""
        return 2 * self.scale if self.operator is None else 0.0

    def grad_F(self, x: Tensor) -> Tensor:
        """2sZ(x − y), without the box."""
        return 2 * self.scale * self._residual(x) if self.operator is None else torch.zeros_like(x)

    def K(self, x: Tensor) -> Differences:
        """Dx, with ZAx beside it if there is an operator."""
        blocks = differences(x)
        if self.operator is not None:
            blocks["data"] = self._masked(self.operator.A(x))
        return blocks

    def K_adjoint(self, u: Differences) -> Tensor:
        """Dᵀu, plus AᵀZv if there is an operator."""
        out = add_adjoint(u["vertical"].new_zeros(len(u["vertical"]), *self.sample_shape), u)
        return out if self.operator is None else out + self.operator.A_adjoint(self._masked(u["data"]))

    def prox_F(self, x: Tensor, tau: float | Tensor) -> Tensor:
        """Pull observed pixels towards y, then clip to the box."""
        if self.operator is not None:
            return x
        tau = spread(tau, x) if isinstance(tau, Tensor) else tau
        pull = 2 * self.scale * tau / (1 + 2 * self.scale * tau)
        return (x + pull * self._masked(self.y - x)).clamp(self.low, self.high)

    def argmin_F(self, w: Tensor) -> Tensor:
        """argmin s‖x − y‖² + ⟨w, x⟩ over the box: y − w/(2s), clipped."""
        return (self.y - w / (2 * self.scale)).clamp(self.low, self.high)

    def prox_G_conjugate(self, u: Differences, sigma: float | Tensor) -> Differences:
        """Project onto |u_g| ≤ sλ, with an η after dividing by 1 + ση/(sλ); shrink the data block to the residual."""
        shrunk = times(1 / (1 + sigma * self.huber / self.kink), u) if self.huber else u
        proxed = self.groups.project(shrunk, self.kink)
        if self.operator is not None:
            sigma = spread(sigma, u["data"]) if isinstance(sigma, Tensor) else sigma
            proxed["data"] = (u["data"] - sigma * self._masked(self.y)) / (1 + sigma / (2 * self.scale))
        return proxed

    def lower_bound(self, u: Differences) -> Tensor:
        """Return a proven lower bound on min f from any dual point: the dual value of the nearest feasible one."""
        if self.operator is not None:
            return self._bound_with_operator(self.prox_G_conjugate(u, 0.0))
        if self.mask is not None and suits(self.y) and ready() and not u["vertical"].requires_grad:
            u = closed(u, self.mask, self.groups, self.kink)  # which costs some steps
        return dual_bound(self._data, u)

    def tight_bound(self, u: Differences, x: Tensor | None = None) -> Tensor:
        """Return the better of two lower bounds: that of u, and that of a point near it which suits the holes.

        There the minimum over the box is far below f unless Dᵀu = 0, which ``holes.closed`` brings about. With kernels
        ``lower_bound`` does that too; without, it costs as much as a hundred steps, so it is for few looks. Nothing
        passes a derivative through it.
        """
        if self.mask is None or self.operator is not None:
            return self.lower_bound(u)
        near = closed(u, self.mask, self.groups, self.kink)
        return torch.maximum(dual_bound(self._data, u), dual_bound(self._data, near))

    def bound_from_means(self, gradient: Tensor, x: Tensor, told: int = 1) -> Tensor | None:
        """Use that ḡ − 2sZ(x̄ − y) = Dᵀū with a mean ū of feasible dual points; there is no bound with an operator.

        The difference cancels, and both means were rounded n times, each time by half a unit in the last place; with
        weights ∝ i² what is left of that is n/8 units. Some more come from the gradients themselves.
        For a Huber function one has to know ū itself; but there x̄ has a dual point of its own, sλd_g/max(|d_g|, η).
        """
        if self.operator is not None:
            return None
        if self.huber:
            return self.lower_bound(times(self.kink, self.groups.slopes(differences(x), self.huber)))
        units = (told / 8 + 8) * torch.finfo(x.dtype).eps
        size = gradient.abs()
        if x is not self.y:  # where kernels have left the data out of the gradients
            size = size + 2 * self.scale * self._masked(x.abs() + self.y.abs())
        return adjoint_bound(self._data, gradient - self.grad_F(x), error=units * size)

    def _bound_with_operator(self, u: Differences) -> Tensor:
        """max over α of −α⟨y, v⟩ − α²(‖v‖²/(4s) + η‖u‖²/(2sλ)), a dual value where Dᵀu + AᵀZv = 0 and α|u_g| ≤ sλ.

        The equation is made to hold: v is made orthogonal to the images of constants, so that the residual has mean 0
        in every channel, and solving a Poisson equation then removes it from u. If u exceeds its bound afterwards, α
        makes up for it.
        """
        u = self._in_double(u)
        v = self._without_constants(self._masked(u["data"]))
        residual = self.K_adjoint({**u, "data": v})
        u = {name: u[name] - d for name, d in differences(solve_poisson(residual)).items()}
        linear, quadratic = (
            -sum_per_sample(self.y * v),
            sum_per_sample(v.square()) / (4 * self.scale) + bend_of(u, self.kink, self.huber),
        )
        alpha = (linear / (2 * quadratic)).nan_to_num(0.0).clamp(min=0)
        eps, count = torch.finfo(v.dtype).eps, v[0].numel()
        alpha = torch.minimum(alpha, (1 - 8 * eps) * self.kink / self.groups.largest(u))
        bound = alpha * linear - alpha.square() * quadratic
        # The Poisson equation leaves the mean of the residual behind: unless that is 0, this is not a dual point. What
        # else rounding leaves costs at most the oscillation of a minimiser, which its total variation bounds.
        left, size = residual.mean((-2, -1)).abs().amax(1), 1 + v.abs().flatten(1).amax(1)
        oscillation = 2**0.5 * self.value(self.start()).to(v.dtype) / self.kink
        rest = self.K_adjoint({**u, "data": v}).detach()
        rest = sum_per_sample((rest - rest.mean((-2, -1), keepdim=True)).abs())
        lost = alpha * rest * oscillation + count * eps * (alpha * sum_per_sample((self.y * v).abs()) + bound.abs())
        bound = torch.where(left <= size * eps**0.5, bound - lost.detach(), -torch.inf)
        return rounded_down(bound, self.y.dtype)

    def _in_double(self, u: Differences) -> Differences:
        """Return a dual point in double precision, if the operator takes that."""
        double = {name: block.double() for name, block in u.items()}
        try:
            cast(LinearOperator, self.operator).A_adjoint(double["data"])
        except RuntimeError:
            return u
        return double

    def _without_constants(self, v: Tensor) -> Tensor:
        """Make v orthogonal to what ZA makes of images that are constant in one channel and 0 in the others."""
        assert self.operator is not None
        images = []
        for channel in range(self.sample_shape[0]):
            constant = v.new_zeros(len(v), *self.sample_shape)
            constant[:, channel] = 1
            images.append(self._masked(self.operator.A(constant)))
        basis = torch.stack(images, 1).flatten(2)
        gram, moments = basis @ basis.mT, basis @ v.flatten(1).unsqueeze(-1)
        return v - (basis.mT @ (torch.linalg.pinv(gram, hermitian=True) @ moments)).reshape(v.shape)

    def _grad(self, x: Tensor, width: float | Tensor) -> Tensor:
        residual = self._residual(x)
        if self.scale != 0.5:
            residual = 2 * self.scale * residual
        if self.operator is not None:
            # A fresh tensor, since an operator may return its own argument or memory.
            residual = self.operator.A_adjoint(residual).clone()
        return self.groups.add_gradient(residual, x, self.kink, width)

    def _residual(self, x: Tensor) -> Tensor:
        residual = (x if self.operator is None else self.operator.A(x)) - self.y
        return residual if self.mask is None else residual.mul_(self.mask)

    def _masked(self, image: Tensor) -> Tensor:
        return image if self.mask is None else self.mask * image


class TVDenoising(TVInpainting):
    """f(x) = s·(‖x − y‖² + λ Σ_g h(|(Dx)_g|)): total-variation denoising, every pixel observed.

    By default Σ_g h(|(Dx)_g|) is ‖Dx‖₁; see :class:`TVInpainting` for the others.
    """

    def __init__(
        self, y: ImageLike | Sequence[ImageLike], weight: float | Tensor = 0.15, scale: float = 0.5, *,
        isotropic: bool = False, coupled: bool = False, huber: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(y, None, weight, scale, isotropic=isotropic, coupled=coupled, huber=huber)


def fill_holes(y: Tensor, mask: Tensor) -> Tensor:
    """Fill every hole with the mean of the known pixels in its 3×3 neighbourhood, growing inwards."""
    known = mask.expand_as(y).contiguous()
    filled = known * y
    while not bool(known.all()):
        weight = F.avg_pool2d(known, 3, stride=1, padding=1)
        mean = F.avg_pool2d(filled, 3, stride=1, padding=1) / weight.clamp(min=1e-6)
        filled = torch.where(known.bool(), filled, mean * (weight > 0))
        known = ((known + weight) > 0).to(y.dtype)
    return filled


def _observed_range(y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest observed pixel of every channel, (batch, channels, 1, 1) each."""
    if mask is None:
        return y.amin((-2, -1), keepdim=True), y.amax((-2, -1), keepdim=True)
    hidden = ~mask.bool().expand_as(y)
    low = y.masked_fill(hidden, torch.inf).amin((-2, -1), keepdim=True)
    return low, y.masked_fill(hidden, -torch.inf).amax((-2, -1), keepdim=True)


def _check_weight(weight: Tensor, y: Tensor) -> Tensor:
    if weight.shape != y.shape[:1]:
        raise ValueError(f"weight must be a number or of shape ({len(y)},), one for each image: {tuple(weight.shape)}")
    require_data(weight=weight, y=y)
    for sample, number in enumerate(weight.tolist()):
        if number <= 0:
            raise ValueError(f"weight must be positive, got {number:g} for image {sample}")
    return weight


def _check_mask(mask: Tensor | None, y: Tensor) -> Tensor | None:
    if mask is None:
        return None
    mask = mask.to(y) if mask.dtype == torch.bool else mask
    require_data(mask=mask, y=y)
    if not fits(mask.shape, y.shape):
        raise ValueError(f"mask has shape {tuple(mask.shape)}, which does not fit y of {tuple(y.shape)}")
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError("mask must be 0 (missing) or 1 (observed)")
    full = mask.expand_as(y)
    blind = (~full.bool().flatten(2).any(-1)).nonzero()
    if len(blind):
        sample, channel = blind[0].tolist()
        raise ValueError(f"mask has no observed pixel in sample {sample}, channel {channel}")
    return None if bool(full.all()) else mask.reshape(*[1] * (4 - mask.ndim), *mask.shape)
