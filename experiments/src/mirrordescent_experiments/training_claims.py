"""Claims about trained networks: one method against another, over the same networks."""

from __future__ import annotations

from torch import Tensor

from mirrordescent_experiments.intervals import paired
from mirrordescent_experiments.result import Claim, Panel

# the loss of a network that has none, and no loss counts for more: guessing among ten has 2.3
FAILED = 10.0


def at_most(panel: Panel, name: str, factor: float, rival: str) -> Claim:
    """Judge that a method's final mean is at most a factor of a rival's, over the same networks."""
    ours, theirs = (_ends(panel, each) for each in (name, rival))
    relation = "below" if factor == 1 else f"at most {factor:.3g} times"
    return _judged(
        f"{panel.quantity}: {name} ends {relation} {rival}",
        factor * theirs - ours,
        panel,
        name,
        rival,
    )


def at_least(panel: Panel, name: str, rival: str, points: float) -> Claim:
    """Whether a method's mean share at the end is at least a rival's, minus a number of points."""
    ours, theirs = (_ends(panel, each) for each in (name, rival))
    statement = f"{panel.quantity}: {name} ends at least at {rival} − {points:g} points"
    return _judged(statement, ours - theirs + points / 100, panel, name, rival)


def _ends(panel: Panel, name: str) -> Tensor:
    return panel[name].values[-1].double().nan_to_num(nan=FAILED).clamp(max=FAILED)


def _judged(statement: str, margins: Tensor, panel: Panel, name: str, rival: str) -> Claim:
    """Judge by the mean margin over networks, with its interval."""
    margin = paired(margins)
    within = f"margin {margin.mean:.2g} [{margin.low:.2g}, {margin.high:.2g}]"
    return Claim.by(
        statement,
        margin.low,
        margin.high,
        f"{_with_error(panel, name)}, {_with_error(panel, rival)}; {within}",
    )


def _with_error(panel: Panel, name: str) -> str:
    """Write a mean at the end with its standard error over the runs."""
    values = panel[name].values[-1].double()
    return (
        f"{panel[name].name} {float(values.mean()):.4g} ± "
        f"{float(values.std() / len(values) ** 0.5):.1g}"
    )
