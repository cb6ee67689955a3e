"""Data sets by name, photographs and digits that need no download, and a user's own pictures.

If a file is missing, the error says where to get it and where to put it.
"""

from mirrordescent.data.catalogue import DataFile as DataFile, Dataset as Dataset
from mirrordescent.data.digit_features import (
    Features as Features,
    four_nine_features as four_nine_features,
)
from mirrordescent.data.directory import data_directory
from mirrordescent.data.errors import DataDamaged, DataMissing
from mirrordescent.data.idx import (
    fashion_mnist as fashion_mnist,
    halve as halve,
    mnist as mnist,
    read_idx as read_idx,
)
from mirrordescent.data.image_files import random_crops, read_image, read_images, tiles
from mirrordescent.data.omniglot import (
    Tasks as Tasks,
    omniglot_characters as omniglot_characters,
    sample_tasks as sample_tasks,
)
from mirrordescent.data.phantoms import ellipse_phantoms as ellipse_phantoms
from mirrordescent.data.photo_collections import (
    bsds500 as bsds500,
    photographs,
    pictures,
    stl10 as stl10,
)
from mirrordescent.data.pictures import bundled_photographs, digits, user_pictures
from mirrordescent.data.reconstruction import (
    filtered_back_projection as filtered_back_projection,
    noisy_phantoms as noisy_phantoms,
    reconstruct_noisily as reconstruct_noisily,
)
from mirrordescent.data.registry import (
    FileStatus as FileStatus,
    dataset as dataset,
    describe as describe,
    names as names,
    require as require,
    verify as verify,
)

__all__ = [
    "DataDamaged",
    "DataMissing",
    "bundled_photographs",
    "data_directory",
    "digits",
    "photographs",
    "pictures",
    "random_crops",
    "read_image",
    "read_images",
    "tiles",
    "user_pictures",
]
