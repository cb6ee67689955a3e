"""Learned step sizes beyond their horizon: try all extension rules, and use the best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast, get_args

from mirrordescent.contests.contest import Contest
from mirrordescent.diagnosis.entries import DUAL_STORED, LEARNED
from mirrordescent.methods import Method
from mirrordescent.mirrors import MirrorMap
from mirrordescent.oracles import Oracle
from mirrordescent.schedules import Extension, Prefix
from mirrordescent_experiments.result import Curve, Panel

LABELS = {"": tuple(LEARNED), "one-network ": DUAL_STORED}
SHOWN = ("LAMD",)  # what stands beside its control in the figures of the paper
CONTROLLED = ("LSMD", "LAMD")  # what stands beside its control
NO_MAP = ", no map"  # after the name of a method whose control it is
STOCHASTIC = ("LSMD", "LASMD")
RULES = cast(tuple[Extension, ...], get_args(Extension))


def rebuild(learned: Method[Any], method: str, rule: Extension) -> Method[Any]:
    """Use the map and the step sizes of a learned method in another one, with an extension rule."""
    steps = cast(Prefix, learned.t)
    return LEARNED[method](cast(MirrorMap, learned.mirror), Prefix(steps.values.detach(), rule))


def every_rule(
    learned: Method[Any], methods: Iterable[str], contest: Contest, noise: Oracle | None = None
) -> dict[str, Panel]:
    """Return a panel with a curve of every rule for each method; some have noisy gradients."""
    return {
        method: Panel(
            [
                contest.run(rule, rebuild(learned, method, rule), noisy(method, noise))
                for rule in RULES
            ]
        )
        for method in methods
    }


def choose_rules(
    load: Callable[[str], Method[Any]],
    contest: Contest,
    noise: Oracle | None = None,
    labels: Mapping[str, Sequence[str]] = LABELS,
) -> tuple[dict[str, Panel], dict[str, Extension]]:
    """Return the panels of all rules, and the best rule of each method.

    ``load`` returns the learned method of a label, "" for the pair or "one-network ".
    """
    panels: dict[str, Panel] = {}
    rules: dict[str, Extension] = {}
    for label, methods in labels.items():
        tried = every_rule(load(label), methods, contest, noise)
        panels |= {f"{label}{method} extensions": panel for method, panel in tried.items()}
        rules |= {f"{label}{method}": rule for method, rule in best_rules(tried).items()}
    return panels, rules


def with_rules(
    load: Callable[[str], Method[Any]],
    rules: dict[str, Extension],
    noise: Oracle | None = None,
    suffix: str = "",
) -> Iterator[tuple[str, Method[Any], Oracle | None]]:
    """Yield the name, the method with its best rule, and the oracle of every learned method."""
    for name, rule in rules.items():
        method = name.split()[-1]
        yield (
            f"{name}{suffix} ({rule})",
            rebuild(load(name.removesuffix(method)), method, rule),
            noisy(method, noise),
        )


def beside_controls(panel: Panel, controls: Sequence[Curve]) -> Panel:
    """Return the curves of methods whose controls are given, each beside its own."""
    curves = []
    for control in controls:
        curves += [panel[control.name.split(NO_MAP)[0]], control]
    return Panel(curves, panel.quantity)


def with_controls(panel: Panel, controls: Sequence[Curve], methods: Sequence[str]) -> Panel:
    """Return the curves of a panel, and those of the controls of some of its methods."""
    wanted = [f"{method}{NO_MAP}" for method in methods]
    added = [curve for curve in controls if curve.name.split(" (")[0] in wanted]
    return Panel([*panel.curves, *added], panel.quantity, panel.against, panel.scales)


def best_rules(panels: dict[str, Panel]) -> dict[str, Extension]:
    """Return the rule with the smallest mean at the end, for every method."""

    def end(panel: Panel, rule: str) -> float:
        number = panel[rule].mean_at(panel.curves[0].iterations[-1])
        return number if number == number else float("inf")

    return {
        method: min(RULES, key=lambda rule: end(panel, rule)) for method, panel in panels.items()
    }


def noisy(method: str, noise: Oracle | None) -> Oracle | None:
    """Return how a method asks for gradients: noisy ones for the stochastic methods."""
    return noise if method in STOCHASTIC else None
