"""Runs of contestants on tasks, kept in a file, and what they are tuned to."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from mirrordescent import zoo
from mirrordescent._internal import cache
from mirrordescent._internal.files import whole
from mirrordescent.recipes.general_tasks import GeneralTask
from mirrordescent.recipes.spectral_maps import ENTRY
from mirrordescent.recipes.training_tasks import End, Task
from mirrordescent_experiments.contestants import (
    Setting,
    TunableOptimiser,
    muon_in_single_precision,
)
from mirrordescent_experiments.scales import Say

# of the networks that settings are chosen on, and of those shown
TUNING_SEED = 1000
TEST_SEED = 2000
DEAD = 1e3  # what counts as the loss of a network without one
Loss: TypeAlias = Callable[[Setting], float]


class MissingRun(Exception):
    """A run is not in the ledger, and none may be made."""


class Ledger:
    """Runs that have been made, kept in a file, so that a long experiment can be continued.

    Runs of contestants that depend on the entry are kept under its version, and the others outlive
    it.
    """

    def __init__(self, path: Path | None, directory: Path | None, say: Say) -> None:
        self.path = path
        self.directory = directory
        self.say = say
        self.stamp = _stamp()
        self.may_run = True
        self.ends: dict[str, list[float]] = (
            json.loads(path.read_text()) if path and path.exists() else {}
        )

    def run(
        self,
        task: Task | GeneralTask,
        contestant: TunableOptimiser,
        setting: Setting,
        seed: int,
        steps: int | None = None,
    ) -> End:
        """Return how a run ends, made now or before."""
        steps = steps or task.steps
        key = self._key(task, contestant, setting, seed, steps)
        if key not in self.ends:
            self._require_permission(key)
            with muon_in_single_precision():
                end = task.train(contestant.make(*setting), seed, self.directory, steps)
            self._tell(key, end)
            self._keep(key, list(end))
        return End(*self.ends[key])

    def follow(
        self,
        task: GeneralTask,
        contestant: TunableOptimiser,
        setting: Setting,
        seed: int,
        steps: int | None = None,
    ) -> list[float]:
        """Return the held-out loss after every tenth of a run, made now or before."""
        steps = steps or task.steps
        key = self._key(task, contestant, setting, seed, steps)
        curve = f"{key} | tenths"
        if curve not in self.ends:
            self._require_permission(curve)
            with muon_in_single_precision():
                end, held_out = task.follow(contestant.make(*setting), seed, self.directory, steps)
            self._tell(key, end)
            self.ends[key] = list(end)
            self._keep(curve, held_out)
        return self.ends[curve]

    def _require_permission(self, key: str) -> None:
        if not self.may_run:
            raise MissingRun(f"this run is not in the ledger: {key}")

    def _key(
        self,
        task: Task | GeneralTask,
        contestant: TunableOptimiser,
        setting: Setting,
        seed: int,
        steps: int,
    ) -> str:
        return f"{task.name} | {self._called(contestant)} | {written(setting)} | {seed} | {steps}"

    def _tell(self, key: str, end: End) -> None:
        self.say(f"{key}: loss {end.loss:.4g}, held out {end.test_loss:.4g}, {end.seconds:.1f} s")

    def pace(self, task: Task, ours: TunableOptimiser, theirs: TunableOptimiser) -> float:
        """Return the time of a training step of one optimiser over that of another."""
        key = f"{task.name} | {self._called(ours)} / {self._called(theirs)}"
        if key not in self.ends:
            first, second = (each.make(1e-6, "constant") for each in (ours, theirs))
            with muon_in_single_precision():
                ratio = task.pace(first, second, self.directory)
            self.say(f"{key}: {ratio:.2f}")
            self._keep(key, [ratio])
        return self.ends[key][0]

    def tuned(
        self,
        task: Task,
        contestant: TunableOptimiser,
        steps: int | None = None,
        settings: Sequence[Setting] | None = None,
    ) -> Setting:
        """Return the setting with the least training loss at the end, on a network kept for tuning.

        ``settings`` are those to begin with, if not the contestant's. One that has a single setting
        is not tuned.
        """
        if len(contestant.settings) == 1:
            return contestant.settings[0]
        return best_of(
            settings or contestant.settings,
            lambda setting: number(self.run(task, contestant, setting, TUNING_SEED, steps).loss),
        )

    def _called(self, contestant: TunableOptimiser) -> str:
        return f"{contestant.name} ({self.stamp})" if contestant.of_entry else contestant.name

    def _keep(self, key: str, numbers: list[float]) -> None:
        self.ends[key] = numbers
        if self.path:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with whole(self.path) as partial:
                partial.write_text(json.dumps(self.ends, indent=0))


def best_of(settings: Sequence[Setting], loss: Loss, factor: float = 3.0) -> Setting:
    """Return the setting of least loss; extend the grid if its learning rate is at an end.

    >>> best_of([(1.0, "linear"), (3.0, "linear")], lambda setting: abs(setting[0] - 27))
    (27.0, 'linear')
    """
    best = min(settings, key=loss)
    rates = [setting[0] for setting in settings]
    for times, end in ((factor, max(rates)), (1 / factor, min(rates))):
        while best[0] == end and loss(further := (times * best[0], *best[1:])) < loss(best):
            best = further
            end = further[0]
    return best


def in_turn(settings: Sequence[Setting], loss: Loss) -> Setting:
    """Tune one number after the other, for expensive runs: learning rate, shape, and others.

    The first learning rate is tried with what comes first of everything else.

    >>> losses = {"linear": 1.0, "cosine": 0.5}
    >>> settings = [(rate, shape) for rate in (1.0, 3.0) for shape in losses]
    >>> in_turn(settings, lambda setting: abs(setting[0] - 9) + losses[setting[1]])
    (9.0, 'cosine')
    """
    seen: dict[Setting, float] = {}

    def once(setting: Setting) -> float:
        return seen[setting] if setting in seen else seen.setdefault(setting, loss(setting))

    first = settings[0]
    best = best_of([setting for setting in settings if setting[1:] == first[1:]], once)
    for place in range(1, len(first)):
        others = dict.fromkeys(setting[place] for setting in settings)
        tried: list[Any] = [(*best[:place], each, *best[place + 1 :]) for each in others]
        best = min(tried, key=once)
    return best


def written(setting: Setting) -> str:
    """Write a setting down: learning rate, shape, and what there is beside them."""
    rate, shape, *others = setting
    return " ".join([f"{rate:g}", shape, *(f"{each:g}" for each in others)])


def number(loss: float) -> float:
    """Return a loss that can be compared and averaged, also of a network that failed."""
    return loss if math.isfinite(loss) else DEAD


def _stamp() -> str:
    """Tell one version of the entry from another."""
    use: Any = zoo.card(ENTRY).use
    return cache.key_of(ENTRY, numbers=json.dumps(use, sort_keys=True))[:12]
