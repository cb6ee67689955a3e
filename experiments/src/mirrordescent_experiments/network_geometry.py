"""One geometry for all networks without tuning, against tuned optimisers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mirrordescent import zoo
from mirrordescent._internal import cache
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.training_tasks import LEARNING, PROJECT, TEST, End, Task
from mirrordescent_experiments.contestants import (
    ADAMW,
    CONTROL,
    FALLING,
    HAND,
    HAND_SETTINGS,
    MULTIPLES,
    MUON,
    ONCE,
    Setting,
    TunableOptimiser,
    adamw,
    adamw_grid,
    by_hand,
    control,
    learned,
    rivals,
    with_power,
)
from mirrordescent_experiments.intervals import Estimate, paired, student
from mirrordescent_experiments.ledger import (
    TEST_SEED,
    TUNING_SEED,
    Ledger,
    best_of,
    number,
    written,
)
from mirrordescent_experiments.result import Claim, Result, Table
from mirrordescent_experiments.scales import Say, Scale

POWERS = (0.0, 0.25, 0.5)
# of what is kept: 2 since tasks draw minibatches in epochs, 3 since they look at no image twice
VERSION = 3


@dataclass(frozen=True)
class Size:
    """How large the experiment is.

    ``seeds`` are networks of every task for the contestants that claims are about, and for the
    others one; ``timed`` those of the comparison at equal seconds, ``networks`` those of the two
    architectures of the paper.
    """

    seeds: int
    timed: int
    networks: int


SIZES: dict[Scale, Size] = {
    "quick": Size(1, 1, 1),
    "standard": Size(3, 2, 3),
    "paper": Size(10, 10, 20),
}


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Tune all optimisers but the entry on every task, and train other networks."""
    size = SIZES[scale]
    tasks = TEST
    project = PROJECT
    learning = LEARNING
    if scale == "quick":
        tasks, project, learning = (
            tuple(small(task, 0.02) for task in some)
            for some in (tasks[2:4], project, learning[:2])
        )
    entry: Any = zoo.load(ENTRY)
    path = None if scale == "quick" else cache.directory() / f"network-geometry-v{VERSION}.json"
    ledger = Ledger(path, directory, say)
    hand = _hand_setting(ledger, learning)
    contestants = [
        TunableOptimiser(ENTRY, learned(entry), ONCE, of_entry=True),
        TunableOptimiser(HAND, by_hand(), [hand]),
        *rivals(),
        *(
            TunableOptimiser(f"{ENTRY}, p = {p:g}", with_power(entry, p), ONCE, of_entry=True)
            for p in POWERS
        ),
        TunableOptimiser(CONTROL, control(entry), MULTIPLES, of_entry=True),
    ]
    result = Result(
        "network-geometry",
        "One geometry for networks of several kinds",
        {
            "scale": scale,
            **vars(size),
            "learning rate of the geometry set by hand, chosen on the learning tasks": hand[0],
            "tuning": (
                "on one network a task, over learning rates, schedules and β₂ of AdamW; shown "
                "are others"
            ),
        },
    )
    study = _Study(ledger, tasks, contestants, size)
    study.equal_steps(result)
    study.equal_seconds(result)
    _project(ledger, project, contestants, size, result)
    study.longer(result, 4)
    if scale == "quick":
        result.claims = []
    return result


def small(task: Task, share: float) -> Task:
    """Return a task on bundled data that takes a moment."""
    source = task.source if task.length else {"14": "digits-14"}.get(task.source[-2:], "digits-28")
    source = "digits" if task.source == "digits" else source
    return replace(
        task, source=source, steps=max(2, int(share * task.steps)), batch=16, evaluated=50
    )


def _hand_setting(ledger: Ledger, learning: Sequence[Task]) -> Setting:
    """Return the best setting of the geometry set by hand on the entry's learning tasks."""
    hand = TunableOptimiser(HAND, by_hand(), HAND_SETTINGS)

    def score(setting: Setting) -> float:
        return sum(
            math.log(number(ledger.run(task, hand, setting, TUNING_SEED).loss)) for task in learning
        )

    return best_of(hand.settings, score, 2.0)


