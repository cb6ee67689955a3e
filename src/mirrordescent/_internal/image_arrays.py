"""Images of PyTorch, NumPy and Pillow as tensors with values in [0, 1], and how much two images
differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union, cast

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

Array: TypeAlias = "np.ndarray[Any, Any]"
Pixels: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"
ImageLike: TypeAlias = Union[Tensor, Array, "Image.Image"]
"""An image or a batch: a tensor (…, height, width), a NumPy array (…, height, width, channels), a
Pillow image.
"""

_LARGEST = {
    torch.bool: 1,
    torch.float16: 1,
    torch.bfloat16: 1,
    torch.uint8: 255,
    torch.uint16: 65535,
}


def as_images(images: ImageLike | Sequence[ImageLike]) -> Tensor:
    """Turn images of PyTorch, NumPy or Pillow, or a list of them, into (batch, channels, height,
    width).

    As is customary, tensors have their channels before the pixels and arrays after them; either may
    come without channels or without a batch. Bytes and 16-bit numbers are divided by the largest
    value they can take; floating-point numbers stay as they are. Grey images keep their one
    channel.

    >>> as_images(np.full((4, 5, 3), 255, np.uint8)).shape, as_images(torch.zeros(3, 4, 5)).shape
    (torch.Size([1, 3, 4, 5]), torch.Size([1, 3, 4, 5]))
    """
    if isinstance(images, (list, tuple)):
        batches = [as_images(image) for image in images]
        shapes = [tuple(batch.shape[1:]) for batch in batches]
        if len(set(shapes)) != 1:
            raise ValueError(
                f"images of one batch must have one shape, got {', '.join(map(str, shapes)) or 'none'}"
            )
        return torch.cat(batches)
    if not isinstance(images, (Tensor, np.ndarray)):
        if not hasattr(images, "getpixel"):
            raise TypeError(
                f"images are tensors, NumPy arrays or Pillow images, not {type(images).__name__}"
            )
        images = pixels_of(cast("Image.Image", images))
    if images.ndim not in (2, 3, 4):
        raise ValueError(
            f"an image has 2 dimensions, 3 with channels and 4 in a batch, got {tuple(images.shape)}"
        )
    if isinstance(images, np.ndarray):
        if images.ndim > 2 and images.shape[-1] > 4:
            raise ValueError(
                f"an array of shape {images.shape} has {images.shape[-1]} channels: NumPy images are "
                "(height, width, channels); a tensor would be (channels, height, width)"
            )
        images = torch.from_numpy(np.ascontiguousarray(images))
        images = images.movedim(-1, -3) if images.ndim > 2 else images
    scaled = _scaled(images)
    return scaled.reshape(*[1] * (4 - scaled.ndim), *scaled.shape).contiguous()


def as_mask(mask: ImageLike) -> Tensor:
    """Turn a mask of PyTorch, NumPy or Pillow into truth values (…, height, width): True where it
    is not black.

    In a Pillow image, which may have been through a lossy format, the lighter half of the greys is
    True.
    """
    if isinstance(mask, Tensor):
        return mask if mask.dtype == torch.bool else mask != 0
    if isinstance(mask, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(mask)) != 0
    return torch.from_numpy(pixels_of(mask).mean(-1) >= 0.5)


def pixels_of(picture: Image.Image) -> Pixels:
    """Return a Pillow image as (height, width, 1) if it is grey, else (height, width, 3), in [0,
    1]; on white.
    """
    values, _ = values_of(picture)
    if values.shape[2] in (1, 3):
        return values
    colour = values[:, :, :-1]
    opacity = values[:, :, -1:]
    return colour * opacity + (1 - opacity)


def values_of(picture: Image.Image) -> tuple[Pixels, int]:
    """Return a Pillow image as (height, width, channels) in [0, 1], and how many bits its numbers
    had: 8, 16 or 32.

    The channels are 1 of grey or 3 of colour, and after them the opacity if pixels may be
    transparent.
    """
    if picture.mode.startswith(("I", "F")):  # the modes of more than 8 bits, all of them grey
        grey = np.array(picture, dtype=np.float32)[:, :, None]
        bits = 32 if picture.mode == "F" else 16
        grey /= np.float32(1 if bits == 32 else 65535)
        if not (grey.min() >= 0 and grey.max() <= 1):
            raise ValueError(
                "floating-point pixels must lie in [0, 1]"
                if bits == 32
                else "its values exceed 16 bits"
            )
        return grey, bits
    mode = ("L" if picture.mode in ("1", "L", "LA", "La") else "RGB") + (
        "A" if picture.has_transparency_data else ""
    )
    converted = picture if picture.mode == mode else picture.convert(mode)
    values = np.array(converted, dtype=np.float32)
    values /= np.float32(255)
    return values.reshape(*values.shape[:2], -1), 8


def psnr(image: Tensor, truth: Tensor) -> float:
    """−10 log₁₀ of the mean squared error, for pixels in [0, 1]; infinite if there is no error."""
    return -10 * float((image - truth).double().square().mean().log10())


def _scaled(images: Tensor) -> Tensor:
    """Return floating-point numbers; integers of 8 and 16 bits become numbers in [0, 1]."""
    if images.dtype in (torch.float32, torch.float64):
        return images
    if images.dtype not in _LARGEST:
        raise TypeError(
            f"images consist of floating-point numbers, bytes or 16-bit numbers, not of {images.dtype}"
        )
    return images.float() / _LARGEST[images.dtype]
