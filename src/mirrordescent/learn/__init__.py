"""Learning: a method is unrolled on problems of a family, and its map, schedules and oracle are
improved.
"""

from mirrordescent.learn.checkpoint import RunDamaged
from mirrordescent.learn.document import read_recipe
from mirrordescent.learn.evolution import Evolution
from mirrordescent.learn.families import (
    DeblurringFamily,
    DenoisingFamily,
    Draw,
    InpaintingFamily,
    OnDevice,
    Pooled,
    ProblemFamily,
    RestorationFamily,
    SVMFamily,
)
from mirrordescent.learn.network_families import NetworkFamily, moons_family
from mirrordescent.learn.objective import Objective
from mirrordescent.learn.recipe import Recipe, Stage, Unrolled
from mirrordescent.learn.settings import Descent, Settings, Validation
from mirrordescent.learn.trainer import Learned, NothingLearned, learn
from mirrordescent.learn.unroll import Checkpointed, Differentiation, Full, Truncated, unroll

__all__ = [
    "Checkpointed",
    "DeblurringFamily",
    "DenoisingFamily",
    "Descent",
    "Differentiation",
    "Draw",
    "Evolution",
    "Full",
    "InpaintingFamily",
    "Learned",
    "NetworkFamily",
    "NothingLearned",
    "Objective",
    "OnDevice",
    "Pooled",
    "ProblemFamily",
    "Recipe",
    "RestorationFamily",
    "RunDamaged",
    "SVMFamily",
    "Settings",
    "Stage",
    "Truncated",
    "Unrolled",
    "Validation",
    "learn",
    "moons_family",
    "read_recipe",
    "unroll",
]
