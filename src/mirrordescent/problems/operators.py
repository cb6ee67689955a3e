"""Linear operators between a point and what is observed of it: anything with ``A`` and
``A_adjoint``.
"""

import math
from collections.abc import Callable
from typing import Protocol, cast, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mirrordescent._internal.checks import require_positive
from mirrordescent.parts import Part
from mirrordescent.problems.quadratics import matvec, spectral_norm
from mirrordescent.trees import fits, norm, per_sample


@runtime_checkable
class LinearOperator(Protocol):
    """A linear map of batches, sample by sample, and its adjoint. An attribute ``norm`` ≥ ‖A‖ is
    used.
    """

    def A(self, x: Tensor) -> Tensor:
        """Ax."""

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀy."""


class Blur(Part, nn.Module):
    """Convolution of every channel with a kernel of odd size, one for all images or one each; 0
    beyond the border.

    >>> import torch
    >>> blur = Blur(gaussian_kernel(1.0))
    >>> blur.A(torch.ones(1, 3, 8, 8)).shape
    torch.Size([1, 3, 8, 8])
    """

    kind = "operator"

    kernel: Tensor

    def __init__(self, kernel: Tensor) -> None:
        super().__init__()
        if kernel.ndim not in (2, 3) or kernel.shape[-2] % 2 == 0 or kernel.shape[-1] % 2 == 0:
            raise ValueError(
                f"a blur kernel must be 2-D with odd sides, or a batch of such, got {tuple(kernel.shape)}"
            )
        self.register_buffer("kernel", kernel)

    @property
    def norm(self) -> float:
        """Σ|kernel| ≥ ‖A‖, by Young's inequality; the largest of all."""
        return float(self.kernel.abs().sum((-2, -1)).max())

    def A(self, x: Tensor) -> Tensor:
        """Convolve with the kernel."""
        return self._convolve(x, turned=False)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Convolve with the kernel turned by 180°."""
        return self._convolve(y, turned=True)

    def _convolve(self, x: Tensor, turned: bool) -> Tensor:
        """Multiply the transforms of zero-padded arrays: direct convolution is far slower in
        float64.

        Turning the kernel conjugates its transform, up to a shift: the result is cut out at another
        place.
        """
        (height, width) = x.shape[-2:]
        (rows, columns) = self.kernel.shape[-2:]
        size = (_fast(height + rows - 1), _fast(width + columns - 1))
        transform = self._transform(x, size)
        full = torch.fft.irfft2(
            torch.fft.rfft2(x, s=size) * (transform.conj() if turned else transform), s=size
        )
        if turned:
            full = full.roll((rows // 2, columns // 2), (-2, -1))
            return full[..., :height, :width]
        return full[..., rows // 2 : rows // 2 + height, columns // 2 : columns // 2 + width]

    def _transform(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the transform of the kernel, kept for images of one size and type."""
        key = (size, x.dtype, x.device, self.kernel.data_ptr(), self.kernel._version)
        if self not in _TRANSFORMS or _TRANSFORMS[self][0] != key:
            kernel = self.kernel.to(x)
            _TRANSFORMS[self] = (
                key,
                torch.fft.rfft2(kernel if kernel.ndim == 2 else kernel.unsqueeze(1), s=size),
            )
        return _TRANSFORMS[self][1]


_TRANSFORMS: WeakKeyDictionary[Blur, tuple[object, Tensor]] = (
    WeakKeyDictionary()
)  # of kernels, with what they are for


def _fast(length: int) -> int:
    """Return the next length of which transforms are fast: a product of 2, 3 and 5.

    >>> _fast(97), _fast(127)
    (100, 128)
    """
    rest = length
    for prime in (2, 3, 5):
        while rest % prime == 0:
            rest //= prime
    return length if rest == 1 else _fast(length + 1)


