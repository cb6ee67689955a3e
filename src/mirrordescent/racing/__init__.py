"""Races: how many iterations and seconds a method takes to reach a relative gap."""

from mirrordescent.racing.contestant import Contestant as Contestant
from mirrordescent.racing.curve import GapCurve as GapCurve, first_below as first_below
from mirrordescent.racing.race import (
    Race as Race,
    RaceResult as RaceResult,
    spaced_iterations as spaced_iterations,
)
from mirrordescent.racing.timing import (
    Speedup as Speedup,
    Timing as Timing,
    clock_for as clock_for,
    speedup as speedup,
    time_in_turn as time_in_turn,
)
from mirrordescent.racing.tuning import (
    RELAXATIONS as RELAXATIONS,
    UNSOLVED as UNSOLVED,
    TunablePrimalDual as TunablePrimalDual,
    TunableSolver as TunableSolver,
    best_setting as best_setting,
    iterations_needed as iterations_needed,
    mean_log_gap as mean_log_gap,
)
