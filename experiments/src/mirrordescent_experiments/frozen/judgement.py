"""Tables and claims of the comparison on frozen tasks.

Only tasks all of whose runs are in the ledger are judged. A claim about all tasks is decided as
soon as the other tasks cannot change it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from mirrordescent import zoo
from mirrordescent.recipes.general_tasks import GeneralTask
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent_experiments.contestants import ADAMW, MUON
from mirrordescent_experiments.frozen import CONDITIONS, FROZEN, OF_ANY_LENGTH
from mirrordescent_experiments.frozen.contestants import (
    OLD,
    OLDER,
    OURS,
    RIVALS,
    UNKNOWN_LENGTH,
    takes_part,
)
from mirrordescent_experiments.frozen.runs import Comparison
from mirrordescent_experiments.intervals import Estimate, paired
from mirrordescent_experiments.ledger import written
from mirrordescent_experiments.result import Claim, Result, Table
from mirrordescent_experiments.scales import Scale

MARGIN = 1.03
"""Largest ratio to AdamW's loss that an interval may lie wholly above."""

FACTORS = {False: 1.2, True: 3.0}
"""Largest ratio to the best rival's loss, for ordinary losses and for those over decades."""

TOLERANCE = 1.05
"""Largest ratio of losses under other conditions: without steps, and for other batches."""