def motion_kernel(length: float, angle: float = 0.0) -> Tensor:
    """Return a normalised line through the centre, this many pixels long, turned by an angle in
    radians.
    """
    require_positive(length=length)
    radius = max(1, round(length / 2))
    at = torch.linspace(-(length - 1) / 2, (length - 1) / 2, 8 * max(2, round(length)))
    rows = radius + at * math.sin(angle)
    columns = radius + at * math.cos(angle)
    kernel = torch.zeros(2 * radius + 1, 2 * radius + 1)
    for down, along in (
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ):  # each point is shared by the four pixels around it
        i = rows.floor() + down
        j = columns.floor() + along
        weight = (1 - (rows - i).abs()).clamp(min=0) * (1 - (columns - j).abs()).clamp(min=0)
        kernel.index_put_(
            (i.long().clamp(0, 2 * radius), j.long().clamp(0, 2 * radius)), weight, accumulate=True
        )
    return kernel / kernel.sum()


def gaussian_kernel(sigma: float, radius: int | None = None) -> Tensor:
    """Return a normalised Gaussian kernel of side 2·radius + 1; the radius is 3σ by default."""
    require_positive(sigma=sigma)
    radius = max(1, round(3 * sigma)) if radius is None else radius
    profile = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2)
    kernel = torch.outer(profile, profile)
    return kernel / kernel.sum()


