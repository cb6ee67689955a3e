"""Recipe of the geometry for networks, by evolution over small training tasks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from mirrordescent import data
from mirrordescent._internal.files import whole
from mirrordescent.learn import Draw, ProblemFamily, Recipe
from mirrordescent.learn.recipe import Numbers, Stage
from mirrordescent.learn.tables import plain
from mirrordescent.methods import DampedPreconditioned, Preconditioned
from mirrordescent.mirrors import ByKind, Euclidean, MirrorMap, PNorm, SingularValues
from mirrordescent.mirrors.by_kind import KINDS
from mirrordescent.mirrors.odd import Saturating
from mirrordescent.mirrors.roles import LayerKind
from mirrordescent.recipes.covariance_adaptation import CovarianceAdaptation
from mirrordescent.recipes.general_tasks import GeneralTask
from mirrordescent.recipes.training_tasks import LEARNING, VALIDATION, Make, Task, optimiser_of
from mirrordescent.recipes.varied_tasks import VARIED_LEARNING, VARIED_VALIDATION
from mirrordescent.schedules import TYPICAL_LENGTH, OverRun

ENTRY = "network-spectral"
SPECTRAL: tuple[LayerKind, ...] = ("input", "hidden", "conv")
# Steps of Newton–Schulz, and the factor by which each multiplies a small singular value, about.
STEPS = 4
RATIO = 3.6
WORST = 1.0
"""Largest log ratio of losses that counts; how badly a network diverged does not matter."""

LEAD = 1 / 3
"""Weight of tasks on which a candidate is ahead of AdamW. To be safe on all tasks is worth more
than a larger lead on some.
"""

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
"""Learning rates of AdamW."""

WARMUP = 0.05
"""Share of the steps over which the learning rate of AdamW rises."""

RIVAL_SEEDS = (90, 91)
"""Seeds of the networks that AdamW is tuned on."""

# The learned numbers: mean and spread at the start of the search.
_SCALES: dict[LayerKind, float] = {
    "input": -4.03,
    "hidden": -4.57,
    "output": -3.68,
    "conv": -3.92,
    "embedding": -4.53,
    "vector": -4.84,
}
START: dict[str, tuple[float, float]] = {
    **{f"log scale of {kind}": (_SCALES[kind], 0.2) for kind in KINDS},
    "width": (0.46, 0.06),
    "width of output": (0.47, 0.08),
    "depth": (0.73, 0.1),
    "depth with norms": (0.09, 0.15),
    **{f"log weight {k}": (w, 0.2) for k, w in enumerate((-4.04, -3.62, -3.54, -3.11, 0.11))},
    "log power": (-1.63, 0.2),
    "log of 1 − momentum": (-1.52, 0.2),
    "log of 1 − second momentum": (-3.45, 0.3),
    "log warmup": (-3.0, 0.2),
    "fall": (1.1, 0.12),
    "length": (0.38, 0.08),
    "log decay": (-6.5, 0.5),
    "scale at the start": (0.5, 0.15),
    "log step of trained weights": (-4.6, 0.3),
    "memory": (0.1, 0.08),
    "damping": (0.75, 0.2),
}
OFF = {
    "scale at the start": 0.0,
    "log step of trained weights": math.inf,
    "memory": 0.0,
    "damping": 0.0,
}
"""Numbers with which the laws of weights at the start, of long runs and of noise do nothing."""


AnyTask: TypeAlias = Task | GeneralTask

# Leave out the tasks that repeat a cheaper task with more steps or larger batches.
_REPEATED = ("MLP for longer", "plain CNN with large batches", "transformer for longer")
ALL_LEARNING: tuple[AnyTask, ...] = (
    *(task for task in LEARNING if task.name not in _REPEATED),
    *VARIED_LEARNING,
)
ALL_VALIDATION: tuple[AnyTask, ...] = (*VALIDATION, *VARIED_VALIDATION)


def method_of(numbers: Tensor, identity: bool = False) -> DampedPreconditioned:
    """Return the method for a vector of numbers.

    Args:
        numbers: Numbers in the order of ``START``.
        identity: Whether to replace all maps by the identity.
    """
    named = dict(zip(START, numbers.tolist(), strict=True))
    raw = torch.tensor([named[f"log weight {k}"] for k in range(STEPS + 1)])
    matrix = SingularValues(Saturating(raw.softmax(0), RATIO), products=STEPS)
    entries = PNorm(1 + 1 / min(1.0, math.exp(named["log power"])))
    maps: dict[LayerKind, MirrorMap] = {
        kind: matrix if kind in SPECTRAL else entries for kind in KINDS
    }
    if identity:
        maps = {kind: Euclidean() for kind in KINDS}
    scales = {kind: math.exp(named[f"log scale of {kind}"]) for kind in KINDS}
    widths = {kind: named["width of output" if kind == "output" else "width"] for kind in KINDS}
    trained = math.exp(named["log step of trained weights"])
    mirror = ByKind(
        maps,
        scales,
        widths,
        named["depth"],
        named["depth with norms"],
        initial=max(0.0, named["scale at the start"]),
        trained=trained if math.isfinite(trained) else None,
    )
    warmup = min(0.5, math.exp(named["log warmup"]))
    fall = max(0.1, named["fall"])
    first, second = (
        1 - min(0.5, math.exp(named[f"log of 1 − {which}"]))
        for which in ("momentum", "second momentum")
    )
    t = OverRun(TYPICAL_LENGTH, warmup, fall, max(0.0, named["length"]))
    return DampedPreconditioned(
        mirror,
        t,
        first,
        second,
        decay=math.exp(named["log decay"]),
        damping=max(0.0, named["damping"]),
        memory=max(0.0, named["memory"]),
    )


Job: TypeAlias = "tuple[TaskFamily, tuple[AnyTask, ...], int, Make]"
"""Tasks of a family, the seed of their networks, and a function that makes their optimiser."""
Share: TypeAlias = Callable[[list[Job]], Iterable[Tensor]]


class TaskFamily(ProblemFamily):
    """Training tasks of several kinds.

    They are trained by optimisers, and cannot be drawn as a batch of problems.
    """

    def __init__(
        self, learning: tuple[AnyTask, ...], validation: tuple[AnyTask, ...], directory: Path | None
    ) -> None:
        self.learning = learning
        self.held_out = validation
        self.directory = directory

    def draw(self, seeds: Tensor) -> Draw:
        raise TypeError("tasks of several kinds cannot be drawn as one batch of problems")

    def log_losses(self, make: Make, tasks: tuple[AnyTask, ...], seed: int) -> Tensor:
        """Return the logarithm of the held-out loss of each task at the end.

        Log losses of tasks with ``decades`` have the weight 1/3.
        """
        logs: list[float] = []
        for task in tasks:
            end = task.train(make, seed, self.directory)
            loss = end.test_loss
            weight = 1 / 3 if isinstance(task, GeneralTask) and task.decades else 1.0
            logs.append(weight * math.log(loss) if 0 < loss < math.inf else math.inf)
        return torch.tensor(logs, dtype=torch.float64)


@dataclass(frozen=True)
class Evolved(Stage):
    """A stage of evolution of the numbers of a geometry.

    The loss of a candidate is the mean over tasks of d = log(loss / loss of AdamW), with d/3 for
    d < 0, plus a penalty for the distance from the start, since few tasks do not determine all
    numbers. AdamW has the best of five learning rates on every task. All candidates of a generation
    train the same networks on the same minibatches. At the end, five candidates compete on
    validation tasks: the start, with and without the laws of ``OFF``, the last mean, and the
    average means of the second and of the last third of the generations. This avoids fitting only
    the tasks that are learned on.

    Args:
        generations: Number of generations.
        population: Number of candidates in a generation.
        pull: Weight of the squared distance from the start, in units of the spread.
        minutes: Time after which no generation is started.
        networks: Number of networks of every validation task for the final choice.
        identity: Whether all maps are the identity, as in the control.
        workers: Number of processes, with one thread each.
    """

    name: ClassVar[str] = "evolved"  # type: ignore[misc]

    generations: int = 12
    population: int = 12
    pull: float = 0.004
    minutes: float = 45.0
    networks: int = 2
    identity: bool = False
    workers: int = 1

    def run(self, module: Any, family: ProblemFamily, **work: Any) -> tuple[nn.Module, Numbers]:
        """Evolve, or continue with the losses that were measured before."""
        assert isinstance(family, TaskFamily)
        with _working(self.workers) as share:
            return self._run(family, share, **work)

    def _run(self, family: TaskFamily, share: Share, **work: Any) -> tuple[nn.Module, Numbers]:
        path: Path = work["folder"] / "log.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        log: list[Numbers] = (
            json.loads(path.read_text()) if work.get("resume") and path.exists() else []
        )
        about = {
            "start": {name: list(each) for name, each in START.items()},
            "tasks": [t.name for t in family.learning],
        }
        if log and log[0].get("about") != about:
            raise ValueError(
                f"{path} is of another search, with other numbers or tasks: delete it to begin anew"
            )
        start, spread = (
            torch.tensor(column, dtype=torch.float64)
            for column in zip(*START.values(), strict=True)
        )
        search = CovarianceAdaptation(start, spread, self.population)
        generator = torch.Generator().manual_seed(self.seed)
        means = [start]
        began = perf_counter()
        spent = log[-1]["minutes"] if log else 0.0
        rival = self._rival(log[0]["rival"] if log else None, family, family.learning, share)
        for generation in range(self.generations):
            candidates = search.ask(generator)
            if generation >= len(log):
                if spent + (perf_counter() - began) / 60 > self.minutes:
                    break
                seed = 100 + generation
                jobs: list[Job] = [
                    (family, family.learning, seed, Candidate(each, self.identity))
                    for each in candidates
                ]
                moved = ((candidates - start) / spread).square().sum(1)
                losses = [
                    score(each - rival) + self.pull * float(far)
                    for each, far in zip(share(jobs), moved, strict=True)
                ]
                minutes = round(spent + (perf_counter() - began) / 60, 2)
                log.append({"losses": losses, "spread": search.sigma, "minutes": minutes})
                log[0]["about"] = about
                log[0]["rival"] = rival.tolist()
            search.tell(candidates, torch.tensor(log[generation]["losses"]))
            means.append(search.mean.clone())
            log[generation]["mean"] = dict(
                zip(START, [round(x, 4) for x in means[-1].tolist()], strict=True)
            )
            with whole(path) as partial:
                partial.write_text(json.dumps(log, indent=1, ensure_ascii=False), encoding="utf-8")
        third = max(1, len(means) // 3)
        middle, late = (
            torch.stack(some or means).mean(0) for some in (means[third:-third], means[-third:])
        )
        off = {**dict(zip(START, start.tolist(), strict=True)), **OFF}
        finalists = {
            "the start": start,
            "the start without the new laws": torch.tensor(list(off.values())).double(),
            "the average of the middle": middle,
            "the average of the last third": late,
            "the last mean": means[-1],
        }
        seeds = range(10_000, 10_000 + self.networks)
        rival = self._rival(None, family, family.held_out, share)
        finals: list[Job] = [
            (family, family.held_out, seed, Candidate(numbers, self.identity))
            for numbers in finalists.values()
            for seed in seeds
        ]
        validated = torch.tensor([score(each - rival) for each in share(finals)])
        means_of = validated.reshape(len(finalists), -1).mean(1).tolist()
        scores = dict(zip(finalists, means_of, strict=True))
        best = min(scores, key=lambda name: scores[name])
        record: Numbers = {
            "stage": self.name,
            "settings": plain(self),
            "generations": len(log),
            "minutes": log[-1]["minutes"],
            "mean score on validation tasks": {
                name: round(score, 4) for name, score in scores.items()
            },
            "chosen": best,
        }
        numbers = {
            name: round(x, 4) for name, x in zip(START, finalists[best].tolist(), strict=True)
        }
        return method_of(finalists[best], self.identity), {**record, "use": {"numbers": numbers}}

    def _rival(
        self,
        known: list[float] | None,
        family: TaskFamily,
        tasks: tuple[AnyTask, ...],
        share: Share,
    ) -> Tensor:
        """Return the log loss of tuned AdamW on every task, measured before or now."""
        if known is not None:
            return torch.tensor(known, dtype=torch.float64)
        jobs: list[Job] = [
            (family, tasks, seed, AdamW(rate)) for rate in RATES for seed in RIVAL_SEEDS
        ]
        losses = torch.stack(list(share(jobs))).reshape(len(RATES), len(RIVAL_SEEDS), -1)
        return losses.mean(1).amin(0)


class Candidate:
    """A function that makes the optimiser of a vector of numbers.

    Args:
        numbers: Numbers in the order of ``START``.
        identity: Whether to replace all maps by the identity.
    """

    def __init__(self, numbers: Tensor, identity: bool = False) -> None:
        self.numbers = numbers
        self.identity = identity

    def __call__(self, model: nn.Module, steps: int) -> tuple[Optimizer, None]:
        return optimiser_of(method_of(self.numbers, self.identity), model, steps), None


class AdamW:
    """A function that makes AdamW with a linear warm-up and a cosine decay.

    Args:
        rate: Largest learning rate.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, model: nn.Module, steps: int) -> tuple[Optimizer, LRScheduler]:
        optimiser = torch.optim.AdamW(model.parameters(), self.rate)
        schedule = OneCycleLR(
            optimiser, self.rate, steps + 1, pct_start=WARMUP, cycle_momentum=False
        )
        return optimiser, schedule


