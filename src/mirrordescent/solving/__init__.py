"""Solve: one loop, batched, with statuses, stop rules and traces."""

from mirrordescent.solving.implicit import layer
from mirrordescent.solving.loop import solve
from mirrordescent.solving.solution import Solution, Status, Trace
from mirrordescent.solving.stopping import (
    Look,
    Rule,
    gap,
    gradient_norm,
    relative_change,
    relative_gap,
    wall_clock,
)

__all__ = [
    "Look",
    "Rule",
    "Solution",
    "Status",
    "Trace",
    "gap",
    "gradient_norm",
    "layer",
    "relative_change",
    "relative_gap",
    "solve",
    "wall_clock",
]
