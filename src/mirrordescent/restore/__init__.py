"""Restoring photographs from files: what is read is written back as it was, but for what was
restored.
"""

from mirrordescent.restore.memory import available, needed
from mirrordescent.restore.noise import estimate_noise
from mirrordescent.restore.photo import Photo, read_photo
from mirrordescent.restore.pipeline import Restored, restore
from mirrordescent.restore.planning import DEFAULTS, Plan, plan
from mirrordescent.restore.weight import Choice, choose_weight

__all__ = [
    "DEFAULTS",
    "Choice",
    "Photo",
    "Plan",
    "Restored",
    "available",
    "choose_weight",
    "estimate_noise",
    "needed",
    "plan",
    "read_photo",
    "restore",
]
