"""One call from a class of problems to the solver to use for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from mirrordescent import zoo
from mirrordescent._internal.progress import ProgressBar
from mirrordescent.automatic.attempts import attempt, in_brief, limited, tolerant
from mirrordescent.automatic.candidates import DUAL, PLAIN, Candidate
from mirrordescent.automatic.classical import classical_solvers, typical_step
from mirrordescent.automatic.family_check import check_family
from mirrordescent.automatic.outcome import CLEARLY, AutoResult, Evidence, verdict, with_rivals
from mirrordescent.automatic.outside import OutsideResult, compare_with_rivals, pace_of
from mirrordescent.automatic.page import page
from mirrordescent.automatic.suitability import Suitability, assess
from mirrordescent.automatic.time_plan import WHOLE, TimePlan
from mirrordescent.automatic.training import CandidateTraining, Ledger, Unrolling
from mirrordescent.domains import DomainError
from mirrordescent.learn import Draw, Pooled, ProblemFamily
from mirrordescent.learn.bounds import Bounds, bounds_within
from mirrordescent.learn.distributed import broadcast_result, join
from mirrordescent.learn.families import merge_conditions
from mirrordescent.methods import Method, NeverWorse, Safeguarded
from mirrordescent.methods.switch import Switch
from mirrordescent.methods.within_range import WithinRange, feature_ranges
from mirrordescent.problems.fingerprint import fingerprint
from mirrordescent.racing import (
    UNSOLVED,
    Contestant,
    Race,
    RaceResult,
    Speedup,
    Timing,
    TunableSolver,
    clock_for,
    iterations_needed,
    speedup,
    time_in_turn,
)
from mirrordescent.references.estimate import LEAST_ITERATIONS, MARGIN
from mirrordescent.theory.performance import WorstCase, worst_case
from mirrordescent.trees import leaves

T = TypeVar("T")

# Shares of the time. The rest is for learning.
DRAWING = 0.05
TUNING = 0.1
CHECK = 0.03
VERDICT = 0.2
PATIENCE = 0.02  # of the time, for one run
ITERATIONS = 2000  # budget of every method
SAFEGUARD_COST = 1.15  # a safeguard may make a method slower by this factor
BUSY_NOTE = (
    " Other processes were running, so that times were compared in CPU time: measure again on a "
    "quiet machine."
)
LEAST_EVALUATIONS = 10_000  # of f and its gradient, that a search needs
EVALUATIONS_TO_LEARN = 130  # for each step of the horizon, that the shortest training needs
LEAST_FOR_RATES = 5.0  # seconds that worst-case rates need at least
TIMEOUT = timedelta(days=2)  # longest time that a process waits for another


class _SplitFamily(ProblemFamily):
    """Problems for training, and other problems of the same class for choosing a method.

    The family's own held-out problems are not used.

    Args:
        family: The class of problems.
        size: Number of problems to learn on.
        count: Number of problems to choose by.
        tolerance: Relative gap of the lower bounds.
        seed: Seed of the problems.
        seconds: Time limit for the lower bounds.
    """

    def __init__(
        self,
        family: ProblemFamily,
        size: int,
        count: int,
        tolerance: float,
        seed: int,
        seconds: float = math.inf,
    ) -> None:
        share = seconds * size / (size + count)
        self.pool = Pooled(family, size, tolerance, seed, seconds=share)
        self.rehearsal = Pooled(family, count, tolerance, seed + 1, seconds=seconds - share)

    def draw(self, seeds: Tensor) -> Draw:
        return self.pool.draw(seeds)

    def validation(self, count: int) -> Draw:
        return self.rehearsal.draw(torch.arange(count))

    @property
    def conditional_on(self) -> list[str] | None:
        """The statements that the lower bounds rest on; None if some bounds are estimates."""
        return merge_conditions(self.pool.conditional_on, self.rehearsal.conditional_on)

    @property
    def estimated(self) -> int:
        """Number of lower bounds that are estimates."""
        return self.pool.estimated + self.rehearsal.estimated

    def share_bounds(self, process: tuple[int, int], ledger: Ledger) -> None:
        """Compute the lower bounds in the first process and send them to the others.

        They depend on time, so that a resumed search reads them from the ledger.
        """
        for name, pool in (("pool", self.pool), ("rehearsal", self.rehearsal)):
            stored = broadcast_result(
                partial(ledger.once, f"bounds of the {name}", partial(_bounds_of_pool, pool)),
                *process,
            )
            lower, pool.conditional_on, pool.estimated = stored
            like = next(leaves(pool.family.draw(pool.seeds[:1]).x0))
            pool.lower = torch.tensor(lower, dtype=torch.float64).to(like)


def _bounds_of_pool(pool: Pooled) -> tuple[list[float], list[str] | None, int]:
    return pool.lower.tolist(), pool.conditional_on, pool.estimated


def auto(
    family: ProblemFamily,
    *,
    name: str = "my-problem",
    accuracy: float = 1e-2,
    minutes: float = 10.0,
    out: str | Path = "out/zoo",
    batch: int = 32,
    seed: int = 0,
    resume: bool = True,
    say: Callable[[str], object] | None = None,
    progress: bool | None = None,
    rivals: Sequence[Any] | None = (),
    start: str | Path | Method[Any] | None = None,
) -> AutoResult:
    """Find the fastest solver for a class of problems, and measure how much learning helps.

    1. Problems are drawn, and their minima proven or, if that is not possible, estimated.
    2. The classical solvers that fit the problems are tuned, and a check says whether the class
       looks suitable for learning (:func:`~mirrordescent.automatic.check_suitability`).
    3. Methods are learned: schedules with the Euclidean geometry, then mirror maps with more and
       more parameters, with several forms of steps and, if problems have ``Problem.features``, with
       schedules that depend on them. All candidates are trained for a short time, the fastest for
       longer, and the best two for the rest of the time.
    4. The fastest learned method gets a safeguard. It is compared with the best classical solver on
       problems that were not used before.
    5. The solver is written to OUT/NAME.safetensors, and a page to OUT/NAME.html.

    With ``torchrun``, several processes share the candidates. The first one computes bounds,
    measures times while the others wait, and writes files.

    Args:
        family: The class of problems. Its ``validation`` problems are used once, at the end.
        name: Name of the file and the page.
        accuracy: Relative gap (f − f*)/(f(x₀) − f*) to reach.
        minutes: Approximate duration. At least two fifths of it are used for learning, unless the
            time is too short to learn anything.
        out: Output folder, by default the one in which ``mirrordescent solve`` looks for solvers.
            An interrupted search in it is resumed.
        batch: Number of problems that are solved at once.
        seed: Seed of the problems.
        resume: Whether to resume an interrupted search.
        say: Function that is called with messages.
        progress: Whether to show a progress bar; by default on a terminal. If True, and there is no
            terminal, lines of text are printed instead.
        rivals: Further solvers to compare with, functions of a problem and its starts that return
            points, or instances of :class:`~mirrordescent.rivals.Rival`. Solvers of other packages
            that are installed and fit the problems are always compared, unless this is None.
        start: Solver of an earlier search, or its file. Its learned method takes part and goes on
            learning, for a class of problems that has drifted.

    Raises:
        ValueError: If f and its gradient are so slow that the search cannot end in time. The
            message has the duration that is needed.
    """
    if not 0 < accuracy < 1 or not minutes > 0:
        raise ValueError(
            f"accuracy must be in (0, 1) and minutes positive, got {accuracy} and {minutes}"
        )
    process = join(TIMEOUT)
    first = process[0] == 0
    with ProgressBar("searching", WHOLE, progress if first else False, estimate=False) as bar:
        settings = _SearchSettings(name, accuracy, 60 * minutes, Path(out), batch, seed, resume)
        search = _Search(
            family,
            settings,
            say,
            TimePlan(60 * minutes, bar),
            process,
            rivals,
            None if start is None else _learned_part(start),
        )
        return search.run()


class _SearchSettings(NamedTuple):
    """Arguments of :func:`auto`, with the duration in seconds."""

    name: str
    accuracy: float
    seconds: float
    out: Path
    batch: int
    seed: int
    resume: bool


class _Search:
    """The search for a solver; see :func:`auto`."""

    def __init__(
        self,
        family: ProblemFamily,
        settings: _SearchSettings,
        say: Callable[[str], object] | None,
        plan: TimePlan,
        process: tuple[int, int],
        rivals: Sequence[Any] | None,
        earlier: Method[Any] | None = None,
    ) -> None:
        self.family = family
        self.earlier = earlier
        self.rivals = rivals
        self.name = settings.name
        self.accuracy = settings.accuracy
        self.tolerance = min(1e-3, settings.accuracy / 100)  # of lower bounds
        self.seconds = settings.seconds
        self.out = settings.out
        self.batch = settings.batch
        self.seed = settings.seed
        self.plan = plan
        self.process = process
        self.print = say or (lambda _: None)
        self.runs = settings.out / f"{settings.name}.runs"
        self.resume = settings.resume
        self.began = perf_counter()

    def say(self, line: str) -> None:
        """Print a message in the first process only."""
        if self.process[0] == 0:
            self.print(line)

    def run(self) -> AutoResult:
        self.say("drawing and certifying problems")
        self.plan.begin("drawing problems")
        check_family(self.family.draw(torch.arange(2)))
        self._require_time()
        with self.plan.stage("drawing and certifying problems", DRAWING * self.seconds):
            self.split = _SplitFamily(
                self.family,
                4 * self.batch,
                self.batch,
                self.tolerance,
                self.seed,
                DRAWING * self.seconds,
            )
            self._open_ledger()
            self.split.share_bounds(self.process, self.ledger)
        if self.split.estimated:
            self.say(
                f"the minima of {self.split.estimated} of {5 * self.batch} problems are estimates"
            )
        self.race = Race(
            self.split.validation(self.batch),
            self.accuracy,
            ITERATIONS,
            patience=PATIENCE * self.seconds,
        )
        with self.plan.stage("classical solvers", TUNING * self.seconds):
            classical = self._race_classical()
        best = min(classical, key=lambda each: each.rehearsal.seconds)
        if best.rehearsal.seconds == torch.inf:
            raise ValueError(
                f"no classical solver reaches a gap of {self.accuracy:g} on nine tenths of the "
                f"problems in {ITERATIONS} iterations: choose a larger accuracy, or check the "
                "problems"
            )
        self.say(f"the best classical solver: {best.name}, {best.rehearsal.time}")
        with self.plan.stage("is it worth learning?", CHECK * self.seconds):
            self.suitability = self._check_suitability(best)
            self.say(str(self.suitability))
        learned = self._train_and_race(best)
        with self.plan.stage("the verdict", self.plan.left):
            return self._decide(classical, best, learned)

    def _require_time(self) -> None:
        """Measure f and its gradient, and raise an error if the search cannot end in time."""
        draw = self.family.draw(torch.arange(self.batch))
        self.pace = self._agree(lambda: pace_of(draw.problem, draw.x0))
        needed = LEAST_EVALUATIONS * self.pace
        if needed > self.seconds:
            raise ValueError(
                f"a search needs about {LEAST_EVALUATIONS} evaluations of f and its gradient, "
                f"which take {self.pace:.2g} s for {self.batch} problems: pass "
                f"minutes={math.ceil(needed / 6) / 10:g} or more, or a smaller batch; got "
                f"minutes={self.seconds / 60:.2g}"
            )

    def _open_ledger(self) -> None:
        """Read the choices of an earlier search, if it had the same problems and settings."""
        rank, world = self.process
        file = f"choices-{rank}.json" if rank else "choices.json"
        self.ledger = Ledger(self.runs / file, self.resume)
        request: list[Any] = [
            fingerprint(self.split.rehearsal.unbounded().problem, "auto"),
            self.accuracy,
            self.seconds,
            self.batch,
            self.seed,
            world,
        ]
        if self.earlier is not None:
            request.append([float(p.detach().double().norm()) for p in self.earlier.parameters()])
        same = self.resume and self.ledger.choices.get("for", request) == request
        if not self._agree(lambda: same):
            self.ledger.choices = {}
            self.resume = False
        self.ledger.once("for", lambda: request)

    def _agree(self, choose: Callable[[], T]) -> T:
        """Let the first process choose for all."""
        return broadcast_result(choose, *self.process)

    def _agree_once(self, key: str, choose: Callable[[], T]) -> T:
        return self._agree(lambda: self.ledger.once(key, choose))

    def _result(self, race: Race, method: Method[Any]) -> RaceResult:
        """Race a method in the first process, while the others wait and leave the machine idle."""
        iterations, seconds = self._agree(lambda: attempt(race, method, self.say).as_numbers())
        return RaceResult(torch.tensor(iterations), seconds)

    # Classical solvers

    def _race_classical(self) -> list[Contestant]:
        draw = self.split.draw(torch.arange(self.batch))
        self.step = self._agree_once("step", lambda: typical_step(draw))
        tuning = replace(self.race, draw=draw)
        contestants: list[Contestant] = []
        end = perf_counter() + TUNING * self.seconds
        for solver in classical_solvers(draw.problem, self.step):
            able = any(math.isfinite(each.rehearsal.seconds) for each in contestants)
            setting = self._agree(partial(self._tuned_setting, solver, tuning, end, able))
            if setting is None:
                continue
            method = solver.make(setting)
            name = solver.label(setting)
            race = self.race if able else replace(self.race, patience=math.inf)
            result = self._result(race, method)
            self.say(f"{name}: {result}")
            contestants.append(Contestant(name, method, "classical", result))
        return contestants

    def _tuned_setting(self, solver: TunableSolver, race: Race, end: float, able: bool) -> Any:
        """Return the tuned setting of a solver; None if it cannot start, or if there is no time.

        Args:
            solver: The solver.
            race: Problems to tune it on.
            end: Value of ``perf_counter`` at which time is up.
            able: Whether a solver before it reaches the accuracy, so that this one is not needed.
        """
        if solver.name in self.ledger.choices:
            return self.ledger.choices[solver.name]
        left = end - perf_counter()
        if able and left < 0:
            self.say(f"there is no time for {solver.name}")
            return self.ledger.once(solver.name, lambda: None)
        race = replace(race, patience=left if able else math.inf)
        cost = limited(iterations_needed(race), end, UNSOLVED * race.iterations)
        try:
            solver.make(solver.settings[0]).init(self.race.x0, self.race.problem)
            return self.ledger.once(solver.name, lambda: solver.tune(tolerant(cost, self.say)))
        except DomainError as error:
            self.say(f"{solver.name} cannot start: {error}")
            return None
        except Exception as error:
            self.say(f"{solver.name} is disqualified: {in_brief(error)}")
            return None

    def _check_suitability(self, best: Contestant) -> Suitability:
        """Judge the class of problems, with solvers of other packages in a single process."""
        outside = None
        if self.rivals is not None and self.process == (0, 1):
            alone = replace(self.race, draw=self.split.validation(1))
            seconds = min(60.0, CHECK * self.seconds)
            outside = compare_with_rivals(self.race, alone, [best], self.rivals, seconds)
        return assess(self.race, best, outside)

    # Learning

    def _train_and_race(self, best: Contestant) -> list[Contestant]:
        horizon = self._agree_once("horizon", lambda: max(8, min(100, best.rehearsal.most)))
        used = perf_counter() - self.began
        seconds = self._agree_once(
            "seconds to learn", lambda: max(0.4, 1 - VERDICT - used / self.seconds) * self.seconds
        )
        self.plan.left = seconds + VERDICT * self.seconds
        needed = EVALUATIONS_TO_LEARN * horizon * self.pace
        if self._agree_once("no time to learn", lambda: needed > seconds):
            self.say(f"there is no time to learn: it takes at least {needed:.2g} s")
            return []
        training = CandidateTraining(
            self.split,
            self.race,
            self.runs,
            self.ledger,
            self.plan,
            Unrolling(self.step, horizon, self.pace),
            self.seed,
            self.resume,
            self.process,
            self.print,
            self.earlier,
        )
        trained = training.train(seconds)
        with self.plan.stage("a race of all", VERDICT / 4 * self.seconds):
            return [self._race_learned(candidate, method) for candidate, method in trained]

    def _race_learned(self, candidate: Candidate, method: Method[Any]) -> Contestant:
        """Race a learned method, with a safeguard if it uses gradients and that costs little."""
        method.requires_grad_(False)
        bare = self._result(self.race, method)
        contestant = Contestant(
            f"learned, {candidate.name}", method, candidate.name, bare, bare=bare
        )
        wrappers: list[type[Safeguarded] | type[NeverWorse]] = [NeverWorse]
        if candidate.form not in DUAL:
            wrappers.insert(0, Safeguarded)
        for wrapper in wrappers:
            guarded = wrapper(method)
            result = self._result(self.race, guarded)
            cheap = result.seconds <= SAFEGUARD_COST * bare.seconds
            if wrapper is NeverWorse or result.solved > bare.solved or cheap:
                contestant = replace(contestant, method=guarded, rehearsal=result)
                break
        self.say(f"{contestant.name}: {contestant.rehearsal}")
        return contestant

    # The decision

    def _decide(
        self, classical: list[Contestant], best: Contestant, learned: list[Contestant]
    ) -> AutoResult:
        """Compare the best learned method with the best classical one on unseen problems."""
        able = [each for each in learned if each.rehearsal.solved >= best.rehearsal.solved]
        ours = min(able, key=lambda each: each.rehearsal.seconds, default=None)
        race, bounds = self._race_on_unseen_problems()
        if bounds.estimated:
            race = self._lower_estimates(race, [best] if ours is None else [best, ours])
        measured = self._measure(race, best, ours, learned)
        curves = {}
        for each in (best, ours):
            if each is not None and each.unseen is not None:
                curves[each.name] = race.curve(each.method, max(10, 2 * each.unseen.most))
        method = best.method
        chosen = ours is not None and _clearly_faster(ours, best, measured)
        if ours is not None and chosen:
            after = _next_check(2 * max(1, ours.rehearsal.most))
            followed = Switch(ours.method, after, best.method, certified=False, dual_start=False)
            seen = self.split.pool.unbounded()
            method = WithinRange(followed, best.method, feature_ranges(seen.problem, seen.x0))
        conditions = merge_conditions(bounds.conditions, self.split.conditional_on)
        words = verdict(self.accuracy, best, ours, chosen, conditions, measured)
        rate = self._worst_case(ours)
        if chosen and rate is not None and rate.rate is not None:
            words += f" {rate}"
        busy = any(each.timing is not None and each.timing.busy for each in (best, *learned))
        if busy:
            words += BUSY_NOTE
        outside = self._compare_with_rivals(race, best, ours)
        if outside is not None:
            words = with_rivals(words, outside, self.accuracy)
        result = AutoResult(
            self.name,
            method,
            chosen,
            words,
            self.accuracy,
            best,
            ours,
            sorted([*classical, *learned], key=lambda each: each.rehearsal.seconds),
            conditions,
            self.out / f"{self.name}.safetensors",
            perf_counter() - self.began,
            Evidence(measured, outside, curves, self.suitability, rate),
        )
        self._agree(lambda: self._write(result))
        self.say(words)
        return result

    def _worst_case(self, ours: Contestant | None) -> WorstCase | None:
        """Return the worst-case rate of the learned method without its safeguard."""
        if ours is None or ours.unseen is None or ours.unseen.most < 1:
            return None
        method = ours.method
        if isinstance(method, Safeguarded | NeverWorse):
            method = method.method
        problem = self.race.problem
        smoothness = problem.smoothness() if problem.convex else None
        limit = min(60.0, VERDICT / 4 * self.seconds)
        steps = ours.unseen.most
        if limit < LEAST_FOR_RATES:
            return WorstCase(None, steps, "the search is too short to compute one")
        found = self._agree(lambda: astuple(worst_case(method, steps, smoothness or 0.0, limit)))
        return WorstCase(*found)

    def _measure(
        self, race: Race, best: Contestant, ours: Contestant | None, learned: list[Contestant]
    ) -> Speedup | None:
        """Race the methods of the verdict on unseen problems, and time them in turn.

        These are the best classical solver, the best learned method, the best one that learns only
        schedules, and both without safeguards: so all factors come from the same rounds.
        """
        able = [each for each in learned if each.kind.startswith(PLAIN)]
        plain = min(able, key=lambda each: each.rehearsal.seconds, default=None)
        methods: dict[str, tuple[Contestant, Method[Any], bool]] = {}
        for each in (best, ours, plain):
            if each is None:
                continue
            methods[each.name] = (each, each.method, False)
            if isinstance(each.method, Safeguarded | NeverWorse):
                methods[f"{each.name}, bare"] = (each, each.method.method, True)
        counted = {name: self._result(race, method) for name, (_, method, _) in methods.items()}
        timings = self._agree(
            lambda: _times_in_turn(race, methods, counted, VERDICT / 4 * self.seconds)
        )
        measured = {name: Timing(*each) for name, each in timings.items()}
        clock = clock_for(measured, next(leaves(race.x0)).is_cuda)
        for name, (each, _, bare) in methods.items():
            result = counted[name]
            if name in measured:
                result = replace(result, seconds=measured[name].median(clock))
            if bare:
                each.unseen_bare = result
            else:
                each.unseen = result
                each.timing = measured.get(name)
        if ours is None or not {best.name, ours.name} <= measured.keys():
            return None
        return speedup(measured[best.name], measured[ours.name], clock)

    def _compare_with_rivals(
        self, race: Race, best: Contestant, ours: Contestant | None
    ) -> OutsideResult | None:
        """Compare with solvers of other packages, in the first process only."""
        if self.rivals is None or self.process != (0, 1):
            return None
        left = self.seconds - (perf_counter() - self.began)
        if left <= 0 and not self.rivals:
            self.say("there is no time for solvers of other packages")
            return None
        drawn = self.family.validation(1)
        alone = replace(race, draw=replace(drawn, lower=race.lower[:1]))
        contestants = [best] if ours is None else [best, ours]
        seconds = max(0.0, min(VERDICT / 4 * self.seconds, left))
        return compare_with_rivals(race, alone, contestants, self.rivals, seconds, self.say)

    def _race_on_unseen_problems(self) -> tuple[Race, Bounds]:
        """Return the race on the family's held-out problems, and their bounds."""
        unseen = self.family.validation(2 * self.batch)
        if unseen.lower is not None:
            return replace(self.race, draw=unseen), Bounds(unseen.lower, [])
        lower, conditions, estimated = self._agree_once(
            "bounds of the unseen problems", partial(self._bounds, unseen)
        )
        like = next(leaves(unseen.x0))
        bounds = Bounds(torch.tensor(lower, dtype=torch.float64).to(like), conditions, estimated)
        return replace(self.race, draw=replace(unseen, lower=bounds.lower)), bounds

    def _lower_estimates(self, race: Race, contestants: list[Contestant]) -> Race:
        """Return the race with estimates of minima below all values that its methods reach.

        Otherwise gaps to an estimate that is too high would be too small.
        """

        def lowered() -> list[float]:
            lower = race.lower
            first = race.problem.value(race.x0).double()
            for each in contestants:
                steps = max(LEAST_ITERATIONS, 2 * each.rehearsal.most)
                try:
                    run = race.solve(each.method, steps, check_every=steps)
                except Exception:  # an error of a user's gradient
                    continue
                value = run.best_value.double()
                lower = torch.fmin(lower, value - MARGIN * (first - value).abs())
            return lower.tolist()

        found = self._agree_once("lowered estimates", lowered)
        like = next(leaves(race.x0))
        lower = torch.tensor(found, dtype=torch.float64).to(like)
        return replace(race, draw=replace(race.draw, lower=lower))

    def _bounds(self, draw: Draw) -> tuple[list[float], list[str] | None, int]:
        seconds = VERDICT / 4 * self.seconds
        bounds = bounds_within(draw.problem, draw.x0, self.tolerance, seconds)
        return bounds.lower.tolist(), bounds.conditions, bounds.estimated

    def _write(self, result: AutoResult) -> None:
        """Write the solver and the page."""
        family = type(self.family)
        card = zoo.Card(
            self.name,
            result.words,
            family=f"{family.__module__}:{family.__qualname__}",
            held_out=_held_out(result),
            parameters=sum(p.numel() for p in result.method.parameters()),
            use={"accuracy": self.accuracy, "iterations": _iterations_to_use(result)},
        )
        self.out.mkdir(parents=True, exist_ok=True)
        zoo.save(result.method, result.file, card)
        page(result).write(self.out / f"{self.name}.html")


