"""Linear operators between points and observed data: any object with ``A`` and ``A_adjoint``."""

import copy
import math
from collections.abc import Callable
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mirrordescent._internal.arrays import as_tensor
from mirrordescent._internal.checks import require_constant, require_positive
from mirrordescent._internal.eager import without_autocast
from mirrordescent.parts import Part
from mirrordescent.problems.origin import defined_in_library
from mirrordescent.problems.quadratics import known_norm, matvec
from mirrordescent.trees import dot, fits, norm, per_sample

ADJOINT_TOLERANCE = 1e-5
"""Largest error of an adjoint or of linearity, relative to the norms of the vectors."""


@runtime_checkable
class LinearOperator(Protocol):
    """A linear operator on batches of points, and its adjoint.

    Optional attributes: ``norm``, an upper bound on ‖A‖; ``orthonormal``, whether AᵀA = I; and
    ``resolvent(x, t)``, which returns (I + tAᵀA)⁻¹x.
    """

    def A(self, x: Tensor) -> Tensor:
        """Ax."""

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀy."""


class Blur(Part, nn.Module):
    """Convolution of every channel with a kernel, with zero padding at the border.

    Args:
        kernel: Kernel with odd sides, (height, width); or (batch, height, width), one per image.

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
                "kernel must be (height, width) or (batch, height, width) with odd sides, "
                f"got {tuple(kernel.shape)}"
            )
        self.register_buffer("kernel", kernel)

    @property
    def norm(self) -> float:
        """Σ|kernel| ≥ ‖A‖, by Young's inequality; for several kernels, the largest."""
        return float(self.kernel.detach().abs().sum((-2, -1)).max())

    def A(self, x: Tensor) -> Tensor:
        """Convolve with the kernel."""
        return self._convolve(x, flipped=False)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Convolve with the kernel turned by 180°."""
        return self._convolve(y, flipped=True)

    def _convolve(self, x: Tensor, flipped: bool) -> Tensor:
        """Convolve by FFT of zero-padded arrays; direct convolution is far slower in float64.

        Flipping the kernel conjugates its transform, up to a shift of the result.
        """
        (height, width) = x.shape[-2:]
        (rows, columns) = self.kernel.shape[-2:]
        size = (_fft_length(height + rows - 1), _fft_length(width + columns - 1))
        transform = self._transform(x, size)
        if flipped:
            transform = transform.conj()
        full = torch.fft.irfft2(torch.fft.rfft2(x, s=size) * transform, s=size)
        if flipped:
            full = full.roll((rows // 2, columns // 2), (-2, -1))
            return full[..., :height, :width]
        return full[..., rows // 2 : rows // 2 + height, columns // 2 : columns // 2 + width]

    def _transform(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Return the transform of the kernel, cached for images of one size and type.

        It is computed anew if it belongs to a graph, and if changes of the kernel cannot be
        noticed.
        """
        kernel = self.kernel
        differentiated = torch.is_grad_enabled() and kernel.requires_grad
        if differentiated or kernel.is_inference():
            return _kernel_transform(kernel, x, size)
        key = (size, x.dtype, x.device, kernel.data_ptr(), kernel._version)
        # Read once: another thread may replace the entry at any time.
        entry = _TRANSFORMS.get(self)
        if entry is None or entry[0] != key or entry[1] is not kernel:
            # An inference tensor could not be used for derivatives later.
            with torch.inference_mode(False), torch.no_grad():
                entry = (key, kernel, _kernel_transform(kernel, x, size))
            _TRANSFORMS[self] = entry
        return entry[2]


# The transform of every kernel, with the key and the kernel that it was computed for.
_TRANSFORMS: WeakKeyDictionary[Blur, tuple[object, Tensor, Tensor]] = WeakKeyDictionary()


