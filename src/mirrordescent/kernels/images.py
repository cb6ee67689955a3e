"""Iterations on images, each in one pass over memory: f(x) = s·(‖Z(x − y)‖² + λ‖Dx‖₁), without an operator."""

import torch
from torch import Tensor

from mirrordescent.kernels.call import function


def amd_stencil(
    x: Tensor, z: Tensor, y: Tensor, mask: Tensor | None, mean: Tensor | None, **numbers: float
) -> tuple[Tensor, Tensor, Tensor | None]:
    """With g the gradient of f, its kinks rounded, and S the stencil (side, 1 − 2·side, side) in both directions:

    z⁺ = z − far·SgS,  x⁺ = mixing·z⁺ + (1 − mixing)(x − near·SgS);  mean⁺ = mean + share·(w − mean), w = g − 2sZ(x − y)

    Returns x⁺, z⁺ and mean⁺, which is None if mean is.
    """
    x, z, y = _images(x, z, y)
    x_new, z_new = torch.empty_like(x), torch.empty_like(z)
    mean_new = None if mean is None else torch.empty_like(x)
    seen, masks = planes_of(mask, x)
    function("amd_stencil", x.dtype)(
        **_shape(x), x=x, z=z, y=y, mask=seen, masks=masks, x_new=x_new, z_new=z_new,
        mean=None if mean is None else mean.contiguous(), mean_new=mean_new, **numbers,
    )  # fmt: skip
    return x_new, z_new, mean_new


def primal_dual(
    x: Tensor, vertical: Tensor, horizontal: Tensor, y: Tensor, mask: Tensor | None,
    box: tuple[Tensor, Tensor] | None, **numbers: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """With w = Dᵀu:  x⁺ = x − τw + pull·Z(y − x + shift·w), clipped to [low, high];  u⁺ = clip(u + σD(2x⁺ − x), bound).

    Returns x⁺ and both parts of u⁺.
    """
    x, y = _images(x, y)
    v, h = vertical.contiguous(), horizontal.contiguous()
    x_new, v_new, h_new = torch.empty_like(x), torch.empty_like(v), torch.empty_like(h)
    seen, masks = planes_of(mask, x)
    low, high = (None, None) if box is None else (end.contiguous() for end in box)
    function("primal_dual", x.dtype)(
        **_shape(x),
        x=x,
        v=v,
        h=h,
        y=y,
        mask=seen,
        masks=masks,
        low=low,
        high=high,
        x_new=x_new,
        v_new=v_new,
        h_new=h_new,
        **numbers,
    )
    return x_new, v_new, h_new


def planes_of(mask: Tensor | None, x: Tensor) -> tuple[Tensor | None, int]:
    """Return a mask as kernels read it, and its number of planes: one, one per sample, or one per channel."""
    if mask is None:
        return None, 0
    batch, _, *size = x.shape
    shared = mask.shape in ((1, 1, *size), (batch, 1, *size))
    mask = (mask if shared else mask.expand_as(x)).contiguous()
    return mask, mask.shape[0] * mask.shape[1]


def _images(*images: Tensor) -> list[Tensor]:
    """Return images as C reads them, all of one shape and type."""
    kinds = {(image.shape, image.dtype, image.device.type) for image in images}
    if len(kinds) > 1 or images[0].device.type != "cpu":
        raise ValueError(f"a kernel needs images of one shape and type, on the CPU; got {kinds}")
    return [image.contiguous() for image in images]


def _shape(x: Tensor) -> dict[str, int]:
    *_, height, width = x.shape
    return {"planes": x.numel() // (height * width), "height": height, "width": width}
