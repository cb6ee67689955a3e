"""Dual-space preconditioning for networks: learned, set by hand, and its control."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, cast

from mirrordescent import zoo
from mirrordescent.contests.contest import grid
from mirrordescent.contests.training_runs import LOSS, TEST_ACCURACY, Training
from mirrordescent.learn.control import without_map
from mirrordescent.methods import Adam, Method, Preconditioned
from mirrordescent.mirrors import MirrorMap, spectral_by_kind
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.schedules import OverRun
from mirrordescent_experiments.result import Claim, Panel
from mirrordescent_experiments.training_claims import at_least, at_most

POLAR = "polar factors"
CONTROL = "no geometry"
FALLING_ADAM = "falling Adam"
TUNED = f"tuned {ENTRY}"
RATES = grid(5e-4, 2e-1)
CONTROL_FACTORS = [
    0.08,
    0.15,
    0.3,
    0.5,
    0.8,
    1.25,
    2.0,
]  # without its maps the entry may want shorter steps
FACTORS = [0.5, 0.65, 0.8, 1.0, 1.25, 1.5, 1.8, 2.2]


def matrix_methods(
    tuning: Training, falls: Sequence[float] = (1.0,)
) -> Iterator[tuple[str, Method[Any]]]:
    """Yield the entry as it is, and others with the steps that are best on the networks to tune on.

    Those are the entry with steps of another length, the geometry set by hand, the entry with the
    identity for all its maps, and Adam. Steps set by hand, and of Adam, fall to 0 like (1 −
    u)^fall, u the share of the run, after a rise; the entry has a power of its own, which a fall
    multiplies. Lengths and falls are tuned together.
    """
    yield ENTRY, learned_for(tuning.steps)
    tunable: dict[str, tuple[Callable[[float, float], Method[Any]], list[float]]] = {
        TUNED: (lambda factor, fall: learned_for(tuning.steps, factor, fall), FACTORS),
        POLAR: (_preconditioned(spectral_by_kind(), tuning.steps), RATES),
        CONTROL: (
            lambda factor, fall: without_map(learned_for(tuning.steps, factor, fall)),
            CONTROL_FACTORS,
        ),
        FALLING_ADAM: (lambda rate, fall: Adam(_falling(rate, tuning.steps, fall)), RATES),
    }
    for name, (make, lengths) in tunable.items():
        best = {setting: tuning.loss(make(*setting)) for setting in product(lengths, falls)}
        length, fall = min(best, key=lambda setting: best[setting])
        yield (
            f"{name} ({length:g}{f', fall {fall:g}' if len(falls) > 1 else ''})",
            make(length, fall),
        )


def learned_for(steps: int, factor: float = 1.0, fall: float = 1.0) -> Method[Any]:
    """Return the entry for a number of steps, with rescaled steps or another schedule if given."""
    entry = cast(Preconditioned, zoo.load(ENTRY))
    own = cast(OverRun, entry.t)
    over = own.replace(steps=steps, power=fall * own.power)
    t = over if factor == 1 else lambda k: factor * float(over(k))
    return entry.replace(t=t)


def _preconditioned(mirror: MirrorMap, steps: int) -> Callable[[float, float], Method[Any]]:
    return lambda rate, fall: Preconditioned(
        mirror, _falling(rate, steps, fall), momentum=0.95, normalised=True
    )


def _falling(rate: float, steps: int, fall: float) -> Callable[[int], float]:
    shape = OverRun(steps, power=fall)
    return lambda k: rate * float(shape(k))


def matrix_claims(measured: dict[str, Panel], loss: float, accuracy: float) -> list[Claim]:
    """Judge a geometry of matrices, and whether the better method reaches given numbers."""
    ends = {
        name: [float(measured[what][name].values[-1].mean()) for what in (LOSS, TEST_ACCURACY)]
        for name in (ENTRY, TUNED, POLAR)
    }
    best = min(ends, key=lambda name: ends[name][0])
    found = [
        Claim(
            f"{name}: training loss at most {loss:g} and test accuracy at least {accuracy:.1%}",
            ends[name][0] <= loss and ends[name][1] >= accuracy,
            f"{ends[name][0]:.4g}, {ends[name][1]:.2%}",
        )
        for name in ends
    ]
    for rival in (CONTROL, FALLING_ADAM):
        found += [
            at_most(measured[LOSS], best, 1, rival),
            at_least(measured[TEST_ACCURACY], best, rival, 0.0),
        ]
    return found
