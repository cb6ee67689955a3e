"""Conversion of images of PyTorch, NumPy and Pillow to tensors, and their difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, Union, cast

import numpy as np
import torch
from torch import Tensor

from mirrordescent._internal.arrays import LabelledArray, is_labelled, labelled_like

if TYPE_CHECKING:
    from PIL import Image

Array: TypeAlias = "np.ndarray[Any, Any]"
Pixels: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float32]]"
ImageLike: TypeAlias = Union[Tensor, Array, "Image.Image", LabelledArray]
"""An image or a batch of images.

A tensor (…, height, width), a NumPy array (…, height, width, channels), a Pillow image, a DataFrame
of pandas (height, width), or a DataArray of xarray with the dimensions of an array. An axis of a
DataArray with one of the names in CHANNEL_AXES may stand anywhere.
"""

CHANNEL_AXES = ("band", "bands", "channel", "channels", "c", "colour", "color", "rgb")
"""Names of an axis of colours, in lower case."""

_LARGEST = {
    torch.bool: 1,
    torch.float16: 1,
    torch.bfloat16: 1,
    torch.uint8: 255,
    torch.uint16: 65535,
}
"""Largest values by type."""


def as_images(images: ImageLike | Sequence[ImageLike]) -> Tensor:
    """Convert an image, a batch or a list of images to a tensor (batch, channels, height, width).

    Tensors have the channels before the pixels, arrays after them. Both may come without channels
    or without a batch. Bytes and 16-bit numbers are divided by the largest value of their type;
    floating-point numbers stay as they are. Grey images have one channel.

    >>> as_images(np.full((4, 5, 3), 255, np.uint8)).shape, as_images(torch.zeros(3, 4, 5)).shape
    (torch.Size([1, 3, 4, 5]), torch.Size([1, 3, 4, 5]))
    """
    if isinstance(images, (list, tuple)):
        return _concatenate([as_images(image) for image in images])
    if is_labelled(images):
        images, _ = unlabelled(images)
    if not isinstance(images, (Tensor, np.ndarray)):
        if not hasattr(images, "getpixel"):
            raise TypeError(
                "images must be tensors, Pillow images, or arrays of NumPy, pandas or xarray, "
                f"got {type(images).__name__}"
            )
        images = pixels_of(cast("Image.Image", images))
    if images.ndim not in (2, 3, 4):
        raise ValueError(
            "an image must have 2 dimensions, 3 with channels or 4 in a batch, "
            f"got the shape {tuple(images.shape)}"
        )
    tensor = _channels_first(images) if isinstance(images, np.ndarray) else images
    scaled = _scale(tensor)
    missing = 4 - scaled.ndim
    return scaled.reshape(*[1] * missing, *scaled.shape).contiguous()


def unlabelled(image: Any) -> tuple[Array, Callable[[Array], Any]]:
    """Return the numbers of an image of pandas or xarray, with channels last if there are any.

    Also return a function that gives such numbers the labels of the image.
    """
    names = [str(name).lower() for name in getattr(image, "dims", ())]
    channels = [axis for axis, name in enumerate(names) if name in CHANNEL_AXES]
    numbers = image.to_numpy()
    if len(channels) != 1 or numbers.ndim < 3:
        return numbers, lambda array: labelled_like(array, image)
    (axis,) = channels
    return np.moveaxis(numbers, axis, -1), lambda array: labelled_like(
        np.moveaxis(array, -1, axis), image
    )


def _concatenate(batches: list[Tensor]) -> Tensor:
    shapes = [tuple(batch.shape[1:]) for batch in batches]
    if len(set(shapes)) != 1:
        listed = ", ".join(map(str, shapes)) or "none"
        raise ValueError(f"images of a batch must have the same shape, got {listed}")
    return torch.cat(batches)


def _channels_first(array: Array) -> Tensor:
    """Return an array (…, height, width, channels) as a tensor (…, channels, height, width)."""
    if array.ndim > 2 and array.shape[-1] > 4:
        raise ValueError(
            "a NumPy image must be (height, width, channels) with at most 4 channels, "
            f"got the shape {array.shape}; a tensor would be (channels, height, width)"
        )
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.movedim(-1, -3) if tensor.ndim > 2 else tensor


def as_mask(mask: ImageLike) -> Tensor:
    """Convert a mask to a boolean tensor (…, height, width), True where it is not black.

    A Pillow image may come from a lossy format. There, the lighter half of the grey levels is True.
    """
    if isinstance(mask, Tensor):
        return mask if mask.dtype == torch.bool else mask != 0
    if is_labelled(mask):
        mask, _ = unlabelled(mask)
    if isinstance(mask, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(mask)) != 0
    return torch.from_numpy(pixels_of(cast("Image.Image", mask)).mean(-1) >= 0.5)


def pixels_of(picture: Image.Image) -> Pixels:
    """Return a Pillow image as an array with values in [0, 1], on a white background.

    The shape is (height, width, 1) for a grey image, otherwise (height, width, 3).
    """
    values, _ = values_of(picture)
    if values.shape[2] in (1, 3):
        return values
    colour = values[:, :, :-1]
    opacity = values[:, :, -1:]
    return colour * opacity + (1 - opacity)


def values_of(picture: Image.Image) -> tuple[Pixels, int]:
    """Return a Pillow image as an array (height, width, channels) in [0, 1], and its bit depth.

    The channels are grey or red, green and blue, followed by the opacity if the image can be
    transparent. The bit depth is 8, 16 or 32.
    """
    if picture.mode == "F":
        grey = np.array(picture, dtype=np.float32)[:, :, None]
        if not _in_unit_interval(grey):
            raise ValueError("floating-point pixels must lie in [0, 1]")
        return grey, 32
    if picture.mode.startswith(("I", "F")):  # the modes with 16 bits, which are grey
        grey = np.array(picture, dtype=np.float32)[:, :, None]
        grey /= np.float32(65535)
        if not _in_unit_interval(grey):
            raise ValueError("its values exceed 16 bits")
        return grey, 16
    mode = "L" if picture.mode in ("1", "L", "LA", "La") else "RGB"
    if picture.has_transparency_data:
        mode += "A"
    converted = picture if picture.mode == mode else picture.convert(mode)
    values = np.array(converted, dtype=np.float32)
    values /= np.float32(255)
    return values.reshape(*values.shape[:2], -1), 8


def _in_unit_interval(values: Pixels) -> bool:
    return bool(values.min() >= 0 and values.max() <= 1)


def psnr(image: Tensor, truth: Tensor) -> float:
    """Return −10 log₁₀ of the mean squared error of pixels in [0, 1], or infinity if it is 0."""
    return -10 * float((image - truth).double().square().mean().log10())


def _scale(images: Tensor) -> Tensor:
    """Return floating-point images. Integers of 8 and 16 bits are scaled to [0, 1]."""
    if images.dtype in (torch.float32, torch.float64):
        return images
    if images.dtype not in _LARGEST:
        raise TypeError(
            f"images must have floating-point numbers, bytes or 16-bit numbers, got {images.dtype}"
        )
    return images.float() / _LARGEST[images.dtype]
