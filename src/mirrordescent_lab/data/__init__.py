"""The data of the experiments: what the library reads, and Omniglot, phantoms and their noisy reconstructions."""

from mirrordescent.data import *  # noqa: F403 - the experiments know one place for data
from mirrordescent_lab.data.omniglot import Tasks, omniglot_characters, sample_tasks
from mirrordescent_lab.data.phantoms import ellipse_phantoms
from mirrordescent_lab.data.reconstruction import filtered_back_projection, noisy_phantoms, reconstruct_noisily

__all__ = [
    "Tasks", "ellipse_phantoms", "filtered_back_projection", "noisy_phantoms", "omniglot_characters",
    "reconstruct_noisily", "sample_tasks",
]  # fmt: skip
