"""From a class of problems to a solver for it: everything that is tried, in one call."""

from mirrordescent.auto.outcome import Auto
from mirrordescent.auto.pipeline import auto

__all__ = ["Auto", "auto"]
