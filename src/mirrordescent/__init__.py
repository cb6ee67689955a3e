"""mirrordescent: learn the geometry of a class of optimisation problems, then solve new ones faster.

    geometry (mirrors) → problems → methods → solving → learn

A mirror map sends points to a dual space and back. A method takes its steps in that space.
``solve`` runs any method on any batch of problems, ``learn`` improves a method on a family of
problems, and ``zoo`` holds the methods that have been learned already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrordescent._internal.deprecation import install_moved_modules
from mirrordescent._internal.lazy import lazy_attributes

if TYPE_CHECKING:
    from mirrordescent import conditioning as conditioning
    from mirrordescent import data as data
    from mirrordescent import domains as domains
    from mirrordescent import learn as learn
    from mirrordescent import methods as methods
    from mirrordescent import mirrors as mirrors
    from mirrordescent import optim as optim
    from mirrordescent import oracles as oracles
    from mirrordescent import problems as problems
    from mirrordescent import references as references
    from mirrordescent import report as report
    from mirrordescent import restore as restore
    from mirrordescent import schedules as schedules
    from mirrordescent import theory as theory
    from mirrordescent import zoo as zoo
    from mirrordescent.automatic import auto
    from mirrordescent.domains import Box, DomainError, NonNegative, Simplex
    from mirrordescent.methods import (
        AMD,
        ASMD,
        FISTA,
        GD,
        LBFGS,
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
        Nesterov,
        ProjectedGradient,
        Switch,
        proven,
    )
    from mirrordescent.problems import (
        L1,
        SVM,
        TV,
        Composite,
        Counts,
        Function,
        LeastSquares,
        LogisticRegression,
        MatrixGame,
        Quadratic,
        SquaredError,
        TVDenoising,
        TVInpainting,
    )
    from mirrordescent.references import certify
    from mirrordescent.restore import choose_weight
    from mirrordescent.solving import (
        Solution,
        Status,
        gap,
        gradient_norm,
        layer,
        relative_change,
        relative_gap,
        solve,
        wall_clock,
    )

__version__ = "0.2.0"

__all__ = [
    "AMD",
    "ASMD",
    "FISTA",
    "GD",
    "L1",
    "LBFGS",
    "LPD",
    "MD",
    "PDHG",
    "SGD",
    "SMD",
    "SVM",
    "TV",
    "Adam",
    "Averaged",
    "Box",
    "Certified",
    "Composite",
    "CondatVu",
    "Counts",
    "DomainError",
    "DualFISTA",
    "Function",
    "LeastSquares",
    "LogisticRegression",
    "MatrixGame",
    "Nesterov",
    "NonNegative",
    "ProjectedGradient",
    "Quadratic",
    "Simplex",
    "Solution",
    "SquaredError",
    "Status",
    "Switch",
    "TVDenoising",
    "TVInpainting",
    "auto",
    "certify",
    "choose_weight",
    "conditioning",
    "data",
    "domains",
    "gap",
    "gradient_norm",
    "layer",
    "learn",
    "methods",
    "mirrors",
    "optim",
    "oracles",
    "problems",
    "proven",
    "references",
    "relative_change",
    "relative_gap",
    "report",
    "restore",
    "schedules",
    "solve",
    "theory",
    "wall_clock",
    "zoo",
]

# Importing torch and this package stays quick: a package is imported when it is first used.
__getattr__, __dir__ = lazy_attributes(
    __name__,
    packages=(
        "conditioning",
        "data",
        "domains",
        "learn",
        "methods",
        "mirrors",
        "optim",
        "oracles",
        "problems",
        "references",
        "report",
        "restore",
        "schedules",
        "theory",
        "zoo",
    ),
    names={
        "automatic": ("auto",),
        "domains": ("Box", "DomainError", "NonNegative", "Simplex"),
        "methods": (
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
            "Averaged",
            "Certified",
            "CondatVu",
            "DualFISTA",
            "HandOver",
            "Nesterov",
            "ProjectedGradient",
            "Switch",
            "proven",
        ),
        "problems": (
            "L1",
            "SVM",
            "TV",
            "Composite",
            "Counts",
            "Function",
            "LeastSquares",
            "LogisticRegression",
            "MatrixGame",
            "Quadratic",
            "SquaredError",
            "TVDenoising",
            "TVInpainting",
        ),
        "references": ("certify",),
        "restore": ("choose_weight",),
        "solving": (
            "Solution",
            "Status",
            "gap",
            "gradient_norm",
            "layer",
            "relative_change",
            "relative_gap",
            "solve",
            "wall_clock",
        ),
    },
    public=__all__,
)

install_moved_modules(__name__)
