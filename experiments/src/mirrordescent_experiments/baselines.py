"""Baselines with the step sizes of the paper's appendix."""

from mirrordescent.contests.contest import RATIOS, TUNED_PDHG, grid
from mirrordescent.methods import PDHG, Adam, Nesterov
from mirrordescent.methods.baselines import GD
from mirrordescent.racing import TunablePrimalDual, TunableSolver
from mirrordescent.report import Curve

ADAM = TunableSolver("Adam", Adam, grid(1e-3, 1e-1))
BASELINES = [
    TunableSolver("GD", GD, grid(2e-4, 1e-1)),
    TunableSolver("Nesterov", Nesterov, grid(1e-4, 5e-3)),
    ADAM,
]
# The best step size of Nesterov's method may lie outside the appendix's grid.
WIDE_NESTEROV = TunableSolver("wide Nesterov", Nesterov, grid(1e-4, 1e-1))
CLASSICAL = TUNED_PDHG
EARLY_CLASSICAL = TunablePrimalDual("early PDHG", PDHG, RATIOS)  # tuned for the first iterations


def mean_by(curve: Curve, moment: float) -> float:
    """Return the mean at the last point that was recorded before a given second."""
    index = sum(second <= moment for second in curve.seconds) - 1
    return float(curve.values[index].mean())
