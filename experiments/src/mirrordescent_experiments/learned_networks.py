"""Learned methods that train networks: as printed in the paper, improved, and without a map."""

from __future__ import annotations

from typing import Any, cast

from mirrordescent import zoo
from mirrordescent.contests.contest import grid
from mirrordescent.contests.training_runs import Training
from mirrordescent.learn.recipe import CONTROL
from mirrordescent.methods import AMD, SMD, Method
from mirrordescent.mirrors import Euclidean
from mirrordescent.racing import TunableSolver
from mirrordescent.recipes.network_maps import rescaled
from mirrordescent.recipes.printed_maps import accelerated_as_printed
from mirrordescent_experiments.extensions import NO_MAP
from mirrordescent_experiments.result import Claim, Panel
from mirrordescent_experiments.training_claims import at_most

LMD = "LMD"
PRINTED = "LAMD* as printed"
CAPPED = "capped LAMD"
SHORTER = f"{PRINTED}, steps tuned"
PRINTED_CONTROL = f"{PRINTED}{NO_MAP}"
FACTORS = [1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005]


def printed(entry: str) -> dict[str, Method[Any]]:
    """Return learned mirror descent, and its map and step size in the paper's LAMD*.

    An entry that is not shipped gives nothing, and claims about it are then not measured.
    """
    if entry not in zoo.list():
        return {}
    method = cast(SMD, zoo.load(entry)).requires_grad_(False)
    return {LMD: method, PRINTED: accelerated_as_printed(method)}


def with_other_steps(entry: str, tuning: Training) -> dict[str, Method[Any]]:
    """Return LAMD* as printed with a tuned multiple of LMD's step size."""
    if entry not in zoo.list():
        return {}
    method = cast(SMD, zoo.load(entry)).requires_grad_(False)
    made = TunableSolver(
        SHORTER, lambda factor: rescaled(accelerated_as_printed(method), factor), FACTORS
    )
    factor = tuning.tune(made)
    return {f"{SHORTER} ({factor:g})": made.make(factor)}


def without_its_map(tuning: Training) -> dict[str, Method[Any]]:
    """Return LAMD* as printed with the identity as its map, and a tuned step size.

    Its step sizes are constant, so the best constant step is the best control.
    """
    made = TunableSolver(PRINTED_CONTROL, lambda t: AMD(Euclidean(), t), grid(1e-3, 5.0))
    t = tuning.tune(made)
    return {f"{PRINTED_CONTROL} ({t:g})": made.make(t).requires_grad_(False)}


def capped(entry: str) -> dict[str, Method[Any]]:
    """Return the method of an entry, and its control if it exists."""
    made = {CAPPED: cast(Method[Any], zoo.load(entry))}
    if f"{entry}{CONTROL}" in zoo.list():
        made[CAPPED + NO_MAP] = cast(Method[Any], zoo.load(f"{entry}{CONTROL}"))
    return made


def learned(entry: str) -> dict[str, Method[Any]]:
    """Return the methods of NAME-printed and of NAME, with their controls."""
    made = printed(f"{entry}-printed")
    if f"{entry}-printed{CONTROL}" in zoo.list():
        made[LMD + NO_MAP] = cast(Method[Any], zoo.load(f"{entry}-printed{CONTROL}"))
    return {**made, **capped(entry)}


def map_claims(loss: Panel) -> list[Claim]:
    """Judge whether methods end below their controls, which is what their maps are worth."""
    names = set(loss.names)
    return [
        at_most(loss, name, 1, name + NO_MAP)
        for name in (LMD, CAPPED)
        if {name, name + NO_MAP} <= names
    ]
