"""Races: how many iterations and seconds a method takes to reach a relative gap."""

from mirrordescent.racing.contestant import Contestant
from mirrordescent.racing.curve import GapCurve, first_below
from mirrordescent.racing.race import Race, RaceResult, spaced_iterations
from mirrordescent.racing.tuning import (
    TunableSolver,
    best_setting,
    iterations_needed,
    mean_log_gap,
)

__all__ = [
    "Contestant",
    "GapCurve",
    "Race",
    "RaceResult",
    "TunableSolver",
    "best_setting",
    "first_below",
    "iterations_needed",
    "mean_log_gap",
    "spaced_iterations",
]
