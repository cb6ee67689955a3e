"""Area means: the operator from a large image to a small one."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mirrordescent.parts import Part


class AreaMeans(Part, nn.Module):
    """Ax: the means of blocks of f×f pixels, the model of an image that is to be enlarged.

    The rows of A are orthogonal, AAᵀ = I/f², so that ‖A‖ = 1/f and

    .. code-block:: none

        (I + tAᵀA)⁻¹x = x − t/(1 + t/f²) · AᵀAx

    Args:
        factor: Side f of the blocks, in pixels.

    >>> AreaMeans(2).A(torch.arange(4.0).reshape(1, 1, 2, 2))
    tensor([[[[1.5000]]]])
    """

    kind = "operator"

    def __init__(self, factor: int) -> None:
        super().__init__()
        if int(factor) != factor or factor < 1:
            raise ValueError(f"factor must be a positive integer, got {factor}")
        self.factor = int(factor)

    @property
    def norm(self) -> float:
        """‖A‖ = 1/f."""
        return 1 / self.factor

    def A(self, x: Tensor) -> Tensor:
        """Return the means of the blocks."""
        height, width = x.shape[-2:]
        if height % self.factor or width % self.factor:
            raise ValueError(
                f"both sides of an image must be multiples of {self.factor}, got {height}×{width}"
            )
        return F.avg_pool2d(x, self.factor)

    def A_adjoint(self, y: Tensor) -> Tensor:
        """Return y/f² at every pixel of a block."""
        rows = y.repeat_interleave(self.factor, -2)
        return rows.repeat_interleave(self.factor, -1) / self.factor**2

    def resolvent(self, x: Tensor, t: Tensor) -> Tensor:
        """(I + tAᵀA)⁻¹x, for a t that broadcasts to x."""
        t = torch.as_tensor(t, dtype=x.dtype, device=x.device)
        return x - t / (1 + t / self.factor**2) * self.A_adjoint(self.A(x))