@dataclass
class _Study:
    """The tasks, and who takes part."""

    ledger: Ledger
    tasks: Sequence[Task]
    contestants: Sequence[TunableOptimiser]
    size: Size

    def equal_steps(self, result: Result) -> None:
        """Compare losses after as many steps."""
        self.chosen = {
            (t.name, c.name): self.ledger.tuned(t, c) for t in self.tasks for c in self.contestants
        }
        self.ends = {
            (t.name, c.name): self._runs(t, c) for t in self.tasks for c in self.contestants
        }
        names = [c.name for c in self.contestants]
        rows = [
            (
                t.name,
                str(t.steps),
                *(_spread([e.loss for e in self.ends[t.name, n]]) for n in names),
            )
            for t in self.tasks
        ]
        result.tables["Training loss at equal steps, mean ± standard error"] = Table(
            ("task", "steps", *names), rows
        )
        rows = [
            (
                t.name,
                *(
                    f"{statistics.mean(e.test_loss for e in self.ends[t.name, n]):.3f}"
                    for n in names
                ),
            )
            for t in self.tasks
        ]
        result.tables["Test loss at equal steps"] = Table(("task", *names), rows)
        rows = [(t.name, *(written(self.chosen[t.name, n]) for n in names)) for t in self.tasks]
        result.tables["Settings chosen"] = Table(("task", *names), rows)
        against = {n: self._against(n) for n in names[1:]}
        rows = [(n, f"{found.mean:+.3f}", _interval(found)) for n, found in against.items()]
        result.tables[f"Mean log loss of {ENTRY} minus that of others, with a 95 % interval"] = (
            Table(("against", "difference", "interval"), rows)
        )
        self._claims(result)

    def _claims(self, result: Result) -> None:
        count = len(self.tasks)
        for rival, wanted in ((ADAMW, count), (MUON, 6 * count // 8)):
            won = [t.name for t in self.tasks if self._mean(t, ENTRY) <= self._mean(t, rival)]
            lost = [
                f"{t.name} {self._mean(t, ENTRY):.4g} against {self._mean(t, rival):.4g}"
                for t in self.tasks
                if t.name not in won
            ]
            result.claims.append(
                Claim(
                    (
                        f"untuned, {ENTRY} is not behind tuned {rival} at equal steps on at "
                        f"least {wanted} of {count} tasks"
                    ),
                    len(won) >= wanted,
                    f"{len(won)} of {count}{'; behind on ' + ', '.join(lost) if lost else ''}",
                )
            )
        best = max(
            (f"{ENTRY}, p = {p:g}" for p in POWERS), key=lambda name: self._against(name).mean
        )
        for rival, called in (
            (HAND, "the geometry set by hand at one learning rate"),
            (best, f"the best fixed power ({best})"),
            (CONTROL, "the identity in place of its maps, with its learning rate tuned"),
        ):
            result.claims.append(
                lower(f"{ENTRY} has a lower mean log loss than {called}", self._against(rival))
            )

    def _against(self, rival: str) -> Estimate:
        ours, theirs = (
            [self._losses(task, name) for task in self.tasks] for name in (ENTRY, rival)
        )
        return log_ratio(ours, theirs)

    def longer(self, result: Result, times: int) -> None:
        """Compare after several times as many steps as the entry was learned for."""
        rows = []
        won = 0
        for task in self.tasks:
            steps = times * task.steps
            names = (ENTRY, ADAMW, MUON)
            found = [
                [e.loss for e in self._again(task, name, steps, self.size.seeds)] for name in names
            ]
            ours, theirs = (statistics.mean(map(number, losses)) for losses in found[:2])
            won += ours <= theirs
            rows.append((task.name, str(steps), *map(_spread, found)))
        result.tables[f"Training loss after {times} times as many steps, mean ± standard error"] = (
            Table(("task", "steps", ENTRY, ADAMW, MUON), rows)
        )
        result.claims.append(
            Claim(
                f"{ENTRY} is ahead of tuned AdamW in runs {times} times as long",
                won == len(rows),
                f"on {won} of {len(rows)} tasks",
            )
        )

    def equal_seconds(self, result: Result) -> None:
        """Train with AdamW for the time of the entry's run, with its schedule stretched."""
        rows = []
        won = 0
        for task in self.tasks:
            ours = self.ends[task.name, ENTRY][: self.size.timed]
            ratio = self.ledger.pace(task, self.by_name[ENTRY], self.by_name[ADAMW])
            steps = max(task.steps, round(ratio * task.steps))
            longer = self._again(task, ADAMW, steps, self.size.timed)
            found = [[e.loss for e in ends] for ends in (ours, longer)]
            won += statistics.mean(map(number, found[0])) <= statistics.mean(map(number, found[1]))
            rows.append((task.name, f"{ratio:.2f}", str(steps), *map(_spread, found)))
        header = (
            "task",
            "time of a training step, to AdamW's",
            "steps of AdamW in the same time",
            ENTRY,
            ADAMW,
        )
        result.tables["Training loss at equal seconds"] = Table(header, rows)
        wanted = 6 * len(rows) // 8
        result.claims.append(
            Claim(
                (
                    f"at equal seconds {ENTRY} is ahead of tuned AdamW on at least {wanted} of "
                    f"{len(rows)} tasks"
                ),
                won >= wanted,
                f"on {won}",
            )
        )

    @property
    def by_name(self) -> dict[str, TunableOptimiser]:
        return {contestant.name: contestant for contestant in self.contestants}

    def _again(self, task: Task, name: str, steps: int, count: int) -> list[End]:
        """Run for another number of steps, with the learning rate tuned again near the last one."""
        contestant = self.by_name[name]
        setting = self.ledger.tuned(task, contestant, steps, [self.chosen[task.name, name]])
        return [
            self.ledger.run(task, contestant, setting, TEST_SEED + i, steps) for i in range(count)
        ]

    def _runs(self, task: Task, contestant: TunableOptimiser) -> list[End]:
        setting = self.chosen[task.name, contestant.name]
        count = self.size.seeds if contestant.judged else 1
        return [self.ledger.run(task, contestant, setting, TEST_SEED + i) for i in range(count)]

    def _losses(self, task: Task, name: str) -> list[float]:
        return [number(end.loss) for end in self.ends[task.name, name]]

    def _mean(self, task: Task, name: str) -> float:
        return statistics.mean(self._losses(task, name))


def _project(
    ledger: Ledger,
    tasks: Sequence[Task],
    contestants: Sequence[TunableOptimiser],
    size: Size,
    result: Result,
) -> None:
    """Train the two networks of the paper as long as there."""
    wanted = {"MLP": (0.034, 0.976), "CNN": (0.085, 0.973)}
    adam = TunableOptimiser(ADAMW, adamw, adamw_grid((1e-2, 2e-2, 5e-2), FALLING))
    rows = []
    for task in tasks:
        for contestant in (*contestants[:2], adam):
            setting = ledger.tuned(task, contestant)
            ends = [
                ledger.run(task, contestant, setting, TEST_SEED + i) for i in range(size.networks)
            ]
            losses = [number(e.loss) for e in ends]
            shares = [e.accuracy for e in ends]
            rows.append(
                (task.name, contestant.name, _spread(losses), f"{statistics.mean(shares):.2%}")
            )
            if contestant.name == ENTRY:
                result.claims.append(reaches(task.name, losses, shares, *wanted[task.name]))
    result.tables["The networks of the paper"] = Table(
        ("network", "optimiser", "training loss", "test accuracy"), rows
    )


def reaches(
    name: str, losses: list[float], shares: list[float], loss: float, share: float
) -> Claim:
    """Judge whether a mean loss and a mean accuracy reach given numbers significantly."""
    margins = [paired(loss - torch.tensor(losses)), paired(torch.tensor(shares) - share)]
    return Claim.by(
        f"{name} of the paper: loss at most {loss:g} and accuracy at least {share:.1%}",
        min(margin.low for margin in margins),
        min(margin.high for margin in margins),
        f"{_spread(losses)}, {statistics.mean(shares):.2%}, {len(losses)} networks",
    )


def lower(statement: str, difference: Estimate) -> Claim:
    """Judge whether a difference is below 0, beyond its uncertainty."""
    found = f"difference {difference.mean:+.3f}, 95 % interval {_interval(difference)}"
    return Claim.by(statement, -difference.high, -difference.low, found)


def log_ratio(ours: list[list[float]], theirs: list[list[float]]) -> Estimate:
    """Return the mean over tasks of log(ours/theirs), and its 95 % interval over networks."""
    tasks = zip(ours, theirs, strict=True)
    logs = [
        [math.log(a / b) for a, b in zip(x, y, strict=False)] for x, y in tasks
    ]  # pairs of the same network
    mean = statistics.mean(map(statistics.mean, logs))
    if min(map(len, logs)) < 2:
        return Estimate(mean, -math.inf, math.inf)
    error = math.sqrt(sum(statistics.variance(each) / len(each) for each in logs)) / len(logs)
    half = student(sum(len(each) - 1 for each in logs), 0.95) * error
    return Estimate(mean, mean - half, mean + half)


def _interval(difference: Estimate) -> str:
    return (
        f"{difference.low:+.3f} … {difference.high:+.3f}"
        if math.isfinite(difference.low)
        else "one network"
    )


def _spread(losses: list[float]) -> str:
    if len(losses) < 2:
        return f"{losses[0]:.4f}"
    return f"{statistics.mean(losses):.4f} ± {statistics.stdev(losses) / len(losses) ** 0.5:.4f}"
