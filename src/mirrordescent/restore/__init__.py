"""Restoration of photographs, in files and in memory.

A restored photograph is written in the format of the original, with its metadata.
"""

from mirrordescent._internal.deprecation import renamed_attributes
from mirrordescent.restore.calls import RestorationResult, deblur, denoise, inpaint, upsample
from mirrordescent.restore.grid_arrays import GridDenoisingResult, denoise_grids
from mirrordescent.restore.images import RestoredImage
from mirrordescent.restore.large_arrays import LargeResult, TiffPages, denoise_large
from mirrordescent.restore.memory import (
    available_memory as available_memory,
    needed_memory as needed_memory,
)
from mirrordescent.restore.noise import estimate_noise
from mirrordescent.restore.photo import Photo, read_photo
from mirrordescent.restore.pipeline import Restored, restore
from mirrordescent.restore.planning import (
    DEFAULTS as DEFAULTS,
    RestorationPlan as RestorationPlan,
    plan_restoration as plan_restoration,
)
from mirrordescent.restore.weight import WeightChoice as WeightChoice, choose_weight

__all__ = [
    "GridDenoisingResult",
    "LargeResult",
    "Photo",
    "RestorationResult",
    "Restored",
    "RestoredImage",
    "TiffPages",
    "choose_weight",
    "deblur",
    "denoise",
    "denoise_grids",
    "denoise_large",
    "estimate_noise",
    "inpaint",
    "read_photo",
    "restore",
    "upsample",
]
__getattr__ = renamed_attributes(
    __name__,
    {
        "Choice": "WeightChoice",
        "Plan": "RestorationPlan",
        "available": "available_memory",
        "needed": "needed_memory",
        "plan": "plan_restoration",
    },
)
