"""Linear operators in front of an imaging problem: anything with ``A`` and ``A_adjoint``."""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from mirrordescent.checks import require_positive
from mirrordescent.parts import Part


@runtime_checkable
class LinearOperator(Protocol):
    """A linear map of image batches and its adjoint. An attribute ``norm`` ≥ ‖A‖ is used if there is one."""

    def A(self, x: Tensor) -> Tensor:
        """Ax."""

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Aᵀy."""


class Blur(Part, nn.Module):
    """Convolution of every channel with one kernel of odd size; images are 0 beyond their border.

    >>> import torch
    >>> blur = Blur(gaussian_kernel(1.0))
    >>> blur.A(torch.ones(1, 3, 8, 8)).shape
    torch.Size([1, 3, 8, 8])
    """

    kind = "operator"

    kernel: Tensor

    def __init__(self, kernel: Tensor) -> None:
        super().__init__()
        if kernel.ndim != 2 or kernel.shape[0] % 2 == 0 or kernel.shape[1] % 2 == 0:
            raise ValueError(f"a blur kernel must be 2-D with odd sides, got {tuple(kernel.shape)}")
        self.register_buffer("kernel", kernel)

    @property
    def norm(self) -> float:
        """Σ|kernel| ≥ ‖A‖, by Young's inequality."""
        return float(self.kernel.abs().sum())

    def A(self, x: Tensor) -> Tensor:
        """Convolve with the kernel."""
        return self._convolve(x, self.kernel)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Convolve with the kernel turned by 180°."""
        return self._convolve(y, self.kernel.flip(0, 1))

    @staticmethod
    def _convolve(x: Tensor, kernel: Tensor) -> Tensor:
        """Multiply the transforms of zero-padded arrays: direct convolution is far slower in float64."""
        (height, width), (rows, columns) = x.shape[-2:], kernel.shape
        size = (height + rows - 1, width + columns - 1)
        full = torch.fft.irfft2(torch.fft.rfft2(x, s=size) * torch.fft.rfft2(kernel.to(x.dtype), s=size), s=size)
        return full[..., rows // 2 : rows // 2 + height, columns // 2 : columns // 2 + width]


def gaussian_kernel(sigma: float, radius: int | None = None) -> Tensor:
    """Return a normalised Gaussian kernel of side 2·radius + 1; the radius is 3σ by default."""
    require_positive(sigma=sigma)
    radius = max(1, round(3 * sigma)) if radius is None else radius
    profile = torch.exp(-0.5 * (torch.arange(-radius, radius + 1) / sigma) ** 2)
    kernel = torch.outer(profile, profile)
    return kernel / kernel.sum()


def norm_bound(operator: LinearOperator, like: Tensor, iterations: int = 50) -> float:
    """Return the operator's own ``norm``, or an estimate of ‖A‖ by power iteration, made 5 % larger for safety."""
    known = getattr(operator, "norm", None)
    if isinstance(known, (int, float)) or (isinstance(known, Tensor) and known.numel() == 1):
        return float(known)
    x = _probe(like[:1])
    largest = torch.zeros((), dtype=x.dtype)
    for _ in range(iterations):
        x = operator.A_adjoint(operator.A(x / x.norm()))
        largest = x.norm()
        if not largest > 0:
            raise ValueError(f"{type(operator).__name__} maps images to 0: nothing was observed through it")
    return 1.05 * float(largest) ** 0.5


def require_adjoint(operator: LinearOperator, image: Tensor, observed: Tensor) -> None:
    """Raise unless ⟨Ax, y⟩ = ⟨x, Aᵀy⟩, up to rounding, for some x shaped like an image and y like what is observed."""
    x, y = _probe(image), _probe(observed).flip(-1)
    Ax = operator.A(x)
    if Ax.shape != y.shape:
        raise ValueError(f"A maps {tuple(x.shape)} to {tuple(Ax.shape)}, but y has shape {tuple(y.shape)}")
    forward, backward = float((Ax * y).sum()), float((x * operator.A_adjoint(y)).sum())
    if abs(forward - backward) > 1e-3 * float(Ax.norm() * y.norm()):
        raise ValueError(
            f"A_adjoint of {type(operator).__name__} is not the adjoint of A: "
            f"⟨Ax, y⟩ = {forward:.6g} but ⟨x, Aᵀy⟩ = {backward:.6g}"
        )


def _probe(like: Tensor) -> Tensor:
    """Return an image without symmetries that an operator could be blind to, the same at every call."""
    ripple = torch.sin(torch.arange(like.numel(), dtype=like.dtype, device=like.device))
    return 1 + 0.1 * ripple.reshape(like.shape)
