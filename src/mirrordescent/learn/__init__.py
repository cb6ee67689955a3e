"""Learning: a method is unrolled on problems of a family, and its map, schedules and oracle are improved."""

from mirrordescent.learn.checkpoint import RunDamaged
from mirrordescent.learn.config import Config, read_config
from mirrordescent.learn.device import OnDevice
from mirrordescent.learn.families import (
    DenoisingFamily,
    Draw,
    InpaintingFamily,
    Pooled,
    ProblemFamily,
    SVMFamily,
)
from mirrordescent.learn.networks import FewShotFamily, NetworkFamily, moons_family
from mirrordescent.learn.objective import Objective
from mirrordescent.learn.reptile import reptile
from mirrordescent.learn.tomography import TomographyFamily
from mirrordescent.learn.trainer import Learned, Settings, learn
from mirrordescent.learn.unroll import unroll

__all__ = [
    "Config",
    "DenoisingFamily",
    "Draw",
    "FewShotFamily",
    "InpaintingFamily",
    "Learned",
    "NetworkFamily",
    "Objective",
    "OnDevice",
    "Pooled",
    "ProblemFamily",
    "RunDamaged",
    "SVMFamily",
    "Settings",
    "TomographyFamily",
    "learn",
    "moons_family",
    "read_config",
    "reptile",
    "unroll",
]
