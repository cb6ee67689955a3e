"""How steps are run: plain torch, foreach, one call for many matrices, or C kernels.

A method states its mathematics. This package chooses once, when a run or an optimiser is
constructed, how the steps of that method are executed.
"""

from mirrordescent.execution.parameters import updates_for
from mirrordescent.execution.registry import Run as Run, fast_run as fast_run, runner
from mirrordescent.execution.solves import steps_for

__all__ = ["runner", "steps_for", "updates_for"]
