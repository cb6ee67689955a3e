"""Learning: unroll a method on the problems of a family, and improve its map and schedules."""

from mirrordescent._internal.deprecation import renamed_attributes
from mirrordescent.learn.document import read_recipe
from mirrordescent.learn.evolution import Evolution
from mirrordescent.learn.families import Draw, InpaintingFamily, Pooled, ProblemFamily
from mirrordescent.learn.network_families import NetworkFamily
from mirrordescent.learn.objective import Objective
from mirrordescent.learn.recipe import Recipe, Unrolled
from mirrordescent.learn.settings import Descent, Settings, Validation
from mirrordescent.learn.trainer import LearnResult, learn
from mirrordescent.learn.unrolling import Checkpointed, Full, Truncated

__all__ = [
    "Checkpointed",
    "Descent",
    "Draw",
    "Evolution",
    "Full",
    "InpaintingFamily",
    "LearnResult",
    "NetworkFamily",
    "Objective",
    "Pooled",
    "ProblemFamily",
    "Recipe",
    "Settings",
    "Truncated",
    "Unrolled",
    "Validation",
    "learn",
    "read_recipe",
]

_FAMILIES = "mirrordescent.learn.families"
__getattr__ = renamed_attributes(
    __name__,
    {
        "DeblurringFamily": f"{_FAMILIES}:DeblurringFamily",
        "DenoisingFamily": f"{_FAMILIES}:DenoisingFamily",
        "Differentiation": "mirrordescent.learn.unrolling:Differentiation",
        "Learned": "LearnResult",
        "NothingLearned": "mirrordescent.learn.trainer:NothingLearned",
        "OnDevice": f"{_FAMILIES}:OnDevice",
        "RestorationFamily": f"{_FAMILIES}:RestorationFamily",
        "RunDamaged": "mirrordescent.learn.checkpoint:RunDamaged",
        "SVMFamily": f"{_FAMILIES}:SVMFamily",
        "Stage": "mirrordescent.learn.recipe:Stage",
        "unroll": "mirrordescent.learn.unrolling:unroll",
        "moons_family": "mirrordescent.learn.network_families:moons_family",
    },
)