def _kernel_transform(kernel: Tensor, x: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the Fourier transform of a kernel, padded to a size, in the type of x."""
    kernel = kernel.to(x)
    return torch.fft.rfft2(kernel if kernel.ndim == 2 else kernel.unsqueeze(1), s=size)


def _fft_length(length: int) -> int:
    """Return the next length for which FFTs are fast: a product of 2, 3 and 5.

    >>> _fft_length(97), _fft_length(127)
    (100, 128)
    """
    rest = length
    for prime in (2, 3, 5):
        while rest % prime == 0:
            rest //= prime
    return length if rest == 1 else _fft_length(length + 1)


def motion_kernel(length: float, angle: float = 0.0) -> Tensor:
    """Return a normalised motion-blur kernel: a line through the centre.

    Args:
        length: Length of the line in pixels.
        angle: Angle of the line in radians.
    """
    require_positive(length=length)
    radius = max(1, round(length / 2))
    at = torch.linspace(-(length - 1) / 2, (length - 1) / 2, 8 * max(2, round(length)))
    rows = radius + at * math.sin(angle)
    columns = radius + at * math.cos(angle)
    kernel = torch.zeros(2 * radius + 1, 2 * radius + 1)
    # Every point of the line is shared by the four pixels around it.
    for down, along in ((0, 0), (0, 1), (1, 0), (1, 1)):
        i = rows.floor() + down
        j = columns.floor() + along
        weight = (1 - (rows - i).abs()).clamp(min=0) * (1 - (columns - j).abs()).clamp(min=0)
        pixels = (i.long().clamp(0, 2 * radius), j.long().clamp(0, 2 * radius))
        kernel.index_put_(pixels, weight, accumulate=True)
    return kernel / kernel.sum()


def gaussian_kernel(sigma: float, radius: int | None = None) -> Tensor:
    """Return a normalised Gaussian kernel of side 2·radius + 1.

    Args:
        sigma: Standard deviation in pixels.
        radius: Radius in pixels; 3·sigma by default.
    """
    require_positive(sigma=sigma)
    radius = max(1, round(3 * sigma)) if radius is None else radius
    profile = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2)
    kernel = torch.outer(profile, profile)
    return kernel / kernel.sum()


class Matrix(Part, nn.Module):
    """Ax for a matrix A, on points of any shape with n entries.

    Args:
        matrix: Matrix, (m, n); or (batch, m, n), one per sample.
        shape: Shape of a point; (n,) by default.

    >>> import torch
    >>> Matrix(torch.ones(2, 4), shape=(1, 2, 2)).A_adjoint(torch.ones(3, 2)).shape
    torch.Size([3, 1, 2, 2])
    """

    kind = "operator"

    matrix: Tensor

    def __init__(self, matrix: Tensor, shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        matrix = as_tensor(matrix, "matrix")
        if matrix.ndim not in (2, 3):
            raise ValueError(f"matrix must be (m, n) or (batch, m, n), got {tuple(matrix.shape)}")
        self.shape = (matrix.shape[-1],) if shape is None else tuple(shape)
        if math.prod(self.shape) != matrix.shape[-1]:
            raise ValueError(
                f"shape must have {matrix.shape[-1]} entries, one per column of the matrix, "
                f"got {self.shape}"
            )
        self.register_buffer("matrix", matrix)

    @property
    def norm(self) -> float:
        """‖A‖; for several matrices, the largest."""
        return known_norm(self, self.matrix)

    def A(self, x: Tensor) -> Tensor:
        """Ax, (batch, m)."""
        return matvec(self.matrix.to(x), x.flatten(1))

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀy, in the shape of points."""
        return matvec(self.matrix.to(y).mT, y).reshape(len(y), *self.shape)


class Sampling(Part, nn.Module):
    """Ax = Zx, which sets the entries where a mask is 0 to 0.

    Args:
        mask: Mask of 0 and 1 that broadcasts to the points.

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
            raise ValueError("mask must be 0 (not observed) or 1 (observed)")
        self.register_buffer("mask", mask if mask.is_floating_point() else mask.float())

    def A(self, x: Tensor) -> Tensor:
        """Zx."""
        if not fits(self.mask.shape, x.shape):
            raise ValueError(
                f"the mask of shape {tuple(self.mask.shape)} must broadcast to points, "
                f"got shape {tuple(x.shape)}"
            )
        return self.mask * x

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Zy."""
        return self.A(y)

    def resolvent(self, x: Tensor, t: Tensor) -> Tensor:
        """(I + tZ)⁻¹x, for a t that broadcasts to x."""
        return x / (1 + t * self.mask)


class Chain(Part, nn.Module):
    """The composition of two operators: Ax = A₂(A₁x).

    Args:
        first: Operator A₁.
        second: Operator A₂.
    """

    kind = "operator"

    def __init__(self, first: LinearOperator, second: LinearOperator) -> None:
        super().__init__()
        self.first = first
        self.second = second

    @property
    def norm(self) -> float | None:
        """‖A₁‖‖A₂‖ ≥ ‖A‖; None if one of them is unknown."""
        first = _stated_norm(self.first)
        second = _stated_norm(self.second)
        return None if first is None or second is None else first * second

    def A(self, x: Tensor) -> Tensor:
        """A₂A₁x."""
        return self.second.A(self.first.A(x))

    def A_adjoint(self, y: Tensor) -> Tensor:
        """A₁ᵀA₂ᵀy."""
        return self.first.A_adjoint(self.second.A_adjoint(y))


class Multiple(Part, nn.Module):
    """A number times an operator: cA.

    Args:
        factor: Number c.
        operator: Operator A.
    """

    kind = "operator"

    def __init__(self, factor: float, operator: LinearOperator) -> None:
        super().__init__()
        require_constant(factor=factor)
        self.factor = float(factor)
        self.operator = operator

    @property
    def norm(self) -> float | None:
        """|c|‖A‖; None if ‖A‖ is unknown."""
        stated = _stated_norm(self.operator)
        return None if stated is None else abs(self.factor) * stated

    def A(self, x: Tensor) -> Tensor:
        """cAx."""
        return self.factor * self.operator.A(x)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """cAᵀy."""
        return self.factor * self.operator.A_adjoint(y)


class Linear:
    """Any linear function as an operator, with its adjoint by automatic differentiation.

    Args:
        function: Linear function that maps points (batch, …) to data, sample by sample.
        shape: Shape of one point.

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
        """Return the derivative of ⟨Ax, y⟩ with respect to x."""
        keep_graph = torch.is_grad_enabled() and y.requires_grad
        with torch.inference_mode(False), torch.enable_grad():
            y = y.clone() if y.is_inference() else y
            x = y.new_zeros(len(y), *self.shape, requires_grad=True)
            return torch.autograd.grad(self.function(x), x, y, create_graph=keep_graph)[0]


def _stated_norm(operator: LinearOperator) -> float | None:
    """Return the attribute ``norm`` of an operator, if it is a number."""
    stated = getattr(operator, "norm", None)
    if isinstance(stated, Tensor) and stated.numel() == 1:
        return float(stated)
    return float(stated) if isinstance(stated, (int, float)) else None


@without_autocast
@torch.no_grad()
def norm_bound(operator: LinearOperator, like: Tensor, iterations: int = 50) -> float:
    """Return the operator's ``norm``, or 1.05 times an estimate of ‖A‖ by power iteration.

    The iteration treats every sample separately, because samples may have different operators.

    Args:
        operator: Operator A.
        like: Batch of points.
        iterations: Number of power iterations.
    """
    if (stated := _stated_norm(operator)) is not None:
        return stated
    x = _probe(like)
    for _ in range(iterations):
        x = operator.A_adjoint(operator.A(x / per_sample(norm(x), x)))
        if not norm(x).min() > 0:
            raise ValueError(
                f"{type(operator).__name__} maps a test image to 0: check its A and A_adjoint"
            )
    return 1.05 * float(norm(x).max()) ** 0.5


@without_autocast
@torch.no_grad()
def require_adjoint(operator: LinearOperator, image: Tensor, observed: Tensor) -> None:
    """Raise an error unless A is linear and ``A_adjoint`` is its adjoint, at random points.

    For random x, x' and y, every sample must satisfy

    .. code-block:: none

        ‖A(x + cx') − Ax − cAx'‖ ≤ 10⁻⁵ (‖Ax‖ + c‖Ax'‖)
        |⟨Ax, y⟩ − ⟨x, Aᵀy⟩| ≤ 10⁻⁵ ‖Ax‖‖y‖

    The test is made in double precision if the operator supports it. Operators of this library are
    linear by construction, so that only their adjoints are tested.

    Args:
        operator: Operator A.
        image: Batch of points, for the shape of x.
        observed: Batch of data, for the shape of y.
    """
    tested = operator
    x = random_like(image, 0)
    y = random_like(observed, 1)
    if not defined_in_library(operator):
        tested, x, y = _in_double(operator, x, y)
    Ax = tested.A(x)
    if Ax.shape != y.shape:
        raise ValueError(
            f"A maps {tuple(x.shape)} to {tuple(Ax.shape)}, but y has shape {tuple(y.shape)}"
        )
    name = type(operator).__name__
    Ax = Ax.double().clone()  # an operator may return its own memory
    if not defined_in_library(operator):
        _require_linear(tested, name, x, Ax)
    back = tested.A_adjoint(y)
    if back.shape != x.shape:
        raise ValueError(
            f"A_adjoint of {name} maps {tuple(y.shape)} to {tuple(back.shape)}, but points have "
            f"shape {tuple(x.shape)}"
        )
    forward = dot(Ax, y.double())
    backward = dot(x.double(), back.double())
    excess = (forward - backward).abs() - ADJOINT_TOLERANCE * norm(Ax) * norm(y.double())
    worst = int(excess.argmax())
    if not bool((excess <= 0).all()):
        raise ValueError(
            f"A_adjoint of {name} is not the adjoint of A: for random x and y, "
            f"⟨Ax, y⟩ = {float(forward[worst]):.6g} but ⟨x, Aᵀy⟩ = {float(backward[worst]):.6g}, "
            f"where ‖Ax‖‖y‖ = {float(norm(Ax)[worst] * norm(y.double())[worst]):.3g}. "
            "problems.Linear(operator.A, shape) computes the adjoint automatically"
        )


def _require_linear(operator: LinearOperator, name: str, x: Tensor, Ax: Tensor) -> None:
    """Raise an error unless A(x + cx') = Ax + cAx' for a random x'.

    Args:
        operator: Operator A.
        name: Name of the operator, for the message.
        x: Random points.
        Ax: Their images.
    """
    other = random_like(x, 2)
    factor = 0.7
    image = operator.A(other).double().clone()
    expected = Ax + factor * image
    difference = norm(operator.A(x + factor * other).double() - expected)
    size = norm(Ax) + factor * norm(image)
    excess = difference - ADJOINT_TOLERANCE * size
    worst = int(excess.argmax())
    if not bool((excess <= 0).all()):
        raise ValueError(
            f"A of {name} is not linear: for random x and x', ‖A(x + {factor}x') − Ax − "
            f"{factor}Ax'‖ = {float(difference[worst]):.3g}, where ‖Ax‖ + {factor}‖Ax'‖ = "
            f"{float(size[worst]):.3g}. An offset belongs into the data y"
        )


def _in_double(
    operator: LinearOperator, x: Tensor, y: Tensor
) -> tuple[LinearOperator, Tensor, Tensor]:
    """Return an operator, points and data in double precision, or unchanged if it refuses that."""
    precise = copy.deepcopy(operator).double() if isinstance(operator, nn.Module) else operator
    try:
        image = precise.A(x.double())
        point = precise.A_adjoint(y.double())
    except (RuntimeError, TypeError):  # single-precision data outside of buffers
        return operator, x, y
    if image.dtype != torch.float64 or point.dtype != torch.float64:
        return operator, x, y
    return precise, x.double(), y.double()


def random_like(like: Tensor, seed: int) -> Tensor:
    """Return standard normal numbers in the shape of a tensor, the same ones for every call.

    Args:
        like: Tensor with the shape, type and device.
        seed: Seed of the numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def _probe(like: Tensor) -> Tensor:
    """Return a fixed test image without symmetries that could hide an error of an operator."""
    ripple = torch.sin(torch.arange(like.numel(), dtype=like.dtype, device=like.device))
    return 1 + 0.1 * ripple.reshape(like.shape)
