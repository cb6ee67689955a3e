"""Data that need no download, and pictures of a user's own; the datasets of the experiments are in
the laboratory.
"""

from mirrordescent.data.errors import DataDamaged, DataMissing
from mirrordescent.data.image_files import random_crops, read_image, read_images, tiles
from mirrordescent.data.pictures import (
    bundled_photographs,
    digits,
    photographs,
    pictures,
    user_pictures,
)

__all__ = [
    "DataDamaged",
    "DataMissing",
    "bundled_photographs",
    "digits",
    "photographs",
    "pictures",
    "random_crops",
    "read_image",
    "read_images",
    "tiles",
    "user_pictures",
]
