"""The data of the experiments: what the library reads by itself, and data sets by name.

If a file is missing, the error says where to get it and where to put it.
"""

from mirrordescent.data import (
    DataDamaged,
    DataMissing,
    bundled_photographs,
    digits,
    random_crops,
    read_image,
    read_images,
    tiles,
    user_pictures,
)
from mirrordescent_lab.data.catalogue import DataFile, Dataset
from mirrordescent_lab.data.directory import data_directory
from mirrordescent_lab.data.features import Features, four_nine_features
from mirrordescent_lab.data.idx import fashion_mnist, halve, mnist, read_idx
from mirrordescent_lab.data.omniglot import Tasks, omniglot_characters, sample_tasks
from mirrordescent_lab.data.phantoms import ellipse_phantoms
from mirrordescent_lab.data.photo_collections import bsds500, photographs, pictures, stl10
from mirrordescent_lab.data.reconstruction import (
    filtered_back_projection,
    noisy_phantoms,
    reconstruct_noisily,
)
from mirrordescent_lab.data.registry import FileStatus, dataset, describe, names, require, verify

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
