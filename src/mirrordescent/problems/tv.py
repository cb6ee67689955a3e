"""Image restoration by total variation: denoising, and inpainting with an optional operator in front."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.checks import require_data, require_positive
from mirrordescent.cosine import solve_poisson
from mirrordescent.images import ImageLike, as_images, as_mask
from mirrordescent.kernels import suits
from mirrordescent.problems.base import Pixels, Problem
from mirrordescent.problems.operators import LinearOperator, norm_bound, require_adjoint
from mirrordescent.problems.saddle import SaddlePoint
from mirrordescent.trees import add_over_leaves, fits, sum_per_sample

Differences: TypeAlias = dict[str, Tensor]

DIRECTIONS = {"vertical": -2, "horizontal": -1}


def differences(x: Tensor) -> Differences:
    """Dx: forward differences down the columns and along the rows, none across the border."""
    return {name: _difference(dimension, x) for name, dimension in DIRECTIONS.items()}


def add_adjoint(out: Tensor, u: Differences) -> Tensor:
    """Add Dᵀu to a fresh tensor in place, and return it."""
    for name, dimension in DIRECTIONS.items():
        _add_adjoint_along(dimension, out, u[name], 1.0)
    return out


def _difference(dimension: int, x: Tensor) -> Tensor:
    last = x.shape[dimension] - 1
    return x.narrow(dimension, 1, last) - x.narrow(dimension, 0, last)


def _add_adjoint_along(dimension: int, out: Tensor, u: Tensor, alpha: float) -> None:
    last = out.shape[dimension] - 1
    out.narrow(dimension, 1, last).add_(u, alpha=alpha)
    out.narrow(dimension, 0, last).sub_(u, alpha=alpha)


class TVInpainting(Problem, SaddlePoint):
    """f(x) = s·(‖Z(Ax − y)‖² + λ‖Dx‖₁): total-variation restoration of observed pixels.

    Z keeps the pixels where ``mask`` is 1, D takes forward differences (anisotropic total variation, without wrapping;
    its subgradient is sign, with 0 at 0), A is an optional linear operator such as a blur.

    Args:
        y: the observed images, (batch, channels, height, width), of any size and with any number of channels; or what
            :func:`~mirrordescent.images.as_images` turns into such: Pillow images, NumPy arrays, lists of them.
        mask: 1 or True where a pixel was observed, broadcastable to y; or an array or Pillow image that is white there.
        weight: λ.
        scale: s. The default ½ is the scale to which published step sizes and gaps refer.
        operator: anything with ``A`` and ``A_adjoint``, such as the physics of deepinv; None means A = I.

    >>> import torch
    >>> y = torch.tensor([[[[0.0, 1.0]]]])
    >>> problem = TVInpainting(y, torch.ones(1, 2), weight=0.2)
    >>> problem.value(y), problem.fidelity(y), problem.total_variation(y)
    (tensor([0.1000]), tensor([0.]), tensor([1.]))
    """

    convex = True

    sample_shape: tuple[int, ...]
    y: Tensor
    mask: Tensor | None
    low: Tensor
    high: Tensor

    def __init__(
        self, y: ImageLike | Sequence[ImageLike], mask: ImageLike | None, weight: float = 0.15, scale: float = 0.5,
        operator: LinearOperator | None = None,
    ) -> None:  # fmt: skip
        y = y if isinstance(y, Tensor) else as_images(y)
        mask = mask if mask is None or isinstance(mask, Tensor) else as_mask(mask)
        if y.ndim != 4 or 0 in y.shape[1:]:
            raise ValueError(f"y must be images (batch, channels, height, width), got {tuple(y.shape)}")
        shape = y.shape if operator is None else operator.A_adjoint(y).shape
        super().__init__(y.shape[0], tuple(shape[1:]), y=y)
        require_positive(weight=weight, scale=scale)
        self.weight, self.scale, self.operator = float(weight), float(scale), operator
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
        """‖Dx‖₁, without weight and scale."""
        return add_over_leaves(lambda d: sum_per_sample(d.abs()), differences(x))

    def grad(self, x: Tensor) -> Tensor:
        """s·(2AᵀZ(Ax − y) + λDᵀ sign(Dx))."""
        return self._grad(x, torch.sign, self.kink)

    def smoothed_grad(self, x: Tensor, width: float | Tensor) -> Tensor:
        """Replace |d| by the Huber function that is quadratic for |d| ≤ width."""
        if torch.is_grad_enabled():
            return self._grad(x, lambda d: (d / width).clamp(-1, 1), self.kink)
        bound = width.item() if isinstance(width, Tensor) else width  # the same in two passes fewer
        return self._grad(x, lambda d: d.clamp_(-bound, bound), self.kink / bound)

    @property
    def kink(self) -> float:
        """sλ."""
        return self.scale * self.weight

    def strong_convexity(self) -> float:
        return self.F_convexity

    def pixels(self) -> Pixels | None:
        """Return the data, unless there is an operator or a subclass has another objective."""
        if self.operator is not None or type(self) not in (TVInpainting, TVDenoising) or not suits(self.y):
            return None
        return Pixels(self.y, self.mask, self.low, self.high, 2 * self.scale, self.kink)

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
        pull = 2 * self.scale * tau / (1 + 2 * self.scale * tau)
        return (x + pull * self._masked(self.y - x)).clamp(self.low, self.high)

    def argmin_F(self, w: Tensor) -> Tensor:
        """argmin s‖x − y‖² + ⟨w, x⟩ over the box: y − w/(2s), clipped."""
        return (self.y - w / (2 * self.scale)).clamp(self.low, self.high)

    def prox_G_conjugate(self, u: Differences, sigma: float | Tensor) -> Differences:
        """Clip to |u| ≤ sλ; shrink the data block towards the residual."""
        proxed = {name: u[name].clamp(-self.kink, self.kink) for name in DIRECTIONS}
        if self.operator is not None:
            proxed["data"] = (u["data"] - sigma * self._masked(self.y)) / (1 + sigma / (2 * self.scale))
        return proxed

    def lower_bound(self, u: Differences) -> Tensor:
        """Return a proven lower bound on min f from any dual point."""
        u = self.prox_G_conjugate(u, 0.0)  # made feasible
        return self._bound_on_box(self.K_adjoint(u)) if self.operator is None else self._bound_with_operator(u)

    def bound_from_means(self, gradient: Tensor, x: Tensor) -> Tensor | None:
        """Use that ḡ − 2sZ(x̄ − y) = Dᵀū with a mean ū of feasible dual points; there is no bound with an operator."""
        if self.operator is not None:
            return None
        return self._bound_on_box(gradient - self.grad_F(x))

    def _bound_on_box(self, w: Tensor) -> Tensor:
        """min over the box of s‖Z(x−y)‖² + ⟨w, x⟩, pixel by pixel, for a w = Dᵀu."""
        x = self.argmin_F(w)
        if self.mask is not None:
            x = torch.where(self.mask.bool(), x, torch.where(w > 0, self.low, self.high))
        return sum_per_sample(self.scale * self._masked(x - self.y).square() + w * x)

    def _bound_with_operator(self, u: Differences) -> Tensor:
        """max over α of −α⟨y, v⟩ − α²‖v‖²/(4s), a dual value wherever Dᵀu + AᵀZv = 0 and α|u| ≤ sλ.

        The equation is made to hold: v is made orthogonal to the images of constants, so that the residual has mean 0
        in every channel, and solving a Poisson equation then removes it from u. If u exceeds its bound afterwards, α
        makes up for it.
        """
        v = self._without_constants(self._masked(u["data"]))
        residual = self.K_adjoint({**u, "data": v})
        correction = differences(solve_poisson(residual))
        largest = torch.cat([(u[name] - d).flatten(1).abs() for name, d in correction.items()], 1)
        largest = F.pad(largest, (1, 0)).amax(1)  # a single pixel has no differences
        linear, quadratic = -sum_per_sample(self.y * v), sum_per_sample(v.square()) / (4 * self.scale)
        alpha = (linear / (2 * quadratic)).nan_to_num(0.0).clamp(min=0)
        alpha = torch.minimum(alpha, self.kink / largest)
        bound = alpha * linear - alpha.square() * quadratic
        # The Poisson equation leaves the mean of the residual behind: unless that is 0, this is not a dual point.
        left, size = residual.mean((-2, -1)).abs().amax(1), 1 + v.abs().flatten(1).amax(1)
        return torch.where(left <= size * torch.finfo(left.dtype).eps ** 0.5, bound, -torch.inf)

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

    def _grad(self, x: Tensor, slope: Callable[[Tensor], Tensor], alpha: float) -> Tensor:
        residual = self._residual(x)
        if self.scale != 0.5:
            residual = 2 * self.scale * residual
        if self.operator is not None:
            # A fresh tensor, since an operator may return its own argument or memory.
            residual = self.operator.A_adjoint(residual).clone()
        for dimension in DIRECTIONS.values():  # one after the other, while what was just computed is still in the cache
            _add_adjoint_along(dimension, residual, slope(_difference(dimension, x)), alpha)
        return residual

    def _residual(self, x: Tensor) -> Tensor:
        residual = (x if self.operator is None else self.operator.A(x)) - self.y
        return residual if self.mask is None else residual.mul_(self.mask)

    def _masked(self, image: Tensor) -> Tensor:
        return image if self.mask is None else self.mask * image


class TVDenoising(TVInpainting):
    """f(x) = s·(‖x − y‖² + λ‖Dx‖₁): total-variation denoising, every pixel observed."""

    def __init__(self, y: ImageLike | Sequence[ImageLike], weight: float = 0.15, scale: float = 0.5) -> None:
        super().__init__(y, None, weight, scale)


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
    hidden = torch.zeros_like(y, dtype=torch.bool) if mask is None else ~mask.bool().expand_as(y)
    low = y.masked_fill(hidden, torch.inf).amin((-2, -1), keepdim=True)
    return low, y.masked_fill(hidden, -torch.inf).amax((-2, -1), keepdim=True)


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
