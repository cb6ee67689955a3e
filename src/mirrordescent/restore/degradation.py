"""What happened to a photograph before its noise: nothing, a blur, or a reduction of its size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from mirrordescent.problems import AreaMeans, Blur
from mirrordescent.problems.operators import LinearOperator

LARGEST_FACTOR = 8


@dataclass(frozen=True, eq=False)
class Degradation:
    """y = Ax + noise, where A is the identity, a convolution, or the means of blocks of pixels.

    A blurred photograph also shows light from beyond its border. So the unknown image is larger
    than the photograph by the radius of the kernel, and only the pixels of the photograph are
    compared with the data: nothing is assumed about the border.

    Args:
        kernel: Kernel of a blur, (height, width) with odd sides and sum 1, or None.
        factor: Ratio of the sides of the unknown image and the photograph.
    """

    kernel: Tensor | None = None
    factor: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.factor <= LARGEST_FACTOR or int(self.factor) != self.factor:
            raise ValueError(
                f"factor must be an integer from 1 to {LARGEST_FACTOR}, got {self.factor}"
            )
        if self.kernel is not None and self.factor != 1:
            raise ValueError("give either a kernel or a factor, not both")

    @property
    def trivial(self) -> bool:
        """Whether A is the identity."""
        return self.kernel is None and self.factor == 1

    @property
    def margin(self) -> tuple[int, int]:
        """Rows and columns by which the unknown image is larger at every side."""
        if self.kernel is None:
            return 0, 0
        return self.kernel.shape[0] // 2, self.kernel.shape[1] // 2

    def operator(self, like: Tensor) -> LinearOperator | None:
        """Return A, in the precision of a tensor."""
        if self.kernel is not None:
            return Blur(self.kernel.to(like))
        return None if self.factor == 1 else AreaMeans(self.factor)

    def extend(self, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return a photograph and its mask in the size of Ax.

        Args:
            y: Photographs, (batch, channels, height, width).
            mask: 1 at known pixels, or None.
        """
        if self.kernel is None:
            return y, mask
        down, across = self.margin
        border = (across, across, down, down)
        known = torch.ones_like(y[:, :1]) if mask is None else mask.to(y)
        return F.pad(y, border), F.pad(known, border)

    def start(self, y: Tensor) -> Tensor:
        """Return a first guess of the unknown image: y, continued at its border or enlarged."""
        if self.factor > 1:
            return enlarge(y, self.factor)
        down, across = self.margin
        return (
            F.pad(y, (across, across, down, down), mode="replicate")
            if self.kernel is not None
            else y
        )

    def crop(self, x: Tensor) -> Tensor:
        """Return the part of an unknown image that the photograph shows."""
        down, across = self.margin
        return x[..., down : x.shape[-2] - down, across : x.shape[-1] - across]


def enlarge(image: Tensor, factor: int) -> Tensor:
    """Enlarge images (batch, channels, height, width) by bicubic interpolation."""
    if factor == 1:
        return image
    return F.interpolate(image, scale_factor=factor, mode="bicubic").clamp(0, 1)


def as_kernel(kernel: Tensor) -> Tensor:
    """Return a kernel with odd sides and sum 1.

    Args:
        kernel: Kernel, (height, width), without negative entries. An even side gets a row or column
            of zeros.
    """
    if kernel.ndim != 2 or 0 in kernel.shape:
        raise ValueError(f"kernel must be (height, width), got the shape {tuple(kernel.shape)}")
    if not bool(kernel.isfinite().all()) or bool((kernel < 0).any()):
        raise ValueError("the entries of a kernel must be finite and not negative")
    total = kernel.sum()
    if not total > 0:
        raise ValueError("a kernel needs a positive entry")
    height, width = kernel.shape
    return F.pad(kernel / total, (0, 1 - width % 2, 0, 1 - height % 2))
