"""Learned step sizes beyond their horizon: every rule on a few problems, the best of them on all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast, get_args

from mirrordescent.experiments.contest import Contest
from mirrordescent.experiments.result import Panel
from mirrordescent.methods import AMD, ASMD, MD, SMD, Method
from mirrordescent.mirrors import MirrorMap
from mirrordescent.oracles import Oracle
from mirrordescent.schedules import Extension, Prefix

LEARNED: dict[str, Callable[[MirrorMap, Prefix], Method[Any]]] = {"LMD": MD, "LSMD": SMD, "LAMD": AMD, "LASMD": ASMD}
DUAL_STORED = ("LSMD", "LAMD", "LASMD")
STOCHASTIC = ("LSMD", "LASMD")
RULES = cast(tuple[Extension, ...], get_args(Extension))


def rebuild(learned: Method[Any], method: str, rule: Extension) -> Method[Any]:
    """Use the map and the step sizes of a learned method in another one, with an extension rule."""
    steps = cast(Prefix, learned.t)
    return LEARNED[method](cast(MirrorMap, learned.mirror), Prefix(steps.values.detach(), rule))


def every_rule(
    learned: Method[Any], methods: Iterable[str], contest: Contest, noise: Oracle | None = None
) -> dict[str, Panel]:
    """Run methods with every rule, the stochastic ones on noisy gradients: {method: a curve per rule}."""
    return {
        method: Panel([contest.run(rule, rebuild(learned, method, rule), noisy(method, noise)) for rule in RULES])
        for method in methods
    }


def best_rules(panels: dict[str, Panel]) -> dict[str, Extension]:
    """Return the rule with the smallest mean at the end, for every method."""

    def end(panel: Panel, rule: str) -> float:
        number = panel[rule].mean_at(panel.curves[0].iterations[-1])
        return number if number == number else float("inf")

    return {method: min(RULES, key=lambda rule: end(panel, rule)) for method, panel in panels.items()}


def noisy(method: str, noise: Oracle | None) -> Oracle | None:
    """Return how a method asks for gradients where the stochastic ones have noisy ones."""
    return noise if method in STOCHASTIC else None
