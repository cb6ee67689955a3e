"""Solve: one loop for batches of problems, with statuses, stop rules and traces."""

from mirrordescent._internal.deprecation import renamed_attributes
from mirrordescent.solving.fixed_steps import FixedSteps
from mirrordescent.solving.implicit import layer
from mirrordescent.solving.loop import solve
from mirrordescent.solving.solution import Solution, Status, Trace
from mirrordescent.solving.stopping import (
    Rule,
    Snapshot,
    gap,
    gradient_norm,
    relative_change,
    relative_gap,
    rounding_of,
    wall_clock,
)

__all__ = [
    "FixedSteps",
    "Rule",
    "Snapshot",
    "Solution",
    "Status",
    "Trace",
    "gap",
    "gradient_norm",
    "layer",
    "relative_change",
    "relative_gap",
    "rounding_of",
    "solve",
    "wall_clock",
]

__getattr__ = renamed_attributes(__name__, {"Look": "Snapshot"})
