"""The diagnosis of a learned map, by name or from a file, on problems of a kind it may have been learned for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from mirrordescent import zoo
from mirrordescent.experiments.extensions import DUAL_STORED, LEARNED
from mirrordescent.experiments.imaging import TASKS
from mirrordescent.experiments.svm import load_features, starts
from mirrordescent.methods import AMD, Method
from mirrordescent.mirrors import MirrorMap
from mirrordescent.problems import Problem
from mirrordescent.schedules import Schedule
from mirrordescent.theory import Diagnosis, diagnose

COUNT, SIDE, ITERATIONS = 8, 96, 200


class Subject(NamedTuple):
    """A batch of problems and where to start."""

    problem: Problem
    x0: Tensor


def _images(task: str) -> Callable[[int, int, Path | None], Subject]:
    def make(count: int, side: int, directory: Path | None) -> Subject:
        problem = TASKS[task].make(count, side, False, directory).double()
        return Subject(problem, problem.start())

    return make


def _machine(count: int, side: int, directory: Path | None) -> Subject:
    contest = starts(load_features("standard", directory)[0], count, ITERATIONS, seed=0)
    return Subject(contest.problem, contest.x0)


PROBLEMS: dict[str, Callable[[int, int, Path | None], Subject]] = {
    **{task: _images(task) for task in TASKS},
    "svm": _machine,
}


def diagnose_entry(
    name: str | Path,
    problem: str,
    directory: Path | None = None,
    *,
    count: int = COUNT,
    side: int = SIDE,
    iterations: int = ITERATIONS,
    exact_iterates: bool = False,
) -> Diagnosis:
    """Diagnose an entry of the zoo or a saved map on a batch of problems, in double precision.

    The map is run in all methods with the learned step sizes: LMD and Algorithm 1 (primal-stored), LSMD, LAMD and LASMD
    (dual-stored). A map whose way there is itself an inversion is run dual-stored only.

    Args:
        name: of the entry, or a file.
        problem: "inpaint", "denoise" or "svm".
        directory: of the data; without the data sets, bundled pictures and digits serve.
        count, side: how many problems, and how large images are.
        iterations: of every run.
        exact_iterates: whether to follow the exact iterates too, which takes a Newton solve in every step.
    """
    if problem not in PROBLEMS:
        raise ValueError(f"there is no problem {problem!r}; there are {', '.join(PROBLEMS)}")
    entry = copy.deepcopy(zoo.load(name)).double()
    subject = PROBLEMS[problem](count, side, directory)
    mirror = entry if isinstance(entry, MirrorMap) else getattr(entry, "mirror", None)
    if not isinstance(mirror, MirrorMap):
        raise TypeError(f"{name} has no mirror map: there is nothing to diagnose")
    label = Path(name).stem if str(name).endswith(".safetensors") else str(name)
    return diagnose(
        mirror if isinstance(entry, MirrorMap) else cast(Method[Any], entry),
        subject.problem,
        subject.x0,
        name=label,
        methods=None if isinstance(entry, MirrorMap) else _methods(mirror, cast(Schedule, entry.t)),
        iterations=iterations,
        generator=torch.Generator().manual_seed(0),
        exact_iterates=exact_iterates,
    )


def _methods(mirror: MirrorMap, t: Schedule) -> dict[str, Method[Any]]:
    kinds = DUAL_STORED if mirror.exact else tuple(LEARNED)
    methods = {kind: LEARNED[kind](mirror, cast(Any, t)) for kind in kinds}
    if not mirror.exact:
        methods["Algorithm 1"] = AMD(mirror, t, storage="primal")
    return methods
