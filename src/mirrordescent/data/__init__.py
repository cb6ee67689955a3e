"""Data: real collections by name or from a user's files, and phantoms made on the spot.

Whatever needs a file that is missing says what to put where, and where to get it.
"""

from mirrordescent.data.catalogue import DataFile, Dataset
from mirrordescent.data.directory import DataDamaged, DataMissing, data_directory
from mirrordescent.data.features import Features, four_nine_features
from mirrordescent.data.idx import digits, fashion_mnist, halve, mnist, read_idx
from mirrordescent.data.images import random_crops, read_image, read_images, tiles
from mirrordescent.data.omniglot import Tasks, omniglot_characters, sample_tasks
from mirrordescent.data.phantoms import ellipse_phantoms
from mirrordescent.data.photo_collections import (
    bsds500,
    bundled_photographs,
    photographs,
    pictures,
    stl10,
    user_pictures,
)
from mirrordescent.data.reconstruction import filtered_back_projection, noisy_phantoms, reconstruct_noisily
from mirrordescent.data.registry import FileStatus, dataset, describe, names, require, verify
from mirrordescent.images import as_images, as_mask
from mirrordescent.problems.beam import ParallelBeam

__all__ = [
    "DataDamaged", "DataFile", "DataMissing", "Dataset", "Features", "FileStatus", "ParallelBeam", "Tasks", "as_images",
    "as_mask", "bsds500", "bundled_photographs", "data_directory", "dataset", "describe", "digits", "ellipse_phantoms",
    "fashion_mnist", "filtered_back_projection", "four_nine_features", "halve", "mnist", "names", "noisy_phantoms",
    "omniglot_characters", "photographs", "pictures", "random_crops", "read_idx", "read_image", "read_images",
    "reconstruct_noisily", "require", "sample_tasks", "stl10", "tiles", "user_pictures", "verify",
]  # fmt: skip
