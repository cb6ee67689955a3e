"""Executable theory: constants, assumptions, energies and bounds, measured along real runs.

Is this a good mirror map? Do the assumptions hold on my problems? How far is a run from its bound?
Which step sizes are safe? :func:`diagnose` answers all of these questions; :func:`recommend`,
:func:`observe`, :func:`map_constants` and :func:`problem_constants` answer one at a time, and
``bounds`` has the right-hand sides of the theorems. The submodules contain the parts.
"""

from mirrordescent._internal.deprecation import renamed_attributes
from mirrordescent.theory import bounds
from mirrordescent.theory.assumptions import Verdict
from mirrordescent.theory.constants import (
    KnownConstant,
    MapConstants,
    ProblemConstants,
    map_constants,
    problem_constants,
)
from mirrordescent.theory.diagnosis import diagnose
from mirrordescent.theory.diagnosis_results import Diagnosis
from mirrordescent.theory.energies import Record, observe
from mirrordescent.theory.recommendation import Advice, recommend

__all__ = [
    "Advice",
    "Diagnosis",
    "KnownConstant",
    "MapConstants",
    "ProblemConstants",
    "Record",
    "Verdict",
    "bounds",
    "diagnose",
    "map_constants",
    "observe",
    "problem_constants",
    "recommend",
]

__getattr__ = renamed_attributes(
    __name__,
    {
        "Constant": "KnownConstant",
        "Coupling": "mirrordescent.theory.geometry:Coupling",
        "DualDescent": "mirrordescent.theory.dual_preconditioning:DualDescent",
        "Energies": "mirrordescent.theory.energies:Energies",
        "Inconsistency": "mirrordescent.theory.inverse_consistency:Inconsistency",
        "Observed": "mirrordescent.theory.energies:Observed",
        "Setting": "mirrordescent.theory.conditions:Setting",
        "UpdateErrors": "mirrordescent.theory.inverse_consistency:UpdateErrors",
        "Watched": "mirrordescent.theory.recording:StepRecorder",
        "dual_descent": "mirrordescent.theory.dual_preconditioning:dual_descent",
        "dual_smoothness": "mirrordescent.theory.dual_preconditioning:dual_smoothness",
        "dual_update_error": "mirrordescent.theory.inverse_consistency:dual_update_error",
        "exact_geometry": "mirrordescent.theory.geometry:exact_geometry",
        "extreme_eigenvalues": "mirrordescent.theory.curvature:extreme_eigenvalues",
        "inconsistency": "mirrordescent.theory.inverse_consistency:inconsistency",
        "inconsistency_over_box": "mirrordescent.theory.inverse_consistency:inconsistency_over_box",
        "map_verdicts": "mirrordescent.theory.assumptions:map_verdicts",
        "method_verdicts": "mirrordescent.theory.conditions:method_verdicts",
        "primal_update_error": "mirrordescent.theory.inverse_consistency:primal_update_error",
        "problem_verdicts": "mirrordescent.theory.assumptions:problem_verdicts",
    },
)
