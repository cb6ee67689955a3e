"""Images embedded in a page."""

import base64
import io
from typing import Any

import torch
from torch import Tensor

from mirrordescent._internal.extras import requires_extra
from mirrordescent.report.content import Picture

LARGEST_SIDE = 1200
"""Largest side of an embedded image in pixels. Larger images are reduced."""
LOSSLESS_PIXELS = 160 * 160
"""Number of pixels up to which an image is stored without loss."""


def embed(picture: Picture) -> dict[str, Any]:
    """Return a picture as a data URL, with its width and height on the page."""
    with requires_extra("pictures", "Showing pictures on a page", "Pillow"):
        from PIL import Image

    image = Image.fromarray(_pixels(picture.image))
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    kind = "png" if image.width * image.height <= LOSSLESS_PIXELS else "webp"
    file = io.BytesIO()
    image.save(file, kind, quality=88)
    address = f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"address": address, "width": image.width, "height": image.height, "note": picture.note}


def _pixels(image: Tensor) -> Any:
    """Return an image as an array (height, width) or (height, width, channels) of bytes."""
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[0] not in (1, 3, 4)):
        raise ValueError(
            "a picture must have the shape (1, 3 or 4 channels, height, width) or (height, width), "
            f"got {tuple(image.shape)}"
        )
    planes = image if image.ndim == 2 or len(image) > 1 else image[0]
    if planes.dtype != torch.uint8:
        planes = (planes.detach().cpu().float().nan_to_num().clamp(0, 1) * 255).round().byte()
    if planes.ndim == 3:
        planes = planes.movedim(0, -1)
    return planes.contiguous().numpy()