class Matrix(Part, nn.Module):
    """Ax for a matrix (m, n), or one for every sample (batch, m, n), and points of any shape with n
    entries.

    >>> import torch
    >>> Matrix(torch.ones(2, 4), shape=(1, 2, 2)).A_adjoint(torch.ones(3, 2)).shape
    torch.Size([3, 1, 2, 2])
    """

    kind = "operator"

    matrix: Tensor

    def __init__(self, matrix: Tensor, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        if matrix.ndim not in (2, 3):
            raise ValueError(f"a matrix must be (m, n) or (batch, m, n), got {tuple(matrix.shape)}")
        self.shape = (matrix.shape[-1],) if shape is None else tuple(shape)
        if math.prod(self.shape) != matrix.shape[-1]:
            raise ValueError(
                f"points of shape {self.shape} do not have the {matrix.shape[-1]} entries of the columns"
            )
        self.register_buffer("matrix", matrix)

    @property
    def norm(self) -> float:
        """‖A‖, the largest of all."""
        return spectral_norm(self.matrix)

    def A(self, x: Tensor) -> Tensor:
        """Multiply with the entries of every sample."""
        return matvec(self.matrix.to(x), x.flatten(1))

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Multiply with the transpose."""
        return matvec(self.matrix.to(y).mT, y).reshape(len(y), *self.shape)


class Sampling(Part, nn.Module):
    """Keep the entries where a mask is 1, and make the others 0: the mask broadcasts to the points.

    >>> import torch
    >>> Sampling(torch.tensor([1.0, 0.0])).A(torch.ones(1, 2))
    tensor([[1., 0.]])
    """

    kind = "operator"

    mask: Tensor

    norm = 1.0

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise ValueError("a mask must be 0 (not observed) or 1 (observed)")
        self.register_buffer("mask", mask if mask.is_floating_point() else mask.float())

    def A(self, x: Tensor) -> Tensor:
        """Zx."""
        if not fits(self.mask.shape, x.shape):
            raise ValueError(
                f"the mask has shape {tuple(self.mask.shape)}, which does not fit {tuple(x.shape)}"
            )
        return self.mask * x

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Zy."""
        return self.A(y)

    def resolvent(self, x: Tensor, t: Tensor) -> Tensor:
        """(I + tZ)⁻¹x, for a t that broadcasts."""
        return x / (1 + t * self.mask)


class Chain(Part, nn.Module):
    """One operator after another: Ax = A₂(A₁x)."""

    kind = "operator"

    def __init__(self, first: LinearOperator, second: LinearOperator) -> None:
        super().__init__()
        self.first = first
        self.second = second

    @property
    def norm(self) -> float | None:
        """‖A₁‖‖A₂‖ ≥ ‖A‖, if both are known."""
        norms = [_known(self.first), _known(self.second)]
        return None if None in norms else cast(float, norms[0]) * cast(float, norms[1])

    def A(self, x: Tensor) -> Tensor:
        """A₂A₁x."""
        return self.second.A(self.first.A(x))

    def A_adjoint(self, y: Tensor) -> Tensor:
        """A₁ᵀA₂ᵀy."""
        return self.first.A_adjoint(self.second.A_adjoint(y))


class Multiple(Part, nn.Module):
    """A number times an operator."""

    kind = "operator"

    def __init__(self, factor: float, operator: LinearOperator) -> None:
        super().__init__()
        self.factor = float(factor)
        self.operator = operator

    @property
    def norm(self) -> float | None:
        """|c|‖A‖, if that is known."""
        known = _known(self.operator)
        return None if known is None else abs(self.factor) * known

    def A(self, x: Tensor) -> Tensor:
        """cAx."""
        return self.factor * self.operator.A(x)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """cAᵀy."""
        return self.factor * self.operator.A_adjoint(y)


class Linear:
    """Any linear function as an operator; its adjoint by automatic differentiation, exact up to
    rounding.

    Args:
        function: maps points (batch, …) to what is observed of them, sample by sample.
        shape: of one point.

    >>> import torch
    >>> Linear(lambda x: x[:, ::2], shape=(3,)).A_adjoint(torch.ones(1, 2))
    tensor([[1., 0., 1.]])
    """

    def __init__(self, function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
        self.function = function
        self.shape = tuple(shape)

    def A(self, x: Tensor) -> Tensor:
        """Call the function."""
        return self.function(x)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Return the derivative of ⟨Ax, y⟩ with respect to x, which is the same everywhere."""
        keep = torch.is_grad_enabled() and y.requires_grad
        with torch.enable_grad():
            x = y.new_zeros(len(y), *self.shape, requires_grad=True)
            return torch.autograd.grad(self.function(x), x, y, create_graph=keep)[0]


def _known(operator: LinearOperator) -> float | None:
    """Return what an operator says about its norm."""
    known = getattr(operator, "norm", None)
    number = isinstance(known, (int, float)) or (isinstance(known, Tensor) and known.numel() == 1)
    return float(cast(float, known)) if number else None


@torch.no_grad()
def norm_bound(operator: LinearOperator, like: Tensor, iterations: int = 50) -> float:
    """Return the operator's own ``norm``, or an estimate of ‖A‖ by power iteration, made 5 % larger
    for safety.

    The whole batch is iterated, each sample by itself, since every sample may have an operator of
    its own.
    """
    if (known := _known(operator)) is not None:
        return known
    x = _probe(like)
    for _ in range(iterations):
        x = operator.A_adjoint(operator.A(x / per_sample(norm(x), x)))
        if not norm(x).min() > 0:
            raise ValueError(
                f"{type(operator).__name__} maps images to 0: nothing was observed through it"
            )
    return 1.05 * float(norm(x).max()) ** 0.5


@torch.no_grad()
def require_adjoint(operator: LinearOperator, image: Tensor, observed: Tensor) -> None:
    """Raise unless ⟨Ax, y⟩ = ⟨x, Aᵀy⟩, up to rounding, for some x shaped like an image and y like
    what is observed.
    """
    x = _probe(image)
    y = _probe(observed).flip(-1)
    Ax = operator.A(x)
    if Ax.shape != y.shape:
        raise ValueError(
            f"A maps {tuple(x.shape)} to {tuple(Ax.shape)}, but y has shape {tuple(y.shape)}"
        )
    forward = float((Ax * y).sum())
    backward = float((x * operator.A_adjoint(y)).sum())
    if abs(forward - backward) > 1e-3 * float(Ax.norm() * y.norm()):
        raise ValueError(
            f"A_adjoint of {type(operator).__name__} is not the adjoint of A: "
            f"⟨Ax, y⟩ = {forward:.6g} but ⟨x, Aᵀy⟩ = {backward:.6g}. "
            f"problems.Linear(operator.A, shape) finds the adjoint by itself"
        )


def _probe(like: Tensor) -> Tensor:
    """Return an image without symmetries that an operator could be blind to, the same at every
    call.
    """
    ripple = torch.sin(torch.arange(like.numel(), dtype=like.dtype, device=like.device))
    return 1 + 0.1 * ripple.reshape(like.shape)
