"""Contests: several methods on the same problems, with tuned step sizes and certified optima.

The demonstration, the diagnosis of entries and the experiments are built on them.
"""

from mirrordescent.contests.contest import (
    Contest as Contest,
    grid as grid,
    recorded_iterations as recorded_iterations,
)
from mirrordescent.contests.training_runs import Training as Training
