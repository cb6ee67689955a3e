"""Methods: mirror descent in its variants, and what it is compared with."""

from mirrordescent.methods.accelerated import AMD, ASMD
from mirrordescent.methods.averaged import Averaged
from mirrordescent.methods.base import Method, State
from mirrordescent.methods.baselines import GD, SGD, Adam, Nesterov, ProjectedGradient, ProjectedNesterov
from mirrordescent.methods.certified import Certified, HandOver
from mirrordescent.methods.descent import MD, SMD
from mirrordescent.methods.equipped import Equipped
from mirrordescent.methods.expectation_maximisation import MLEM, OSEM
from mirrordescent.methods.fused import Fused
from mirrordescent.methods.naming import NAMES, named
from mirrordescent.methods.primal_dual import LPD, PDHG, CondatVu, DualFISTA
from mirrordescent.methods.safeguarded import Safeguarded
from mirrordescent.methods.stochastic_primal_dual import SPDHG

__all__ = [
    "AMD",
    "ASMD",
    "GD",
    "LPD",
    "MD",
    "MLEM",
    "NAMES",
    "OSEM",
    "PDHG",
    "SGD",
    "SMD",
    "SPDHG",
    "Adam",
    "Averaged",
    "Certified",
    "CondatVu",
    "DualFISTA",
    "Equipped",
    "Fused",
    "HandOver",
    "Method",
    "Nesterov",
    "ProjectedGradient",
    "ProjectedNesterov",
    "Safeguarded",
    "State",
    "named",
]
