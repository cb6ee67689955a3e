"""Theory made executable: constants, energies, bounds, assumptions and equivariance, measured along
real runs.

Is this a good mirror map, do the assumptions hold on my problems, how far is a run from its bound,
and which step sizes are safe? ``diagnose`` answers all of it on a page; the parts are here to be
used by themselves.
"""

from mirrordescent.theory import bounds, equivariance
from mirrordescent.theory.assumptions import Verdict, map_verdicts, problem_verdicts
from mirrordescent.theory.conditions import Setting, method_verdicts
from mirrordescent.theory.constants import (
    Constant,
    MapConstants,
    ProblemConstants,
    map_constants,
    problem_constants,
)
from mirrordescent.theory.curvature import extreme_eigenvalues
from mirrordescent.theory.diagnosis import diagnose
from mirrordescent.theory.dual import DualDescent, dual_descent, dual_smoothness
from mirrordescent.theory.energies import Energies, Observed, Record, observe
from mirrordescent.theory.findings import Diagnosis
from mirrordescent.theory.geometry import Coupling, exact_geometry
from mirrordescent.theory.inconsistency import (
    Inconsistency,
    UpdateErrors,
    dual_update_error,
    inconsistency,
    inconsistency_over_box,
    primal_update_error,
)
from mirrordescent.theory.recommend import Advice, recommend
from mirrordescent.theory.watched import Watched

__all__ = [
    "Advice",
    "Constant",
    "Coupling",
    "Diagnosis",
    "DualDescent",
    "Energies",
    "Inconsistency",
    "MapConstants",
    "Observed",
    "ProblemConstants",
    "Record",
    "Setting",
    "UpdateErrors",
    "Verdict",
    "Watched",
    "bounds",
    "diagnose",
    "dual_descent",
    "dual_smoothness",
    "dual_update_error",
    "equivariance",
    "exact_geometry",
    "extreme_eigenvalues",
    "inconsistency",
    "inconsistency_over_box",
    "map_constants",
    "map_verdicts",
    "method_verdicts",
    "observe",
    "primal_update_error",
    "problem_constants",
    "problem_verdicts",
    "recommend",
]
