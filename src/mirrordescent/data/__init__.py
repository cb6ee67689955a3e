"""Data sets by name, photographs and digits that need no download, and a user's own pictures.

If a file is missing, the error says where to get it and where to put it.
"""

from mirrordescent.data.catalogue import DataFile, Dataset
from mirrordescent.data.digit_features import Features, four_nine_features
from mirrordescent.data.directory import data_directory
from mirrordescent.data.errors import DataDamaged, DataMissing
from mirrordescent.data.idx import fashion_mnist, halve, mnist, read_idx
from mirrordescent.data.image_files import random_crops, read_image, read_images, tiles
from mirrordescent.data.omniglot import Tasks, omniglot_characters, sample_tasks
from mirrordescent.data.phantoms import ellipse_phantoms
from mirrordescent.data.photo_collections import bsds500, photographs, pictures, stl10
from mirrordescent.data.pictures import bundled_photographs, digits, user_pictures
from mirrordescent.data.reconstruction import (
    filtered_back_projection,
    noisy_phantoms,
    reconstruct_noisily,
)
from mirrordescent.data.registry import FileStatus, dataset, describe, names, require, verify

__all__ = [
    "DataDamaged",
    "DataFile",
    "DataMissing",
    "Dataset",
    "Features",
    "FileStatus",
    "Tasks",
    "bsds500",
    "bundled_photographs",
    "data_directory",
    "dataset",
    "describe",
    "digits",
    "ellipse_phantoms",
    "fashion_mnist",
    "filtered_back_projection",
    "four_nine_features",
    "halve",
    "mnist",
    "names",
    "noisy_phantoms",
    "omniglot_characters",
    "photographs",
    "pictures",
    "random_crops",
    "read_idx",
    "read_image",
    "read_images",
    "reconstruct_noisily",
    "require",
    "sample_tasks",
    "stl10",
    "tiles",
    "user_pictures",
    "verify",
]
