"""Images of NumPy, PyTorch, Pillow, pandas and xarray as tensors, and results of the same kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union, cast

import numpy as np
import torch
from torch import Tensor

from mirrordescent._internal.arrays import LabelledArray, is_labelled
from mirrordescent._internal.image_arrays import Array, unlabelled, values_of
from mirrordescent.restore.compression import Compression, compression_of
from mirrordescent.restore.degradation import enlarge
from mirrordescent.restore.photo import GREY_MODES, KEPT_MODES, LARGEST

if TYPE_CHECKING:
    from PIL import Image

AnyImage: TypeAlias = Union[Tensor, Array, "Image.Image", LabelledArray]
Kind = TypeVar("Kind", bound=AnyImage)
Convert: TypeAlias = Callable[[Tensor], AnyImage]

# Floating-point images have values from 0 to 1; noise may exceed them by this.
EXCESS = 1.0
COUNTS = (1, 3)  # of the channels of colours
COUNTS_WITH_OPACITY = (2, 4)


@dataclass(frozen=True, eq=False)
class Pixels:
    """The pixels of an image or of a batch of images.

    Args:
        colour: Colours, (batch, channels, height, width), as floating-point numbers.
        alpha: Opacity, (batch, 1, height, width), or None.
        back: Function that returns an image of the original kind from colours and opacity in one
            tensor.
        compression: Compression of a Pillow image that was read from a JPEG file.
    """

    colour: Tensor
    alpha: Tensor | None
    back: Convert
    compression: Compression | None = None

    def restored(self, colour: Tensor) -> AnyImage:
        """Return an image of the original kind with other colours, (batch, channels, …)."""
        if self.alpha is None:
            return self.back(colour)
        factor = colour.shape[-1] // self.alpha.shape[-1]
        alpha = enlarge(self.alpha, factor).to(colour)
        return self.back(torch.cat([colour, alpha], 1))


def pixels_of_any(image: AnyImage) -> Pixels:
    """Return the pixels of an image.

    Args:
        image: A NumPy array (height, width) or (height, width, channels), a batch of such arrays, a
            tensor (height, width), (channels, height, width) or (batch, channels, height, width),
            a Pillow image, a DataFrame of pandas, or a DataArray of xarray. There are 1 or 3
            channels, and opacity may follow them. Numbers are bytes, 16-bit integers, or
            floating-point numbers from 0 to 1.
    """
    if isinstance(image, Tensor):
        return _of_tensor(image)
    if isinstance(image, np.ndarray):
        return _of_array(image)
    if is_labelled(image):
        numbers, label = unlabelled(image)
        pixels = _of_array(numbers)
        return replace(pixels, back=lambda result: label(cast(Array, pixels.back(result))))
    if hasattr(image, "getpixel"):
        return _of_picture(cast("Image.Image", image))
    raise TypeError(
        "an image must be a tensor, a Pillow image, or an array of NumPy, pandas or xarray, "
        f"got {type(image).__name__}"
    )


def _of_tensor(image: Tensor) -> Pixels:
    if image.ndim not in (2, 3, 4) or 0 in image.shape:
        raise ValueError(
            "a tensor must be (height, width), (channels, height, width) or (batch, channels, "
            f"height, width), and not empty, got the shape {tuple(image.shape)}"
        )
    missing = 4 - image.ndim
    batch = image.reshape(*[1] * missing, *image.shape)
    values, undo = _as_floats(batch)

    def back(result: Tensor) -> Tensor:
        kept = result.shape[missing:] if missing < 2 else result.shape[2:]
        return undo(result).reshape(kept)

    return _split(values, back)


def _of_array(image: Array) -> Pixels:
    if image.ndim not in (2, 3, 4) or 0 in image.shape:
        raise ValueError(
            "an array must be (height, width), (height, width, channels) or (batch, height, width, "
            f"channels), and not empty, got the shape {image.shape}"
        )
    if image.ndim > 2 and image.shape[-1] > 4:
        raise ValueError(
            "an array must be (height, width, channels) with at most 4 channels, got the shape "
            f"{image.shape}; a tensor would be (channels, height, width)"
        )
    native = image.astype(image.dtype.newbyteorder("="), copy=False)
    tensor = torch.from_numpy(np.array(native))  # a copy, which may be written to
    if image.ndim == 2:
        batch = tensor[None, None]
    else:
        batch = tensor.movedim(-1, -3)
        batch = batch if image.ndim == 4 else batch.unsqueeze(0)
    values, undo = _as_floats(batch)

    def back(result: Tensor) -> Array:
        numbers = undo(result)
        if image.ndim == 2:
            numbers = numbers[0, 0]
        else:
            numbers = numbers.movedim(-3, -1)
            numbers = numbers if image.ndim == 4 else numbers[0]
        return np.ascontiguousarray(numbers.numpy()).astype(image.dtype)

    return _split(values, back)


def _of_picture(picture: Image.Image) -> Pixels:
    """Return the pixels of a Pillow image as they are stored, whatever its orientation."""
    values, bits = values_of(picture)
    tensor = torch.from_numpy(values).movedim(-1, 0).unsqueeze(0)
    mode = picture.mode if picture.mode in KEPT_MODES else ""
    info = dict(picture.info)

    def back(result: Tensor) -> Image.Image:
        from PIL import Image

        numbers = result[0].clamp(0, 1).movedim(0, -1).cpu().numpy()
        if bits == 32:
            numbers = numbers.astype(np.float32)
        else:
            numbers = (numbers * LARGEST[bits]).round().astype(f"uint{bits}")
        plain = numbers[:, :, 0] if numbers.shape[2] == 1 else numbers
        restored = Image.fromarray(np.ascontiguousarray(plain))
        if bits > 8 and restored.mode != GREY_MODES[bits]:
            restored = restored.convert(GREY_MODES[bits])
        if mode:
            restored = restored.convert(mode)
        restored.info = {key: value for key, value in info.items() if key != "transparency"}
        return restored

    return _split(tensor, back, compression_of(picture))


def _split(values: Tensor, back: Convert, compression: Compression | None = None) -> Pixels:
    """Return colours and opacity."""
    channels = values.shape[1]
    if channels in COUNTS:
        return Pixels(values.contiguous(), None, back, compression)
    if channels in COUNTS_WITH_OPACITY:
        colour = values[:, :-1].contiguous()
        return Pixels(colour, values[:, -1:].contiguous(), back, compression)
    raise ValueError(
        "an image must have 1 or 3 channels, and perhaps opacity, "
        f"got {channels}; a tensor is (channels, height, width)"
    )


def _as_floats(batch: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return values from 0 to 1, and a function that returns numbers of the original type."""
    dtype = batch.dtype
    largest = {torch.uint8: LARGEST[8], torch.uint16: LARGEST[16]}.get(dtype)
    if largest is not None:

        def to_integers(result: Tensor) -> Tensor:
            return (result.clamp(0, 1) * largest).round().to(torch.int32).to(dtype)

        return batch.to(torch.float32) / largest, to_integers
    if not dtype.is_floating_point:
        raise TypeError(
            "an image must have bytes, 16-bit integers or floating-point numbers from 0 to 1, "
            f"got {dtype}"
        )
    if not bool(batch.isfinite().all()):
        raise ValueError("an image must not have NaN or infinite pixels")
    if float(batch.max()) > 1 + EXCESS or float(batch.min()) < -EXCESS:
        raise ValueError(
            "floating-point pixels must have values from 0 to 1, apart from noise, got values from "
            f"{float(batch.min()):.4g} to {float(batch.max()):.4g}: divide them by the largest "
            "possible value, such as 255"
        )
    return batch.float(), lambda result: result.to(dtype)


