"""Candidates are taught for as long as there is time, in three rounds; by the clock fewer get to
each.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import distributed

from mirrordescent._internal.files import Damaged, sealed, unsealed, whole
from mirrordescent.automatic.candidates import (
    DUAL,
    Candidate,
    candidates,
    forms_of,
    method_for,
    numbers,
)
from mirrordescent.automatic.classical import RATIOS
from mirrordescent.automatic.course import Course
from mirrordescent.automatic.race import Race
from mirrordescent.domains import DomainError
from mirrordescent.learn import (
    Descent,
    Draw,
    Evolution,
    NothingLearned,
    Objective,
    ProblemFamily,
    Settings,
    Validation,
    learn,
)
from mirrordescent.learn.distributed import agreed, alone, hand_round
from mirrordescent.methods import Method
from mirrordescent.mirrors import Euclidean, MirrorMap
from mirrordescent.mirrors.inverse_check import require_inverse

FEWEST = 5  # meta-steps that are worth beginning
FEW = 100  # numbers, up to which evolution goes on where gradients end
SHARES = (0.35, 0.35, 0.3)  # of the time, by rounds
# rates of learning, to begin with and later
FAST = 3e-2
SLOW = 1e-2
HURRIED = 100  # meta-steps, below which there is only time enough with rates three times as high


class Ledger:
    """Choices that depend on a clock, kept in a file: so a run that is continued makes the same
    ones.
    """

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self.kept = dict[str, Any]()
        if resume and path.exists():
            try:
                self.kept = unsealed(path.read_text(encoding="utf-8", errors="replace"))
            except Damaged as error:
                raise Damaged(f"{path}: {error}. To search afresh, resume=False") from error

    def once(self, key: str, choose: Callable[[], Any]) -> Any:
        """Return what was chosen before, or choose now."""
        if key not in self.kept:
            self.kept[key] = choose()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with whole(self.path) as partial_file:
                partial_file.write_text(sealed(self.kept), encoding="utf-8")
        return self.kept[key]


@dataclass
class Teaching:
    """How candidates are taught, and on what; with more processes, each teaches its own.

    Args:
        family: problems to learn on, and to be judged by.
        race: those to be judged by, and the accuracy.
        runs: the folder for runs.
        ledger: what was chosen, by this process.
        course: told how far it is.
        step, horizon: a step length that suits the problems, and how many steps are unrolled.
        seed: of the problems that are drawn.
        resume: whether to go on with runs in the folder.
        process: the rank of this process, and how many there are.
        say: told what happens.
    """

    family: ProblemFamily
    race: Race
    runs: Path
    ledger: Ledger
    course: Course
    step: float
    horizon: int
    seed: int
    resume: bool
    process: tuple[int, int]
    say: Callable[[str], object]

    def taught(self, seconds: float) -> list[tuple[Candidate, Method[Any]]]:
        """Return those that got to the second round, taught for so many seconds in all."""
        first = dict[Candidate, Method[Any]]()
        end = perf_counter() + seconds
        for each in candidates(self.race.draw):
            if first and not self._time_for(each, end):
                continue
            try:
                first[each] = self._begun(each, each.geometry())
            except DomainError as error:
                self.say(f"{each.name} cannot begin: {error}")
        order = self._round("first", first, SHARES[0] * seconds, lambda _: FAST)
        second = {each: first[each] for each in _ahead(order, 4)} | self._twins(order, first, end)
        order = self._round(
            "second", second, SHARES[1] * seconds, lambda each: SLOW if each in first else FAST
        )
        third = {each: second[each] for each in _ahead(order, 2)}
        self._in_turn(
            third, lambda each, time: self._refined(each, third[each], time), SHARES[2] * seconds
        )
        return list(second.items())

    def _twins(
        self, order: list[Candidate], begun: dict[Candidate, Method[Any]], end: float
    ) -> dict[Candidate, Method[Any]]:
        """Return other forms of the fastest, and of the fastest with a map, which they get as far
        as it is learned.
        """
        found: dict[Candidate, Method[Any]] = {}
        for parent in dict.fromkeys([order[0], *[each for each in order if not each.plain][:1]]):
            for twin in forms_of(parent, self.race.draw):
                known = {each.name for each in (*begun, *found)}
                if twin.name not in known and self._time_for(twin, end):
                    mirror = begun[parent].mirror
                    found[twin] = self._begun(
                        twin, parent.geometry() if mirror is None else copy.deepcopy(mirror)
                    )
        return found

    def _round(
        self,
        stage: str,
        methods: dict[Candidate, Method[Any]],
        seconds: float,
        rate: Callable[[Candidate], float],
    ) -> list[Candidate]:
        """Teach all; return them in the order of the time they take then, as the first process sees
        it.

        Those that do not get to the accuracy are ordered by their scores, and come last.
        """
        scores = self._in_turn(
            methods,
            lambda each, time: self._taught(each, methods[each], stage, time, rate(each)),
            seconds,
        )

        def fastest() -> list[str]:
            taken = {
                each: (self.race.run(method).seconds, scores[each])
                for each, method in methods.items()
            }
            return [each.name for each in sorted(methods, key=taken.__getitem__)]

        order = agreed(
            lambda: self.ledger.once(f"the order after the {stage} round", fastest), *self.process
        )
        return sorted(methods, key=lambda each: order.index(each.name))

    def _time_for(self, candidate: Candidate, end: float) -> bool:
        """Tell whether there is time to begin with a candidate, as the first process sees it."""
        key = f"time for {candidate.name}"
        there = agreed(
            lambda: bool(self.ledger.once(key, lambda: perf_counter() < end)), *self.process
        )
        if not there and self.process[0] == 0:
            self.say(f"there is no time for {candidate.name}")
        return there

    def _in_turn(
        self,
        methods: dict[Candidate, Method[Any]],
        teach: Callable[[Candidate, float], float],
        seconds: float,
    ) -> dict[Candidate, float]:
        """Teach all, every process its own, in so many seconds; return their scores."""
        rank, world = self.process
        seconds /= len(methods)
        owners = {each: i % world for i, each in enumerate(methods)}
        scores = dict.fromkeys(methods, torch.inf)
        for each, owner in owners.items():
            if owner == rank:
                with alone(), self.course.stage(each.name, seconds):
                    scores[each] = teach(each, min(world, len(methods)) * seconds)
        for each, owner in owners.items():
            hand_round(methods[each], owner, world)
            scores[each] = _of(scores[each], owner, world)
        return scores

    def _refined(self, candidate: Candidate, method: Method[Any], seconds: float) -> float:
        few = numbers(method) <= FEW
        score = self._taught(candidate, method, "third", seconds * (0.5 if few else 1.0), SLOW)
        return (
            self._taught(candidate, method, "evolved", 0.5 * seconds, SLOW, Evolution(6, 0.03))
            if few
            else score
        )

    def _begun(self, candidate: Candidate, mirror: MirrorMap) -> Method[Any]:
        require_inverse(mirror, self.race.draw.x0)
        make = _maker(candidate, mirror, self.race.draw, self.horizon)
        return make(self._first_step(candidate, mirror, make))

    def _first_step(
        self, candidate: Candidate, mirror: MirrorMap, make: Callable[[float], Method[Any]]
    ) -> float:
        """Return the step length, around the typical one, or the ratio, with which an unlearned
        method does best.

        That one is of the plain geometry, and of smooth functions: at kinks a search for steps
        makes them too short.
        """
        steps: Sequence[float] = [self.step * 10.0 ** (i / 2) for i in range(-4, 5)]
        smooth = self.race.draw.problem.smoothness() != math.inf
        if candidate.form in DUAL:
            steps = RATIOS
        elif smooth and (mirror.linear or isinstance(mirror, Euclidean)):
            steps = [self.step * factor for factor in (0.25, 0.5, 1.0)]
        short = replace(self.race, most=self.horizon)

        def score(step: float) -> float:
            gaps, _ = short.curve(make(step))
            return float(gaps[-1].clamp(min=1e-9, max=1e9).log().mean())

        return min(steps, key=score)

    def _taught(
        self,
        candidate: Candidate,
        method: Method[Any],
        stage: str,
        seconds: float,
        rate: float,
        differentiation: Any = None,
    ) -> float:
        """Learn for some seconds, or go on; return the score on the rehearsal problems."""
        batch = self.race.count
        objective = Objective("log_gap", floor=self.race.accuracy / 30)
        objective = (
            objective
            if differentiation is None
            else replace(objective, differentiation=differentiation)
        )
        settings = Settings(
            meta_steps=3,
            batch=max(1, batch // 2),
            horizon=self.horizon,
            objective=objective,
            step_bounds=None,
            save_every=10,
            seed=self.seed,
            validation=Validation(every=10, batch=batch, horizons=(0.25, 0.5, 1.0), geometric=True),
        )
        key = f"{candidate.name}, {stage}"
        steps = self.ledger.once(key, lambda: self._affordable(method, settings, seconds))
        if stage == "first":
            steps = max(steps, FEWEST)
        elif steps < FEWEST:
            return torch.inf  # there is no time for it
        settings = replace(
            settings,
            meta_steps=steps,
            validation=replace(settings.validation, every=max(1, steps // 10)),
            optimiser=Descent(learning_rate=3 * rate if steps < HURRIED else rate),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NothingLearned)  # it is compared with others anyway
            found = learn(
                self.family,
                method,
                settings,
                folder=self.runs / key,
                resume=self.resume,
                progress=False,
                callback=lambda step: self.course.at(step / steps),
            )
        self.say(f"{key}: {steps} meta-steps, score {found.best_validation:.3g}")
        return found.best_validation

    def _affordable(self, method: Method[Any], settings: Settings, seconds: float) -> int:
        """Return how many meta-steps there is time for, by taking a few on a copy; a fifth is left
        for validation.
        """
        ends: list[float] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NothingLearned)
            learn(
                self.family,
                copy.deepcopy(method),
                settings,
                progress=False,
                callback=lambda _: ends.append(perf_counter()),
            )
        each = ends[1] - ends[0]  # not the last one, which is followed by a validation
        return min(3000, int(0.8 * seconds / max(each, 1e-6)))


def _ahead(order: list[Candidate], count: int) -> list[Candidate]:
    """Return the first of them, and the first with schedules alone, which tells what a map is
    worth.
    """
    plain = next((each for each in order if each.plain), order[0])
    return list(dict.fromkeys([*order[:count], plain]))


def _of(score: float, owner: int, world: int) -> float:
    """Return the score that the owner of a candidate has found."""
    if world == 1:
        return score
    found = torch.tensor([score], dtype=torch.float64)
    distributed.broadcast(found, owner)
    return float(found)


def _maker(
    candidate: Candidate, mirror: MirrorMap, draw: Draw, horizon: int
) -> Callable[[float], Method[Any]]:
    """Return what makes a candidate's method, given a step length."""
    return lambda step: method_for(
        mirror, draw.problem, step, horizon, candidate.form, candidate.features
    )
