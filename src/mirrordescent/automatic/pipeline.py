"""One call from a class of problems to the solver to use for it, learned or not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor

from mirrordescent import zoo
from mirrordescent._internal.progress import ProgressBar
from mirrordescent.automatic.candidates import DUAL, Candidate
from mirrordescent.automatic.classical import Solver, fitting, named, tuned, typical_step
from mirrordescent.automatic.course import WHOLE, Course
from mirrordescent.automatic.family_check import check_family
from mirrordescent.automatic.outcome import CLEARLY, Auto, Contestant, verdict
from mirrordescent.automatic.page import page
from mirrordescent.automatic.race import Race, Result
from mirrordescent.automatic.teaching import Ledger, Teaching
from mirrordescent.domains import DomainError
from mirrordescent.learn import Draw, Pooled, ProblemFamily
from mirrordescent.learn.distributed import agreed, join
from mirrordescent.learn.families import reference_of
from mirrordescent.methods import Method, Safeguarded
from mirrordescent.methods.switch import Switch
from mirrordescent.problems.fingerprint import fingerprint
from mirrordescent.trees import leaves

T = TypeVar("T")

# shares of the time; the rest is for learning
DRAWING = 0.05
TUNING = 0.1
VERDICT = 0.15
PATIENCE = timedelta(days=2)  # with which processes wait for each other


class _Split(ProblemFamily):
    """Problems to learn on, and others of the same distribution to choose by; the held-out ones are
    not touched.
    """

    def __init__(
        self, family: ProblemFamily, size: int, count: int, tolerance: float, seed: int
    ) -> None:
        self.pool = Pooled(family, size, tolerance, seed)
        self.rehearsal = Pooled(family, count, tolerance, seed + 1)

    def draw(self, seeds: Tensor) -> Draw:
        return self.pool.draw(seeds)

    def validation(self, count: int) -> Draw:
        return self.rehearsal.draw(torch.arange(count))

    def agree(self, process: tuple[int, int]) -> None:
        """Let the first process find the bounds, for all."""
        for pool in (self.pool, self.rehearsal):
            lower, pool.proven = agreed(
                lambda pool=pool: [pool.lower.tolist(), pool.proven],  # type: ignore[misc]
                *process,
            )
            if process[0] > 0:
                pool.lower = torch.tensor(lower).to(
                    next(leaves(pool.family.draw(pool.seeds[:1]).x0))
                )


def auto(
    family: ProblemFamily,
    *,
    name: str = "my-problem",
    accuracy: float = 1e-2,
    minutes: float = 10.0,
    out: str | Path = "out/auto",
    batch: int = 32,
    seed: int = 0,
    resume: bool = True,
    say: Callable[[str], object] | None = None,
    progress: bool | None = None,
) -> Auto:
    """Find the fastest solver for a class of problems, by the clock, to an accuracy; and say how
    much learning helps.

    1. A pool of problems is drawn and certified (or their minima estimated, which is said). 2. The
    classical solvers that fit are tuned. 3. Schedules are learned with the plain geometry, then
    maps of growing richness with theirs: all for a short while, those that are fastest then for
    longer, and the best two for the rest of the time, by gradients and, if there are few numbers,
    by evolution; with steps of several forms, quick ones and few ones, and depending on what
    problems tell of themselves (``Problem.features``), if they tell anything. 4. Whatever is
    fastest to the accuracy on other problems is safeguarded, and compared with the best classical
    solver on problems that nothing was chosen on. 5. OUT/NAME.safetensors, and OUT/NAME.html.

    Started by ``torchrun``, processes share the candidates, so that each has more time; the first
    of them certifies, takes times while the others wait, and writes.

    Args:
        family: the class of problems; its ``validation`` problems are looked at once, in the end.
        name: of the file and the page.
        accuracy: the relative gap (f − f*)/(f(x₀) − f*) that is to be reached.
        minutes: the time it may take, about; two fifths of it are for learning, however long the
            rest takes.
        out: the folder to write to. Started again, an interrupted search goes on there.
        batch: problems that are solved at once, as they will be.
        seed: determines the problems.
        resume: whether to go on where a search was interrupted.
        say: told what happens, in a line each.
        progress: show how far it is and how long it will take: by default on a terminal, if True in
            lines elsewhere.
    """
    if not 0 < accuracy < 1 or not minutes > 0:
        raise ValueError(
            f"accuracy must be in (0, 1) and minutes positive, got {accuracy} and {minutes}"
        )
    process = join(PATIENCE)
    with ProgressBar(
        "searching", WHOLE, progress if process[0] == 0 else False, estimate=False
    ) as bar:
        course = Course(60 * minutes, bar)
        search = _Search(
            family,
            name,
            accuracy,
            60 * minutes,
            Path(out),
            batch,
            seed,
            resume,
            say,
            course,
            process,
        )
        return search.run()


class _Search:
    def __init__(
        self,
        family: ProblemFamily,
        name: str,
        accuracy: float,
        seconds: float,
        out: Path,
        batch: int,
        seed: int,
        resume: bool,
        say: Callable[[str], object] | None,
        course: Course,
        process: tuple[int, int],
    ) -> None:
        self.family = family
        self.name = name
        self.accuracy = accuracy
        self.seconds = seconds
        self.out = out
        self.batch = batch
        self.seed = seed
        self.course = course
        self.process = process
        self.speak = say or (lambda _: None)
        self.runs = out / f"{name}.runs"
        self.resume = resume
        self.began = perf_counter()

    def say(self, line: str) -> None:
        """Say once what all processes know."""
        if self.process[0] == 0:
            self.speak(line)

    def run(self) -> Auto:
        check_family(self.family.draw(torch.arange(2)))
        tolerance = min(1e-3, self.accuracy / 100)
        self.say("drawing and certifying problems")
        with self.course.stage("drawing and certifying problems", DRAWING * self.seconds):
            self.split = _Split(self.family, 4 * self.batch, self.batch, tolerance, self.seed)
            self.split.agree(self.process)
        self.race = Race(self.split.validation(self.batch), self.accuracy, 2000)
        self._begin()
        with self.course.stage("classical solvers", TUNING * self.seconds):
            classical = self._classical()
        best = min(classical, key=lambda each: each.rehearsal.seconds)
        if best.rehearsal.seconds == torch.inf:
            raise ValueError(
                f"no classical solver reaches {self.accuracy:g} on nine tenths of the problems in {self.race.most} "
                f"iterations: ask for a lower accuracy, or look at the problems"
            )
        self.say(f"the best classical solver: {best.name}, {best.rehearsal.time}")
        learned = self._learned(best)
        with self.course.stage("the verdict", self.course.left):
            return self._judged(classical, best, learned)

    def _begin(self) -> None:
        """Go on with the choices of a search for the same: with other problems or settings they
        would be wrong.
        """
        rank, world = self.process
        self.ledger = Ledger(
            self.runs / (f"choices-{rank}.json" if rank else "choices.json"), self.resume
        )
        asked = [
            fingerprint(self.race.draw.problem, "auto"),
            self.accuracy,
            self.seconds,
            self.batch,
            self.seed,
            world,
        ]
        known = self.resume and self.ledger.kept.get("for", asked) == asked
        if not self._agreed(lambda: known):
            self.ledger.kept = {}
            self.resume = False
        self.ledger.once("for", lambda: asked)

    def _agreed(self, choose: Callable[[], T]) -> T:
        return agreed(choose, *self.process)

    def _once(self, key: str, choose: Callable[[], T]) -> T:
        return self._agreed(lambda: self.ledger.once(key, choose))

    def _raced(self, race: Race, method: Method[Any]) -> Result:
        """Let the first process take the time, while nobody else uses the machine."""
        iterations, seconds = self._agreed(lambda: race.run(method).plain())
        return Result(torch.tensor(iterations), seconds)

    # Classical solvers

    def _classical(self) -> list[Contestant]:
        draw = self.split.draw(torch.arange(self.batch))
        self.step = self._once("step", lambda: typical_step(draw))
        tuning = replace(self.race, draw=draw)
        found = []
        for solver in fitting(draw.problem, self.step):
            setting = self._agreed(partial(self._possible, solver, tuning))
            if setting is None:
                continue
            method = solver.make(setting)
            name = named(solver, setting)
            result = self._raced(self.race, method)
            self.say(f"{name}: {result}")
            found.append(Contestant(name, method, "classical", result))
        return found

    def _possible(self, solver: Solver, race: Race) -> float | None:
        """Return the setting of a solver, or None if it cannot begin where these problems do."""
        try:
            solver.make(solver.settings[0]).init(self.race.draw.x0, self.race.draw.problem)
            return self.ledger.once(solver.name, lambda: tuned(solver, race))
        except DomainError as error:
            self.say(f"{solver.name} cannot begin: {error}")
            return None

    # Learning

    def _learned(self, best: Contestant) -> list[Contestant]:
        horizon = self._once("horizon", lambda: max(8, min(100, best.rehearsal.most)))
        used = perf_counter() - self.began
        seconds = self._once(
            "seconds to learn", lambda: max(0.4 * self.seconds, 0.85 * self.seconds - used)
        )
        self.course.left = seconds + VERDICT * self.seconds
        teaching = Teaching(
            self.split,
            self.race,
            self.runs,
            self.ledger,
            self.course,
            self.step,
            horizon,
            self.seed,
            self.resume,
            self.process,
            self.speak,
        )
        taught = teaching.taught(seconds)
        with self.course.stage("a race of all", VERDICT / 2 * self.seconds):
            return [self._entered(candidate, method) for candidate, method in taught]

    def _entered(self, candidate: Candidate, method: Method[Any]) -> Contestant:
        """Let what was learned run in the rehearsal, safeguarded if it moves by gradients and that
        costs little.
        """
        method.requires_grad_(False)
        bare = self._raced(self.race, method)
        found = Contestant(f"learned, {candidate.name}", method, candidate.name, bare, bare=bare)
        if candidate.form not in DUAL:
            guarded = Safeguarded(method)
            result = self._raced(self.race, guarded)
            if result.solved > bare.solved or result.seconds <= 1.15 * bare.seconds:
                found = replace(found, method=guarded, rehearsal=result)
        self.say(f"{found.name}: {found.rehearsal}")
        return found

    # The verdict

    def _judged(
        self, classical: list[Contestant], best: Contestant, learned: list[Contestant]
    ) -> Auto:
        able = [each for each in learned if each.rehearsal.solved >= best.rehearsal.solved]
        ours = min(able, key=lambda each: each.rehearsal.seconds, default=None)
        unseen = self.family.validation(2 * self.batch)
        proven = True
        if unseen.lower is None:
            lower, proven = self._agreed(partial(self._bounds, unseen))
            unseen = replace(unseen, lower=torch.tensor(lower).to(next(leaves(unseen.x0))))
        final = replace(self.race, draw=unseen)
        method = best.method
        chosen = False
        curves = {}
        for each in (best, ours):
            if each is not None:
                each.unseen = self._raced(final, each.method)
                curves[each.name] = final.curve(each.method, max(10, 2 * each.unseen.most))
        if ours is not None and ours.unseen is not None and best.unseen is not None:
            chosen = ours.rehearsal.beats(best.rehearsal, CLEARLY) and ours.unseen.beats(
                best.unseen, CLEARLY
            )
        if ours is not None and chosen:
            after = 2 * max(1, ours.rehearsal.most)
            method = Switch(ours.method, after, best.method, certified=False, dual_start=False)
        proven = proven and self.split.pool.proven and self.split.rehearsal.proven
        words = verdict(self.accuracy, best, ours, chosen, proven)
        contestants = sorted([*classical, *learned], key=lambda each: each.rehearsal.seconds)
        found = Auto(
            self.name,
            method,
            chosen,
            words,
            self.accuracy,
            best,
            ours,
            contestants,
            proven,
            self.out / f"{self.name}.safetensors",
            perf_counter() - self.began,
            curves,
        )
        self._agreed(lambda: self._saved(found))
        self.say(words)
        return found

    def _bounds(self, draw: Draw) -> tuple[list[float], bool]:
        lower, proven = reference_of(draw, min(1e-3, self.accuracy / 100))
        return lower.tolist(), proven

    def _saved(self, found: Auto) -> None:
        held_out = {
            each.name: {
                "solved": each.unseen.solved,
                "of": each.unseen.count,
                "seconds": each.unseen.seconds if math.isfinite(each.unseen.seconds) else None,
            }
            for each in (found.classical, found.learned)
            if each is not None and each.unseen is not None
        }
        family = type(self.family)
        card = zoo.Card(
            self.name,
            found.words,
            family=f"{family.__module__}:{family.__qualname__}",
            held_out=held_out,
            parameters=sum(p.numel() for p in found.method.parameters()),
            use={"accuracy": self.accuracy},
        )
        self.out.mkdir(parents=True, exist_ok=True)
        zoo.save(found.method, found.file, card)
        page(found).write(self.out / f"{self.name}.html")
