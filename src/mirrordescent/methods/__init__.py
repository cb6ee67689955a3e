"""Methods: mirror descent in its variants, and what it is compared with."""

from mirrordescent.methods.accelerated import AMD, ASMD
from mirrordescent.methods.averaged import Averaged
from mirrordescent.methods.base import Method, State
from mirrordescent.methods.baselines import GD, SGD, Adam, Nesterov, ProjectedGradient
from mirrordescent.methods.descent import MD, SMD
from mirrordescent.methods.primal_dual import LPD, PDHG, DualFISTA

__all__ = [
    "AMD",
    "ASMD",
    "GD",
    "LPD",
    "MD",
    "PDHG",
    "SGD",
    "SMD",
    "Adam",
    "Averaged",
    "DualFISTA",
    "Method",
    "Nesterov",
    "ProjectedGradient",
    "State",
]