def score(ratios: Tensor) -> float:
    """Return the mean of log ratios of losses to AdamW's, where leads have the weight ``LEAD``.

    >>> score(torch.tensor([0.5, -1.5, math.inf]))
    0.333...
    """
    bounded = ratios.clamp(max=WORST)
    return float(torch.where(bounded < 0, LEAD * bounded, bounded).mean())


def _measured(job: Job) -> Tensor:
    """Return the log losses of one optimiser on some tasks."""
    family, tasks, seed, make = job
    return family.log_losses(make, tasks, seed)


@contextmanager
def _working(workers: int) -> Iterator[Share]:
    """Yield a function that measures many candidates, in this process or in several processes."""
    if workers == 1:
        yield lambda jobs: map(_measured, jobs)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        yield lambda jobs: pool.map(_measured, jobs)


def tasks(directory: Path | None) -> TaskFamily:
    """Return the tasks for learning and for validation."""
    return TaskFamily(ALL_LEARNING, ALL_VALIDATION, directory)


def first(generator: Generator, family: ProblemFamily) -> Preconditioned:
    """Return the method before learning."""
    return method_of(torch.tensor([start for start, _ in START.values()]))


SPECTRAL_RECIPES: dict[str, Recipe] = {
    ENTRY: Recipe(
        ENTRY,
        (
            "a geometry for training networks, by the kinds of their layers, to be "
            "used without tuning"
        ),
        family=tasks,
        method=first,
        stages=(Evolved(),),
        on=f"Small training tasks: {', '.join(task.name for task in ALL_LEARNING)}; "
        f"validated on: {', '.join(task.name for task in ALL_VALIDATION)}.",
        data=f"{data.describe('mnist')}; scikit-learn's digits; the source text of NumPy",
        evaluate=None,
    )
}
# The control is learned in the same way and shipped.
_CONTROL = replace(SPECTRAL_RECIPES[ENTRY].control(), stages=(Evolved(identity=True),))
SPECTRAL_RECIPES[_CONTROL.name] = _CONTROL
