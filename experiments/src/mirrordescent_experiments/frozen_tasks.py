"""The entry for networks, untuned, on tasks that were fixed before it was learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mirrordescent._internal import cache
from mirrordescent.recipes.general_tasks import GeneralTask
from mirrordescent_experiments.contestants import Setting, TunableOptimiser
from mirrordescent_experiments.frozen import CONDITIONS, EXPENSIVE, FROZEN, OF_ANY_LENGTH
from mirrordescent_experiments.frozen.contestants import (
    OLD,
    OURS,
    RIVALS,
    UNKNOWN_LENGTH,
    settings_on,
    takes_part,
)
from mirrordescent_experiments.ledger import TEST_SEED, TUNING_SEED, Ledger, best_of, number
from mirrordescent_experiments.result import Result
from mirrordescent_experiments.scales import Say, Scale

SEEDS: dict[Scale, int] = {"quick": 2, "standard": 5, "paper": 10}
SEEDS_OF_EXPENSIVE = 2


class Comparison:
    """Runs of the entry and of tuned rivals on tasks.

    Args:
        ledger: Runs made before.
        tasks: Tasks, the cheap ones first.
        seeds: Number of networks of a task.
    """

    def __init__(self, ledger: Ledger, tasks: Sequence[GeneralTask], seeds: int) -> None:
        self.ledger = ledger
        self.tasks = tasks
        self.seeds = seeds

    def seeds_of(self, task: GeneralTask) -> int:
        """Return the number of networks of a task."""
        return min(self.seeds, SEEDS_OF_EXPENSIVE) if task.name in EXPENSIVE else self.seeds

    def setting(self, task: GeneralTask, contestant: TunableOptimiser) -> Setting:
        """Return the setting with the least held-out loss on a network for tuning.

        A contestant with a single setting is not tuned.
        """
        if len(contestant.settings) == 1:
            return contestant.settings[0]
        return best_of(
            settings_on(task, contestant),
            lambda setting: number(
                self.ledger.run(task, contestant, setting, TUNING_SEED).test_loss
            ),
        )

    def curves(
        self, task: GeneralTask, contestant: TunableOptimiser, steps: int | None = None
    ) -> list[list[float]]:
        """Return the held-out losses after every tenth of a run, for every network."""
        setting = self.setting(task, contestant)
        return [
            [
                number(loss)
                for loss in self.ledger.follow(task, contestant, setting, TEST_SEED + seed, steps)
            ]
            for seed in range(self.seeds_of(task))
        ]

    def losses(
        self, task: GeneralTask, contestant: TunableOptimiser, steps: int | None = None
    ) -> list[float]:
        """Return the held-out losses at the end, for every network."""
        return [curve[-1] for curve in self.curves(task, contestant, steps)]

    def run_task(self, task: GeneralTask) -> None:
        """Tune the rivals on a task, and run everybody."""
        for contestant in (*RIVALS, OURS):
            if takes_part(task, contestant):
                self.losses(task, contestant)


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Tune the rivals, run everybody, and judge."""
    from mirrordescent_experiments.frozen.judgement import result_of

    comparison = comparison_at(scale, directory, say)
    measure(comparison)
    return result_of(comparison, scale)


def comparison_at(scale: Scale, directory: Path | None, say: Say) -> Comparison:
    """Return the comparison at a scale, with the runs that were made before."""
    tasks = sorted(FROZEN, key=lambda task: task.name in LAST)
    if scale == "quick":
        names = ("physics residual", "Poisson equation")
        tasks = [replace(task, steps=4) for task in FROZEN if task.name in names]
    path = None if scale == "quick" else ledger_path()
    return Comparison(Ledger(path, directory, say), tasks, SEEDS[scale])


LAST = ("tied GPT", "fine-tuning of MiniLM")
"""Tasks that are run after the others, since a run takes long."""


def measure(comparison: Comparison) -> None:
    """Make all runs, the cheap ones first."""
    names = [task.name for task in comparison.tasks]
    cheap = [task for task in comparison.tasks if task.name not in LAST]
    long = [task for task in comparison.tasks if task.name in LAST]
    conditions = [task for task in CONDITIONS if task.name.split(" with ")[0] in names]
    of_any_length = [task for task in comparison.tasks if task.name in OF_ANY_LENGTH]
    for task in cheap:
        comparison.run_task(task)
    for task in conditions:
        comparison.run_task(task)
    for task in cheap:
        if task in of_any_length:
            run_any_length(comparison, task)
    for task in long:
        comparison.run_task(task)
    for task in cheap:
        comparison.losses(task, OLD)
    for task in long:
        if task in of_any_length:
            run_any_length(comparison, task)
    for task in long:
        comparison.losses(task, OLD)


def run_any_length(comparison: Comparison, task: GeneralTask) -> None:
    """Run the entry for half as many steps, and without the number of steps."""
    comparison.losses(task, OURS, task.steps // 2)
    comparison.losses(task, UNKNOWN_LENGTH)


def ledger_path() -> Path:
    """Return the file of runs."""
    return cache.directory() / "frozen-tasks-v2.json"
