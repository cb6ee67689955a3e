"""mirrordescent: learn the geometry of a class of optimisation problems, then solve new ones faster.

    geometry (mirrors) → methods → problems → solve → learn

A mirror map turns points into dual ones and back; a method takes its steps there; ``solve`` runs any
method on any batch of problems; ``mirrordescent.learn`` improves a method on a family of problems, and
``zoo`` has methods that were learned already.
"""

from mirrordescent import data, domains, methods, mirrors, optim, oracles, problems, references, schedules, zoo
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
from mirrordescent.solve import (
    Solution,
    Status,
    gap,
    gradient_norm,
    relative_change,
    relative_gap,
    solve,
    wall_clock,
)

__version__ = "0.1.0"

__all__ = [
    "AMD",
    "ASMD",
    "GD",
    "LPD",
    "MD",
    "PDHG",
    "SGD",
    "SMD",
    "SVM",
    "Adam",
    "Averaged",
    "Certified",
    "CondatVu",
    "DomainError",
    "DualFISTA",
    "Function",
    "HandOver",
    "LeastSquares",
    "LogisticRegression",
    "MatrixGame",
    "Nesterov",
    "ProjectedGradient",
    "Quadratic",
    "Solution",
    "Status",
    "TVDenoising",
    "TVInpainting",
    "certify",
    "data",
    "domains",
    "gap",
    "gradient_norm",
    "methods",
    "mirrors",
    "optim",
    "oracles",
    "problems",
    "references",
    "relative_change",
    "relative_gap",
    "schedules",
    "solve",
    "wall_clock",
    "zoo",
]