def mask_of_any(mask: AnyImage, like: Tensor) -> Tensor:
    """Return a mask as a boolean tensor (batch, 1, height, width), True at pixels that are white.

    Args:
        mask: Array (height, width), tensor, or Pillow image.
        like: Images to which the mask belongs, (batch, channels, height, width).
    """
    if is_labelled(mask):
        mask, _ = unlabelled(mask)
    if isinstance(mask, Tensor):
        known = mask if mask.dtype == torch.bool else mask != 0
    elif isinstance(mask, np.ndarray):
        known = torch.from_numpy(np.ascontiguousarray(mask)) != 0
        if known.ndim == 3 and known.shape[-1] in (1, 3, 4):
            known = known[..., :3].any(-1)
    elif hasattr(mask, "getpixel"):
        values, _ = values_of(cast(Any, mask))
        known = torch.from_numpy(values[:, :, :3].mean(-1) >= 0.5)
    else:
        raise TypeError(
            "a mask must be a tensor, a Pillow image, or an array of NumPy, pandas or xarray, "
            f"got {type(mask).__name__}"
        )
    height, width = like.shape[-2:]
    if known.shape[-2:] != (height, width):
        raise ValueError(
            f"the mask has {known.shape[-1]}×{known.shape[-2]} pixels, but the image "
            f"{width}×{height}: both must have the same size"
        )
    known = known.reshape(-1, 1, height, width) if known.ndim < 4 else known[:, :1]
    if len(known) not in (1, len(like)):
        raise ValueError(f"there are {len(known)} masks for {len(like)} images")
    known = known.to(like.device).expand(len(like), 1, height, width)
    if not bool(known.flatten(1).any(1).all()):
        raise ValueError(
            "the mask has no known pixel: it must be 1, True or white where a pixel is known; if "
            "white means missing, give white='missing'"
        )
    return known.contiguous()