def _learned_part(start: str | Path | Method[Any]) -> Method[Any]:
    """Return the learned method of a solver, without its safeguard, fallback and range.

    Args:
        start: Result of a search, or its file.
    """
    method: Any = start if isinstance(start, Method) else zoo.load(start)
    while isinstance(method, WithinRange | Switch | Safeguarded | NeverWorse):
        method = method.method
    if not isinstance(method, Method) or not list(method.parameters()):
        raise ValueError(
            f"start must be a learned solver, got {type(method).__name__} without learned numbers: "
            "the earlier search recommended a classical solver"
        )
    return method


def _clearly_faster(ours: Contestant, best: Contestant, measured: Speedup | None) -> bool:
    """Return whether a method is clearly faster, in the rehearsal and on unseen problems.

    On unseen problems even the lower end of the interval must be above 1.
    """
    assert ours.unseen is not None
    assert best.unseen is not None
    in_rehearsal = ours.rehearsal.beats(best.rehearsal, CLEARLY)
    on_unseen = ours.unseen.beats(best.unseen, CLEARLY)
    certain = measured is None or (measured.median >= CLEARLY and measured.low > 1)
    return in_rehearsal and on_unseen and certain


def _next_check(steps: int, every: int = 10) -> int:
    """Return the next multiple of the number of steps between the checks of a safeguard."""
    return -(-steps // every) * every


def _times_in_turn(
    race: Race,
    methods: dict[str, tuple[Contestant, Method[Any], bool]],
    counted: dict[str, RaceResult],
    seconds: float,
) -> dict[str, tuple[list[float], list[float]]]:
    """Return the wall and CPU times of the methods that solve enough problems."""
    runs: dict[str, Callable[[], object]] = {}
    for name, (_, method, _) in methods.items():
        if math.isfinite(counted[name].seconds):
            runs[name] = partial(race.take_steps, method, max(1, counted[name].most))
    with torch.no_grad():
        timings = time_in_turn(runs, seconds=seconds)
    return {name: (each.wall, each.cpu) for name, each in timings.items()}


def _iterations_to_use(result: AutoResult) -> int:
    """Return twice the iterations of the slowest unseen problem, as a budget for new ones."""
    chosen = result.learned if result.recommended else result.classical
    if chosen is None or chosen.unseen is None or chosen.unseen.most < 1:
        return ITERATIONS
    return 2 * chosen.unseen.most


def _held_out(result: AutoResult) -> dict[str, dict[str, Any]]:
    """Return the results on unseen problems as plain data."""
    held_out = {}
    for each in (result.classical, result.learned):
        if each is None or each.unseen is None:
            continue
        seconds = each.unseen.seconds
        held_out[each.name] = {
            "solved": each.unseen.solved,
            "of": each.unseen.count,
            "seconds": seconds if math.isfinite(seconds) else None,
        }
    return held_out
