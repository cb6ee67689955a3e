"""Images as part of a page: no file beside it."""

import base64
import io
from typing import Any

import torch
from torch import Tensor

from mirrordescent._internal.extras import requires_extra
from mirrordescent.report.content import Picture

LARGEST_SIDE = 1200  # pixels; what is larger is shrunk
LOSSLESS_PIXELS = 160 * 160  # up to which an image is kept exactly


def embed(picture: Picture) -> dict[str, Any]:
    """Return the image as a data address, with its width and height there."""
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
    """Return (height, width) or (height, width, 3 or 4) of bytes."""
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[0] not in (1, 3, 4)):
        raise ValueError(
            f"a picture must be (1, 3 or 4 channels, height, width) or (height, width), got {image.shape}"
        )
    planes = image if image.ndim == 2 or len(image) > 1 else image[0]
    if planes.dtype != torch.uint8:
        planes = (planes.detach().cpu().float().nan_to_num().clamp(0, 1) * 255).round().byte()
    return (planes.movedim(0, -1) if planes.ndim == 3 else planes).contiguous().numpy()
