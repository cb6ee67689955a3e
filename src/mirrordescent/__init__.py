"""mirrordescent: learn the geometry of a class of optimisation problems, then solve new ones
faster.

    geometry (mirrors) → problems → methods → solve → learn

A mirror map turns points into dual ones and back; a method takes its steps there; ``solve`` runs
any method on any batch of problems; ``mirrordescent.learn`` improves a method on a family of
problems, and ``zoo`` has methods that were learned already.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

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
    from mirrordescent.auto import auto
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
        HandOver,
        Nesterov,
        ProjectedGradient,
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
    from mirrordescent.solve import (
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

_ROOMS = (
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
)
_OFFERED = {
    "auto": ("auto",),
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
    "solve": (
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
}
_HOMES = {name: room for room, names in _OFFERED.items() for name in names}

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
    "HandOver",
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


class _Package(ModuleType):
    """This package: it imports what is asked of it when it is asked, so that nobody waits for what
    is not used.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _ROOMS:
            return importlib.import_module(f"{__name__}.{name}")
        if name in _HOMES:
            found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
            setattr(self, name, found)
            return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Python binds a room to its name when it is imported; but ``solve`` and ``auto`` are
        functions of theirs.
        """
        room = name in ("auto", "solve") and isinstance(value, ModuleType)
        super().__setattr__(name, getattr(value, name) if room else value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *__all__})


sys.modules[__name__].__class__ = _Package
