"""mirrordescent: learn the geometry of a class of optimisation problems, then solve new ones faster.

    geometry (mirrors) → problems → methods → solve → learn

A mirror map turns points into dual ones and back; a method takes its steps there; ``solve`` runs any
method on any batch of problems; ``mirrordescent.learn`` improves a method on a family of problems, and
``zoo`` has methods that were learned already.
"""

import importlib
from types import ModuleType

from mirrordescent import conditioning, domains, methods, mirrors, oracles, problems, references, schedules
from mirrordescent.domains import DomainError
from mirrordescent.methods import (
    AMD,
    ASMD,
    GD,
    LPD,
    MD,
    PDHG,
    SGD,
    SMD,
    Adam,
    Averaged,
    Certified,
    CondatVu,
    DualFISTA,
    HandOver,
    Nesterov,
    ProjectedGradient,
    proven,
)
from mirrordescent.problems import (
    SVM,
    Function,
    LeastSquares,
    LogisticRegression,
    MatrixGame,
    Quadratic,
    TVDenoising,
    TVInpainting,
)
from mirrordescent.references import certify
from mirrordescent.solve import Solution, Status, gap, gradient_norm, relative_change, relative_gap, solve, wall_clock

__version__ = "0.2.0"

_ON_DEMAND = ("data", "learn", "optim", "report", "restore", "theory", "zoo")

__all__ = [
    "AMD", "ASMD", "GD", "LPD", "MD", "PDHG", "SGD", "SMD", "SVM", "Adam", "Averaged", "Certified", "CondatVu",
    "DomainError", "DualFISTA", "Function", "HandOver", "LeastSquares", "LogisticRegression", "MatrixGame", "Nesterov",
    "ProjectedGradient", "Quadratic", "Solution", "Status", "TVDenoising", "TVInpainting", "certify", "conditioning",
    "domains", "gap", "gradient_norm", "methods", "mirrors", "oracles", "problems", "proven", "references",
    "relative_change", "relative_gap", "schedules", "solve", "wall_clock", *_ON_DEMAND,
]  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    """Import a package when it is first used, so that what only solves need not wait for the rest."""
    if name in _ON_DEMAND:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_DEMAND})