PROFILE = (1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
"""Multiples of the best time to a target."""

AHEAD = {ADAMW: 3 / 4, MUON: 2 / 3}
"""Shares of the tasks on which the entry should be ahead of a rival."""


class Judged(NamedTuple):
    """The losses of all contestants on a task at the end of their runs.

    Attributes:
        task: Task.
        ours: Losses of the entry, for every network.
        rivals: Losses of each rival that took part, by name.
    """

    task: GeneralTask
    ours: list[float]
    rivals: dict[str, list[float]]

    @property
    def best(self) -> float:
        """The least mean loss of a rival."""
        return min(map(_mean, self.rivals.values()))


def result_of(comparison: Comparison, scale: Scale) -> Result:
    """Return the page of all tasks whose runs are complete."""
    with comparison.without_running():
        judged = list(finished(comparison, comparison.tasks))
        missing = [
            task.name
            for task in comparison.tasks
            if task.name not in {each.task.name for each in judged}
        ]
        settings: dict[str, Any] = {
            "scale": scale,
            "networks of a task": comparison.seeds,
            "entry": zoo.versioned(ENTRY),
            "rivals": (
                "cosine with 5 % warm-up; at least three learning rates, extended by factors of 3 "
                "while the best is at an end; chosen by held-out loss on a network for tuning"
            ),
        }
        if missing:
            settings["not measured yet"] = ", ".join(missing)
        result = Result("frozen-tasks", "Tasks that were fixed before learning", settings)
        result.tables["Held-out loss, mean ± standard error, and geometric mean of ratios"] = (
            losses_table(comparison, judged)
        )
        result.tables["Share of tasks within x of the fewest steps to AdamW's held-out loss"] = (
            profile_table(comparison, [each.task for each in judged])
        )
        older = older_table(comparison, judged)
        if older.rows:
            result.tables[f"Ratio of losses to those of {OLDER}"] = older
        result.claims = claims_of(judged, missing)
        conditions = list(other_conditions(comparison))
        if conditions:
            result.tables["Other conditions, mean held-out loss"] = Table(
                ("task", "condition", ENTRY, "compared with", "loss of that", "ratio"),
                [row for row, _ in conditions],
            )
            expected = 2 * len(OF_ANY_LENGTH) + len(CONDITIONS)
            result.claims.append(conditions_claim(conditions, expected))
    if scale == "quick":
        result.claims = []
    return result


def finished(comparison: Comparison, tasks: Sequence[GeneralTask]) -> Iterator[Judged]:
    """Yield the losses on every task all of whose runs are in the ledger."""
    for task in tasks:
        rivals = [rival for rival in RIVALS if takes_part(task, rival)]
        if not all(comparison.is_complete(task, each) for each in (OURS, *rivals)):
            continue
        losses = {rival.name: comparison.losses(task, rival) for rival in rivals}
        yield Judged(task, comparison.losses(task, OURS), losses)


def losses_table(comparison: Comparison, judged: Sequence[Judged]) -> Table:
    """Return the losses of all contestants, and ratios with 95 % intervals."""
    header = ["task", "networks", ENTRY]
    for rival in RIVALS:
        header += [rival.name, "learning rate", "ratio of losses"]
    rows: list[tuple[str, ...]] = []
    for task, ours, rivals in judged:
        cells = [task.name, str(len(ours)), spread(ours)]
        for rival in RIVALS:
            if rival.name not in rivals:
                cells += ["–", "–", "–"]
                continue
            rate = written(comparison.setting(task, rival)).split()[0]
            theirs = rivals[rival.name]
            cells += [spread(theirs), rate, _interval(ratio(ours, theirs))]
        rows.append(tuple(cells))
    return Table(tuple(header), rows)


def older_table(comparison: Comparison, judged: Sequence[Judged]) -> Table:
    """Return the ratios of losses of two versions of the entry."""
    rows = []
    for task, ours, _ in judged:
        if comparison.is_complete(task, OLD):
            theirs = comparison.losses(task, OLD)
            rows.append((task.name, spread(ours), spread(theirs), _interval(ratio(ours, theirs))))
    return Table(("task", ENTRY, OLDER, "ratio of losses"), rows)


def profile_table(comparison: Comparison, tasks: Sequence[GeneralTask]) -> Table:
    """Return the share of tasks on which each contestant is within x of the fewest steps.

    The target is the mean held-out loss of tuned AdamW at the end of its runs. It is looked for
    after every tenth of a run, in the mean over networks.
    """
    contestants = (OURS, *RIVALS)
    needed: dict[str, list[float]] = {each.name: [] for each in contestants}
    for task in tasks:
        target = _mean(comparison.losses(task, RIVALS[0]))
        found = {
            each.name: tenths_to(target, comparison.curves(task, each))
            if takes_part(task, each)
            else math.inf
            for each in contestants
        }
        best = min(found.values())
        for name, tenths in found.items():
            needed[name].append(tenths / best)
    rows = [
        (name, *(f"{_share(ratios, x):.0%}" for x in PROFILE), "–" if not ratios else "")
        for name, ratios in needed.items()
    ]
    return Table(("optimiser", *(f"x = {x:g}" for x in PROFILE)), [row[:-1] for row in rows])


def tenths_to(target: float, curves: Sequence[Sequence[float]]) -> float:
    """Return the tenths of a run after which the mean of all curves is at most the target.

    >>> tenths_to(1.0, [[3.0, 1.5, 0.5], [2.0, 1.0, 0.5]])
    3
    """
    for tenth, losses in enumerate(zip(*curves, strict=True), 1):
        if _mean(losses) <= target * (1 + 1e-12):
            return tenth
    return math.inf


def claims_of(judged: Sequence[Judged], missing: Sequence[str]) -> list[Claim]:
    """Return the claims about all tasks, undecided if they depend on missing ones."""
    behind: list[str] = []
    far: list[str] = []
    for each in judged:
        estimate = ratio(each.ours, each.rivals[ADAMW])
        if estimate.low > math.log(MARGIN):
            behind.append(f"{each.task.name} ×{math.exp(estimate.mean):.3g}")
        factor = _mean(each.ours) / each.best
        if factor > FACTORS[each.task.decades]:
            far.append(f"{each.task.name} ×{factor:.3g}")
    claims = [
        _none_of(
            f"on no task does the 95 % interval lie wholly above {MARGIN:g} times tuned AdamW's "
            f"loss",
            behind,
            missing,
        ),
        _none_of(
            "nowhere more than 1.2 times the best rival's loss, or 3 times where losses span "
            "decades",
            far,
            missing,
        ),
    ]
    for name, share in AHEAD.items():
        both = [each for each in judged if name in each.rivals]
        ahead = sum(ratio(each.ours, each.rivals[name]).mean <= 0 for each in both)
        open_tasks = sum(name == ADAMW or _has_muon(task) for task in missing)
        wanted = math.ceil(share * (len(both) + open_tasks))
        holds = True if ahead >= wanted else None
        if ahead + open_tasks < wanted:
            holds = False
        claims.append(
            Claim(
                f"ahead of tuned {name} on at least {wanted} of {len(both) + open_tasks} tasks",
                holds,
                f"on {ahead} of {len(both)}",
            )
        )
    return claims


def _has_muon(name: str) -> bool:
    (muon,) = (rival for rival in RIVALS if rival.name == MUON)
    return any(takes_part(task, muon) for task in FROZEN if task.name == name)


def _none_of(statement: str, found: Sequence[str], missing: Sequence[str]) -> Claim:
    """Return the claim that no task is an exception."""
    holds = False if found else None if missing else True
    return Claim(statement, holds, ", ".join(found) or "on none so far" * bool(missing) or "none")


def other_conditions(comparison: Comparison) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield a row of the table and the ratio of losses for every condition that was measured."""
    by_name = {task.name: task for task in comparison.tasks}
    for name in OF_ANY_LENGTH:
        task = by_name.get(name)
        if task is None or not comparison.is_complete(task, UNKNOWN_LENGTH):
            continue
        half = task.steps // 2
        unknown = comparison.curves(task, UNKNOWN_LENGTH)
        for tenth, steps in ((10, task.steps), (5, half)):
            if not comparison.is_complete(task, OURS, steps):
                continue
            ours = [curve[tenth - 1] for curve in unknown]
            known = comparison.losses(task, OURS, steps)
            what = f"without steps, stopped after {steps}"
            yield _condition(name, what, ours, f"steps={steps}", known)
    for task in CONDITIONS:
        name = task.name.split(" with ")[0]
        if name not in by_name or not comparison.is_complete(task, OURS):
            continue
        judged_on = by_name[name] if "accumulation" in task.name else task
        for judged in finished(comparison, [judged_on]):
            rival, theirs = min(judged.rivals.items(), key=lambda each: _mean(each[1]))
            what = task.name.removeprefix(f"{name} ")
            yield _condition(name, what, comparison.losses(task, OURS), rival, theirs)


def _condition(
    name: str, what: str, ours: Sequence[float], other: str, theirs: Sequence[float]
) -> tuple[tuple[str, ...], float]:
    factor = _mean(ours) / _mean(theirs)
    return (name, what, spread(ours), other, spread(theirs), f"{factor:.3g}"), factor


def conditions_claim(conditions: Sequence[tuple[tuple[str, ...], float]], expected: int) -> Claim:
    """Return the claim that the entry is within 5 % under other conditions.

    Args:
        conditions: Rows of the table and ratios of losses.
        expected: Number of rows of a complete table.
    """
    worse = [f"{row[0]} {row[1]} ×{factor:.3g}" for row, factor in conditions if factor > TOLERANCE]
    largest = max(factor for _, factor in conditions)
    holds = False if worse else None if len(conditions) < expected else True
    return Claim(
        "within 5 % of the run with the right number of steps if it is not given, and of the best "
        "rival with batches of 4 and with accumulated gradients",
        holds,
        ", ".join(worse) or f"at most ×{largest:.3g} under {len(conditions)} of {expected}",
    )


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Return the mean logarithm of ratios of losses on the same networks, with its interval."""
    return paired(torch.tensor([math.log(a / b) for a, b in zip(ours, theirs, strict=True)]))


def _interval(logs: Estimate) -> str:
    mean, low, high = map(math.exp, (logs.mean, max(logs.low, -700), min(logs.high, 700)))
    return f"{mean:.3g} [{low:.3g}, {high:.3g}]"


def spread(losses: Sequence[float]) -> str:
    """Return a mean with its standard error."""
    numbers = torch.tensor(losses, dtype=torch.float64)
    if len(numbers) < 2:
        return f"{losses[0]:.4g}"
    return f"{float(numbers.mean()):.4g} ± {float(numbers.std()) / len(numbers) ** 0.5:.2g}"


def _share(ratios: Sequence[float], x: float) -> float:
    return sum(each <= x * (1 + 1e-12) for each in ratios) / max(1, len(ratios))


def _mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)
