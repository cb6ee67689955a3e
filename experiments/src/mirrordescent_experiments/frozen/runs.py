"""Runs of contestants on the frozen tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mirrordescent.recipes.general_tasks import GeneralTask
from mirrordescent_experiments.contestants import Setting, TunableOptimiser
from mirrordescent_experiments.frozen import EXPENSIVE
from mirrordescent_experiments.frozen.contestants import OURS, RIVALS, settings_on, takes_part
from mirrordescent_experiments.ledger import (
    TEST_SEED,
    TUNING_SEED,
    Ledger,
    MissingRun,
    best_of,
    number,
)

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

    def is_complete(
        self, task: GeneralTask, contestant: TunableOptimiser, steps: int | None = None
    ) -> bool:
        """Return whether all runs of a contestant on a task are in the ledger."""
        try:
            with self.without_running():
                self.curves(task, contestant, steps)
        except MissingRun:
            return False
        return True

    @contextmanager
    def without_running(self) -> Iterator[None]:
        """Raise :class:`MissingRun` inside this context if a run is not in the ledger."""
        before = self.ledger.may_run
        self.ledger.may_run = False
        try:
            yield
        finally:
            self.ledger.may_run = before

    def run_task(self, task: GeneralTask) -> None:
        """Tune the rivals on a task, and run everybody."""
        for contestant in (*RIVALS, OURS):
            if takes_part(task, contestant):
                self.losses(task, contestant)
