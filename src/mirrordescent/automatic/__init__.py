"""From a class of problems to a solver for it: everything that is tried, in one call."""

from mirrordescent.automatic.outcome import Auto
from mirrordescent.automatic.pipeline import auto

__all__ = ["Auto", "auto"]
