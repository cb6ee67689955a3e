"""Training of candidates in three rounds: the fastest of each round go on to the next."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import distributed

from mirrordescent._internal.files import Damaged, sealed, unsealed, whole
from mirrordescent.automatic.attempts import attempt, in_brief, tolerant
from mirrordescent.automatic.candidates import (
    DUAL,
    FOR_PROGRAMS,
    Candidate,
    candidates,
    method_for,
    parameter_count,
    variants_of,
)
from mirrordescent.automatic.classical import RATIOS
from mirrordescent.automatic.programs import PENALTIES
from mirrordescent.automatic.time_plan import TimePlan
from mirrordescent.domains import DomainError
from mirrordescent.learn import (
    Descent,
    Draw,
    Evolution,
    Objective,
    ProblemFamily,
    Settings,
    Validation,
    learn,
)
from mirrordescent.learn.distributed import broadcast_module, broadcast_result, single_process
from mirrordescent.learn.trainer import NothingLearned
from mirrordescent.methods import GradientMethod, Method
from mirrordescent.mirrors import Euclidean, MirrorMap
from mirrordescent.mirrors.inverse_check import require_inverse
from mirrordescent.racing import Race, best_setting

MIN_META_STEPS = 5  # shorter runs are not started
MAX_META_STEPS = 3000
VALIDATIONS = 10  # of a run, if there is time
EVOLVED_PARAMETERS = 100  # methods with at most so many parameters are also trained by evolution
SHARES = (0.35, 0.35, 0.3)  # of the time, for the three rounds
FIRST_STEPS = 0.1  # share of the time to construct candidates
FIRST_RATE = 3e-2  # learning rate of a candidate's first round
LATER_RATE = 1e-2
SHORT_RUN = 100  # meta-steps below which learning rates are three times as high
EARLIER = "the earlier solver"


class Ledger:
    """Choices that depend on time, stored in a file so that a resumed run makes the same ones.

    Args:
        path: File of the choices.
        resume: Whether to read the choices of an earlier run.
    """

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self.choices = dict[str, Any]()
        if resume and path.exists():
            try:
                self.choices = unsealed(path.read_text(encoding="utf-8", errors="replace"))
            except Damaged as error:
                raise Damaged(
                    f"{path}: {error}. To start a new search, set resume=False"
                ) from error

    def once(self, key: str, choose: Callable[[], Any]) -> Any:
        """Return the stored choice for a key, or choose and store it."""
        if key not in self.choices:
            self.choices[key] = choose()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with whole(self.path) as partial_file:
                partial_file.write_text(sealed(self.choices), encoding="utf-8")
        return self.choices[key]


class Unrolling(NamedTuple):
    """What is known about runs before anything is learned.

    Attributes:
        step: Step size that suits the problems.
        horizon: Number of iterations that are unrolled.
        pace: Seconds that f and its gradient take for the problems of the race.
    """

    step: float
    horizon: int
    pace: float = 0.0


@dataclass
class CandidateTraining:
    """Training of candidates. With several processes, each trains its share of them.

    Args:
        family: Problems to learn on, and problems to choose by.
        race: The problems to choose by, with the accuracy to reach.
        runs: Folder of the runs.
        ledger: Stored choices of this process.
        plan: Time plan, which is told the progress.
        unrolling: Step size and length of the runs.
        seed: Seed of the problems.
        resume: Whether to resume runs in the folder.
        process: Rank of this process, and number of processes.
        say: Function that is called with messages.
        earlier: Learned method of an earlier search, which goes on learning.
    """

    family: ProblemFamily
    race: Race
    runs: Path
    ledger: Ledger
    plan: TimePlan
    unrolling: Unrolling
    seed: int
    resume: bool
    process: tuple[int, int]
    say: Callable[[str], object]
    earlier: Method[Any] | None = None

    def train(self, seconds: float) -> list[tuple[Candidate, Method[Any]]]:
        """Train candidates within a time budget in seconds; return the trained ones.

        All candidates take part in the first round. The four fastest and their variants get to the
        second, the two fastest to the third. The fastest candidate that learns only schedules is
        always among them. A solver of an earlier search always gets to the second round.
        """
        first = dict[Candidate, Method[Any]]()
        self._trained = set[str]()
        self._trained_plain = False
        began = perf_counter()
        end = began + seconds
        first_end = began + SHARES[0] * seconds
        second_end = first_end + SHARES[1] * seconds
        if self.earlier is not None:
            gradients = isinstance(self.earlier, GradientMethod)
            own = Candidate(EARLIER, Euclidean, "steps" if gradients else "primal-dual")
            first[own] = copy.deepcopy(self.earlier).requires_grad_(True)
        construct_until = began + FIRST_STEPS * seconds
        for candidate in candidates(self.race.draw):
            enough = len(first) >= self.process[1]  # one for every process
            if enough and not self._has_time_for(candidate, construct_until):
                continue
            try:
                first[candidate] = self._new_method(candidate, candidate.geometry())
            except DomainError as error:
                self.say(f"{candidate.name} cannot start: {error}")

        def first_rate(candidate: Candidate) -> float:
            return LATER_RATE if candidate.name == EARLIER else FIRST_RATE

        order = self._train_round("first", first, first_end, first_rate)
        second = {each: first[each] for each in _leaders(order, 4)}
        second |= {each: method for each, method in first.items() if each.name == EARLIER}
        second |= self._variants(order, first, perf_counter() + FIRST_STEPS * seconds)

        def rate(candidate: Candidate) -> float:
            return LATER_RATE if candidate in first else FIRST_RATE

        order = self._train_round("second", second, second_end, rate)
        third = {each: second[each] for each in _leaders(order, 2)}
        self._train_all(
            third,
            lambda each, time: self._train_longest(each, third[each], time),
            end,
        )
        trained = {each: second[each] for each in second if each.name in self._trained}
        return list((trained or third).items())

    def _variants(
        self, order: list[Candidate], methods: dict[Candidate, Method[Any]], end: float
    ) -> dict[Candidate, Method[Any]]:
        """Return variants of the fastest candidate and of the fastest one with a map.

        They start with the map that the candidate has learned so far.
        """
        order = [each for each in order if each.name != EARLIER]
        with_map = [each for each in order if not each.plain]
        added: dict[Candidate, Method[Any]] = {}
        for parent in dict.fromkeys([*order[:1], *with_map[:1]]):
            for variant in variants_of(parent, self.race.draw):
                names = {each.name for each in (*methods, *added)}
                if variant.name in names or not self._has_time_for(variant, end):
                    continue
                mirror = methods[parent].mirror
                start = parent.geometry() if mirror is None else copy.deepcopy(mirror)
                added[variant] = self._new_method(variant, start)
        return added

    def _train_round(
        self,
        stage: str,
        methods: dict[Candidate, Method[Any]],
        end: float,
        rate: Callable[[Candidate], float],
    ) -> list[Candidate]:
        """Train all candidates until ``end``; return them in the order of their times in the race.

        Candidates that do not reach the accuracy come last, in the order of their scores. The first
        process measures the times for all.
        """
        scores = self._train_all(
            methods,
            lambda each, time: self._train(each, methods[each], stage, time, rate(each)),
            end,
        )
        self._trained |= {each.name for each, score in scores.items() if score < torch.inf}

        def fastest_first() -> list[str]:
            ranks = {}
            for each, method in methods.items():
                time = math.inf
                if each.name in self._trained:
                    time = attempt(self.race, method, self.say).seconds
                ranks[each] = (time, scores[each])
            return [each.name for each in sorted(methods, key=ranks.__getitem__)]

        key = f"the order after the {stage} round"
        order = broadcast_result(lambda: self.ledger.once(key, fastest_first), *self.process)
        return sorted(methods, key=lambda each: order.index(each.name))

    def _has_time_for(self, candidate: Candidate, end: float) -> bool:
        """Return whether there is time to start a candidate, by the clock of the first process."""
        key = f"time for {candidate.name}"
        in_time = broadcast_result(
            lambda: bool(self.ledger.once(key, lambda: perf_counter() < end)), *self.process
        )
        if not in_time and self.process[0] == 0:
            self.say(f"there is no time for {candidate.name}")
        return in_time

    def _train_all(
        self,
        methods: dict[Candidate, Method[Any]],
        train: Callable[[Candidate, float], float],
        end: float,
    ) -> dict[Candidate, float]:
        """Train all candidates until ``end``, each in one process; return their scores.

        The time that is left is divided equally among the candidates of a process that are left.
        """
        rank, world = self.process
        owners = {each: i % world for i, each in enumerate(methods)}
        own = [each for each, owner in owners.items() if owner == rank]
        scores = dict.fromkeys(methods, torch.inf)
        for i, each in enumerate(own):
            seconds = max(0.0, end - perf_counter()) / (len(own) - i)
            with single_process(), self.plan.stage(each.name, seconds):
                scores[each] = self._tolerate(each, train, seconds)
        for each, owner in owners.items():
            broadcast_module(methods[each], owner, world)
            scores[each] = _broadcast(scores[each], owner, world)
        return scores

    def _tolerate(
        self, candidate: Candidate, train: Callable[[Candidate, float], float], seconds: float
    ) -> float:
        """Train a candidate; an error in code of the user gives it the worst score."""
        try:
            return train(candidate, seconds)
        except (Damaged, OSError):
            raise  # files of the search
        except Exception as error:
            self.say(f"{candidate.name} is disqualified: {in_brief(error)}")
            return torch.inf

    def _train_longest(self, candidate: Candidate, method: Method[Any], seconds: float) -> float:
        """Train by gradients, then by evolution if there are few parameters."""
        if parameter_count(method) > EVOLVED_PARAMETERS:
            return self._train(candidate, method, "third", seconds, LATER_RATE)
        self._train(candidate, method, "third", 0.5 * seconds, LATER_RATE)
        evolution = Evolution(6, 0.03)
        return self._train(candidate, method, "evolved", 0.5 * seconds, LATER_RATE, evolution)

    def _new_method(self, candidate: Candidate, mirror: MirrorMap) -> Method[Any]:
        require_inverse(mirror, self.race.draw.x0)
        draw = self.race.draw
        if candidate.form in FOR_PROGRAMS:  # starts are fitted to problems to learn on
            draw = self.family.draw(torch.arange(4 * self.race.count))
        make = _maker(candidate, mirror, draw, self.unrolling.horizon)
        return make(self._first_step(candidate, mirror, make))

    def _first_step(
        self, candidate: Candidate, mirror: MirrorMap, make: Callable[[float], Method[Any]]
    ) -> float:
        """Return the best first step size, or ratio of step sizes, of an untrained method.

        Step sizes around the typical one are tried. It was measured in the Euclidean geometry and
        is too short for non-smooth functions, so in those cases the range is wider.
        """
        steps: Sequence[float] = [self.unrolling.step * 10.0 ** (i / 2) for i in range(-4, 5)]
        smooth = self.race.problem.smoothness() != math.inf
        if candidate.form in FOR_PROGRAMS:
            steps = PENALTIES
        elif candidate.form in DUAL:
            steps = RATIOS
        elif smooth and (mirror.linear or isinstance(mirror, Euclidean)):
            steps = [self.unrolling.step * factor for factor in (0.25, 0.5, 1.0)]
        short = replace(self.race, iterations=self.unrolling.horizon)

        def score(method: Method[Any]) -> float:
            gaps = short.curve(method).gaps[-1]
            return float(gaps.clamp(min=1e-9, max=1e9).log().mean())

        cost = tolerant(score, self.say)
        return best_setting(steps, lambda step: cost(make(step)))

    def _train(
        self,
        candidate: Candidate,
        method: Method[Any],
        stage: str,
        seconds: float,
        rate: float,
        differentiation: Evolution | None = None,
    ) -> float:
        """Train or resume within a time budget; return the score on the validation problems."""
        settings = self._settings(differentiation)
        key = f"{candidate.name}, {stage}"
        steps, every = self.ledger.once(
            f"meta-steps of {key}", lambda: self._affordable_steps(method, settings, seconds)
        )
        if stage == "first" and candidate.plain and not self._trained_plain:
            steps = max(steps, MIN_META_STEPS)  # however little time there is
            self._trained_plain = True
        elif steps < MIN_META_STEPS:
            self.say(f"there is no time for {key}")
            return torch.inf
        settings = replace(
            settings,
            meta_steps=steps,
            validation=replace(settings.validation, every=every),
            optimiser=Descent(learning_rate=3 * rate if steps < SHORT_RUN else rate),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NothingLearned)  # the race will show it
            learned = learn(
                self.family,
                method,
                settings,
                folder=self.runs / key,
                resume=self.resume,
                progress=False,
                callback=lambda step: self.plan.update(step / steps),
            )
        self.say(f"{key}: {steps} meta-steps, score {learned.best_validation:.3g}")
        return learned.best_validation

    def _settings(self, differentiation: Evolution | None) -> Settings:
        batch = self.race.count
        objective = Objective("log_gap", floor=self.race.accuracy / 30)
        if differentiation is not None:
            objective = replace(objective, differentiation=differentiation)
        return Settings(
            meta_steps=3,
            batch=max(1, batch // 2),
            horizon=self.unrolling.horizon,
            objective=objective,
            step_bounds=None,
            save_every=10,
            seed=self.seed,
            validation=Validation(every=10, batch=batch, horizons=(0.25, 0.5, 1.0), geometric=True),
        )

    def _affordable_steps(
        self, method: Method[Any], settings: Settings, seconds: float
    ) -> tuple[int, int]:
        """Return the number of meta-steps for which there is time, and those between validations.

        Both are measured on a copy. At most a quarter of the time that is left is for validations,
        except for the first and the last one.
        """
        trial = 3 * 4 * self.unrolling.horizon * self.unrolling.pace  # of this measurement
        if seconds <= trial:
            return 0, 1
        began = perf_counter()
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
        step = max(ends[1] - ends[0], 1e-6)
        validation = max(ends[2] - ends[1] - step, 0.0)  # the last step is followed by one
        left = seconds - (perf_counter() - began)
        affordable = int(0.25 * left / max(validation, 1e-6)) - 1
        validations = max(1, min(VALIDATIONS, affordable))
        steps = int((left - (validations + 1) * validation) / step)
        steps = max(0, min(MAX_META_STEPS, steps))
        return steps, max(1, steps // validations)


def _leaders(order: list[Candidate], count: int) -> list[Candidate]:
    """Return the first candidates, and the first one that learns only schedules.

    The latter is needed to measure how much a map helps.
    """
    plain = next((each for each in order if each.plain), order[0])
    return list(dict.fromkeys([*order[:count], plain]))


def _broadcast(score: float, owner: int, world: int) -> float:
    """Return the score of a candidate, as measured by the process that trained it."""
    if world == 1:
        return score
    shared = torch.tensor([score], dtype=torch.float64)
    distributed.broadcast(shared, owner)
    return float(shared)


def _maker(
    candidate: Candidate, mirror: MirrorMap, draw: Draw, horizon: int
) -> Callable[[float], Method[Any]]:
    """Return a function from a step size to the candidate's method."""
    return lambda step: method_for(
        mirror, draw.problem, step, horizon, candidate.form, candidate.features
    )
