"""Data: real collections by name, or pictures from a user's files.

Whatever needs a file that is missing says what to put where, and where to get it.
"""

from mirrordescent.data.catalogue import DataFile, Dataset
from mirrordescent.data.directory import DataDamaged, DataMissing, data_directory
from mirrordescent.data.features import Features, four_nine_features
from mirrordescent.data.idx import digits, fashion_mnist, halve, mnist, read_idx
from mirrordescent.data.images import random_crops, read_image, read_images, tiles
from mirrordescent.data.photo_collections import (
    bsds500,
    bundled_photographs,
    photographs,
    pictures,
    stl10,
    user_pictures,
)
from mirrordescent.data.registry import FileStatus, dataset, describe, names, require, verify

__all__ = [
    "DataDamaged", "DataFile", "DataMissing", "Dataset", "Features", "FileStatus", "bsds500", "bundled_photographs",
    "data_directory", "dataset", "describe", "digits", "fashion_mnist", "four_nine_features", "halve", "mnist",
    "names", "photographs", "pictures", "random_crops", "read_idx", "read_image", "read_images", "require", "stl10",
    "tiles", "user_pictures", "verify",
]  # fmt: skip
