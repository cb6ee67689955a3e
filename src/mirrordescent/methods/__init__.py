"""Methods: mirror descent in its variants, and the methods it is compared with."""

from typing import Any

from mirrordescent._internal.deprecation import OUTLOOK, renamed_attributes, warn_deprecated
from mirrordescent.methods.accelerated import AMD, ASMD
from mirrordescent.methods.adaptive import AdaptivePreconditioned
from mirrordescent.methods.admm import ADMM
from mirrordescent.methods.averaged import Averaged
from mirrordescent.methods.base import (
    GradientMethod,
    Method,
    State as State,
    StatefulWrapper,
    Wrapped as Wrapped,
    Wrapper,
)
from mirrordescent.methods.baselines import (
    GD,
    SGD,
    Adam,
    Nesterov,
    ProjectedGradient,
    ProjectedNesterov as ProjectedNesterov,
)
from mirrordescent.methods.certified import Certified
from mirrordescent.methods.conditioned import Conditioned
from mirrordescent.methods.damped import DampedPreconditioned
from mirrordescent.methods.descent import MD, SMD
from mirrordescent.methods.equipped import Equipped
from mirrordescent.methods.fista import FISTA
from mirrordescent.methods.lbfgs import LBFGS
from mirrordescent.methods.naming import named as named, names as names
from mirrordescent.methods.never_worse import NeverWorse
from mirrordescent.methods.preconditioned import Preconditioned
from mirrordescent.methods.primal_dual import LPD, PDHG, CondatVu, DualFISTA, PrimalDual
from mirrordescent.methods.ridge_momentum import RidgeMomentum
from mirrordescent.methods.safeguarded import Safeguarded
from mirrordescent.methods.scheduled import ScheduledPrimalDual
from mirrordescent.methods.switch import Switch, proven, restarting_switch as restarting_switch
from mirrordescent.methods.tangent_bound import TangentBound
from mirrordescent.methods.taut_string import TautString
from mirrordescent.methods.trend_interior_point import TrendInteriorPoint
from mirrordescent.methods.within_range import OutOfRange as OutOfRange, WithinRange

__all__ = [
    "ADMM",
    "AMD",
    "ASMD",
    "FISTA",
    "GD",
    "LBFGS",
    "LPD",
    "MD",
    "PDHG",
    "SGD",
    "SMD",
    "Adam",
    "AdaptivePreconditioned",
    "Averaged",
    "Certified",
    "CondatVu",
    "Conditioned",
    "DampedPreconditioned",
    "DualFISTA",
    "Equipped",
    "GradientMethod",
    "Method",
    "Nesterov",
    "NeverWorse",
    "Preconditioned",
    "PrimalDual",
    "ProjectedGradient",
    "RidgeMomentum",
    "Safeguarded",
    "ScheduledPrimalDual",
    "StatefulWrapper",
    "Switch",
    "TangentBound",
    "TautString",
    "TrendInteriorPoint",
    "WithinRange",
    "Wrapper",
    "proven",
]

_renamed = renamed_attributes(__name__, {"HandOver": "Switch", "Relay": "Switch"})


def __getattr__(name: str) -> Any:
    if name != "Relay":
        return _renamed(name)
    warn_deprecated(
        f"{__name__}.Relay was renamed to {__name__}.Switch, with the arguments certified=False "
        f"and dual_start=False; {OUTLOOK}"
    )
    return restarting_switch
