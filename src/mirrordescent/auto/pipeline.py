"""One call from a class of problems to the solver to use for it, learned or not."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from mirrordescent import zoo
from mirrordescent.auto.candidates import PLAIN, Candidate, candidates, method_for, numbers
from mirrordescent.auto.classical import Solver, fitting, typical_step
from mirrordescent.auto.outcome import CLEARLY, Auto, Contestant, verdict
from mirrordescent.auto.page import page
from mirrordescent.auto.race import Race, Result
from mirrordescent.auto.soundness import require_inverse, require_sound
from mirrordescent.cache import fingerprint
from mirrordescent.domains import DomainError
from mirrordescent.files import Damaged, sealed, unsealed, whole
from mirrordescent.learn import (
    Descent,
    Draw,
    Evolution,
    NothingLearned,
    Objective,
    Pooled,
    ProblemFamily,
    Settings,
    Validation,
    learn,
)
from mirrordescent.learn.families import reference_of
from mirrordescent.methods import Method, Safeguarded
from mirrordescent.methods.relay import Relay
from mirrordescent.mirrors import Euclidean, MirrorMap
from mirrordescent.trees import tree_map

FEWEST = 5  # meta-steps that are worth beginning
FEW = 100  # numbers, up to which evolution goes on where gradients end


class _Split(ProblemFamily):
    """Problems to learn on, and others of the same distribution to choose by; the held-out ones are not touched."""

    def __init__(self, family: ProblemFamily, size: int, count: int, tolerance: float, seed: int) -> None:
        self.pool = Pooled(family, size, tolerance, seed)
        self.rehearsal = Pooled(family, count, tolerance, seed + 1)

    def draw(self, seeds: Tensor) -> Draw:
        return self.pool.draw(seeds)

    def validation(self, count: int) -> Draw:
        return self.rehearsal.draw(torch.arange(count))


class _Ledger:
    """Choices that depend on a clock, kept in a file: so a run that is continued makes the same ones."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path, self.kept = path, dict[str, Any]()
        if resume and path.exists():
            try:
                self.kept = unsealed(path.read_text(encoding="utf-8", errors="replace"))
            except Damaged as error:
                raise Damaged(f"{path}: {error}. To search afresh, resume=False") from error

    def once(self, key: str, choose: Callable[[], Any]) -> Any:
        if key not in self.kept:
            self.kept[key] = choose()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with whole(self.path) as partial_file:
                partial_file.write_text(sealed(self.kept), encoding="utf-8")
        return self.kept[key]


def auto(
    family: ProblemFamily, *, name: str = "my-problem", accuracy: float = 1e-2, minutes: float = 10.0,
    out: str | Path = "out/auto", batch: int = 32, seed: int = 0, resume: bool = True,
    say: Callable[[str], object] | None = None,
) -> Auto:  # fmt: skip
    """Find the fastest solver for a class of problems, by the clock, to an accuracy; and say how much learning helps.

    1. A pool of problems is drawn and certified (or their minima estimated, which is said). 2. The classical solvers
    that fit are tuned. 3. Schedules are learned with the plain geometry, then maps of growing richness with theirs:
    all for a short while, the better half of them for the rest of the time, by gradients and, if there are few
    numbers, by evolution. 4. Whatever is fastest to the accuracy on other problems is safeguarded, and compared with
    the best classical solver on problems that nothing was chosen on. 5. OUT/NAME.safetensors, and OUT/NAME.html.

    Args:
        family: the class of problems; its ``validation`` problems are looked at once, in the end.
        name: of the file and the page.
        accuracy: the relative gap (f − f*)/(f(x₀) − f*) that is to be reached.
        minutes: the time it may take, about; two fifths of it are for learning, however long the rest takes.
        out: the folder to write to. Started again, an interrupted search goes on there.
        batch: problems that are solved at once, as they will be.
        seed: determines the problems.
        resume: whether to go on where a search was interrupted.
        say: told what happens, in a line each.
    """
    if not 0 < accuracy < 1 or not minutes > 0:
        raise ValueError(f"accuracy must be in (0, 1) and minutes positive, got {accuracy} and {minutes}")
    search = _Search(family, name, accuracy, 60 * minutes, Path(out), batch, seed, resume, say or (lambda _: None))
    return search.run()


class _Search:
    def __init__(
        self, family: ProblemFamily, name: str, accuracy: float, seconds: float, out: Path, batch: int, seed: int,
        resume: bool, say: Callable[[str], object],
    ) -> None:  # fmt: skip
        self.family, self.name, self.accuracy, self.seconds = family, name, accuracy, seconds
        self.out, self.batch, self.seed, self.say = out, batch, seed, say
        self.runs, self.resume, self.began = out / f"{name}.runs", resume, perf_counter()

    def run(self) -> Auto:
        require_sound(self.family.draw(torch.arange(2)))
        tolerance = min(1e-3, self.accuracy / 100)
        self.say("drawing and certifying problems")
        self.split = _Split(self.family, 4 * self.batch, self.batch, tolerance, self.seed)
        self.race = Race(self.split.validation(self.batch), self.accuracy, 2000)
        self._begin()
        classical = self._classical()
        best = min(classical, key=lambda each: each.rehearsal.seconds)
        if best.rehearsal.seconds == torch.inf:
            raise ValueError(
                f"no classical solver reaches {self.accuracy:g} on nine tenths of the problems in {self.race.most} "
                f"iterations: ask for a lower accuracy, or look at the problems"
            )
        self.say(f"the best classical solver: {best.name}, {_time(best.rehearsal.seconds)}")
        learned = self._learned(best)
        return self._judged(classical, best, learned)

    def _begin(self) -> None:
        """Go on with the choices of a search for the same: with other problems or settings they would be wrong."""
        self.ledger = _Ledger(self.runs / "choices.json", self.resume)
        asked = [fingerprint(self.race.draw.problem, "auto"), self.accuracy, self.seconds, self.batch, self.seed]
        if not self.resume or self.ledger.kept.get("for", asked) != asked:
            self.ledger.kept, self.resume = {}, False
        self.ledger.once("for", lambda: asked)

    # Classical solvers

    def _classical(self) -> list[Contestant]:
        draw = self.split.draw(torch.arange(self.batch))
        self.step = self.ledger.once("step", lambda: typical_step(draw))
        tuning, found = replace(self.race, draw=draw), []
        for solver in fitting(draw.problem, self.step):
            try:
                setting = self.ledger.once(solver.name, partial(self._tuned, solver, tuning))
                method = solver.make(setting)
                name = solver.name if len(solver.settings) == 1 else f"{solver.name} ({setting:.3g})"
                result = self.race.run(method)
            except DomainError as error:
                self.say(f"{solver.name} cannot begin: {error}")
                continue
            self.say(f"{name}: {_described(result)}")
            found.append(Contestant(name, method, "classical", result))
        return found

    def _tuned(self, solver: Solver, race: Race) -> float:
        """Return the setting that needs the fewest iterations, those that fail counted as the budget."""
        if len(solver.settings) == 1:
            return solver.settings[0]

        def cost(setting: float) -> float:
            taken = race.run(solver.make(setting), clock=False).iterations
            return float(torch.where(taken < 0, 4 * race.most, taken).double().mean())

        return min(solver.settings, key=cost)

    # Learning

    def _learned(self, best: Contestant) -> list[Contestant]:
        draw = self.split.validation(self.batch)
        self.horizon = self.ledger.once("horizon", lambda: max(8, min(100, 2 * best.rehearsal.most)))
        entries = candidates(draw)
        used = perf_counter() - self.began
        left = self.ledger.once("seconds to learn", lambda: max(0.4 * self.seconds, 0.85 * self.seconds - used))
        methods: dict[str, Method[Any]] = {}
        for each in entries:
            try:
                methods[each.name] = self._begun(each, draw)
            except DomainError as error:
                self.say(f"{each.name} cannot begin: {error}")
        entries = [each for each in entries if each.name in methods]
        scores: dict[str, float] = {}
        for each in entries:
            scores[each.name] = self._taught(each, methods[each.name], "first", 0.4 * left / len(entries), 3e-2)
        kept = sorted(entries, key=lambda each: scores[each.name])[: max(1, (len(entries) + 1) // 2)]
        kept += [each for each in entries if each.name == PLAIN and each not in kept]
        for each in kept:
            method, seconds = methods[each.name], 0.6 * left / len(kept)
            few = numbers(method) <= FEW
            self._taught(each, method, "second", seconds * (0.5 if few else 1.0), 1e-2)
            if few:
                self._taught(each, method, "evolved", 0.5 * seconds, 1e-2, Evolution(6, 0.03))
        return [self._entered(each, methods[each.name]) for each in kept]

    def _begun(self, candidate: Candidate, draw: Draw) -> Method[Any]:
        mirror = candidate.geometry()
        x = draw.problem.domain.inner_point(draw.x0)
        inside = tree_map(lambda a, b: 0.5 * a + 0.5 * b, draw.x0, x)
        require_inverse(mirror, inside)
        return method_for(mirror, draw.problem, self._first_step(mirror, draw), self.horizon)

    def _first_step(self, mirror: MirrorMap, draw: Draw) -> float:
        """Return the step length, around the typical one, with which an unlearned method does best."""
        steps = [self.step * 10.0 ** (i / 2) for i in range(-4, 5)]
        if mirror.linear or isinstance(mirror, Euclidean):
            steps = [self.step * factor for factor in (0.25, 0.5, 1.0)]
        short = replace(self.race, most=self.horizon)

        def score(step: float) -> float:
            gaps, _ = short.curve(method_for(mirror, draw.problem, step, self.horizon))
            return float(gaps[-1].clamp(min=1e-9, max=1e9).log().mean())

        return min(steps, key=score)

    def _taught(
        self, candidate: Candidate, method: Method[Any], stage: str, seconds: float, rate: float,
        differentiation: Any = None,
    ) -> float:  # fmt: skip
        """Learn for some seconds, or go on; return the score on the rehearsal problems."""
        objective = Objective("log_gap", floor=self.accuracy / 30)
        objective = objective if differentiation is None else replace(objective, differentiation=differentiation)
        settings = Settings(
            meta_steps=3, batch=self.batch // 2, horizon=self.horizon, objective=objective, step_bounds=None,
            optimiser=Descent(learning_rate=rate), save_every=10, seed=self.seed,
            validation=Validation(every=10, batch=self.batch, horizons=(0.25, 0.5, 1.0), geometric=True),
        )  # fmt: skip
        key = f"{candidate.name}, {stage}"
        steps = self.ledger.once(key, lambda: self._affordable(method, settings, seconds))
        if stage == "first":
            steps = max(steps, FEWEST)
        elif steps < FEWEST:
            return torch.inf  # there is no time for it
        settings = replace(
            settings, meta_steps=steps, validation=replace(settings.validation, every=max(1, steps // 10))
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NothingLearned)  # it is compared with others anyway
            found = learn(
                self.split, method, settings, folder=self.runs / key, resume=self.resume, progress=False
            )  # fmt: skip
        self.say(f"{key}: {steps} meta-steps, score {found.best_validation:.3g}")
        return found.best_validation

    def _affordable(self, method: Method[Any], settings: Settings, seconds: float) -> int:
        """Return how many meta-steps there is time for, by taking a few on a copy; a fifth is left for validation."""
        ends: list[float] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NothingLearned)
            learn(
                self.split, copy.deepcopy(method), settings, progress=False,
                callback=lambda _: ends.append(perf_counter()),
            )  # fmt: skip
        each = ends[1] - ends[0]  # not the last one, which is followed by a validation
        return min(3000, int(0.8 * seconds / max(each, 1e-6)))

    def _entered(self, candidate: Candidate, method: Method[Any]) -> Contestant:
        """Let what was learned run in the rehearsal, safeguarded if that costs little."""
        method.requires_grad_(False)
        plain = self.race.run(method)
        found = Contestant(f"learned, {candidate.name}", method, candidate.name, plain)
        guarded = Safeguarded(method)
        result = self.race.run(guarded)
        if result.solved > plain.solved or result.seconds <= 1.15 * plain.seconds:
            found = replace(found, method=guarded, rehearsal=result)
        self.say(f"{found.name}: {_described(found.rehearsal)}")
        return found

    # The verdict

    def _judged(self, classical: list[Contestant], best: Contestant, learned: list[Contestant]) -> Auto:
        able = [each for each in learned if each.rehearsal.solved >= best.rehearsal.solved]
        ours = min(able, key=lambda each: each.rehearsal.seconds, default=None)
        unseen, proven = self.family.validation(2 * self.batch), True
        if unseen.lower is None:
            lower, proven = reference_of(unseen, min(1e-3, self.accuracy / 100))
            unseen = replace(unseen, lower=lower)
        final = replace(self.race, draw=unseen)
        method, chosen, curves = best.method, False, {}
        for each in (best, ours):
            if each is not None:
                each.unseen = final.run(each.method)
                curves[each.name] = final.curve(each.method, max(10, 2 * each.unseen.most))
        if ours is not None and ours.unseen is not None and best.unseen is not None:
            chosen = ours.rehearsal.beats(best.rehearsal, CLEARLY) and ours.unseen.beats(best.unseen, CLEARLY)
        if ours is not None and chosen:
            method = Relay(ours.method, 2 * max(1, ours.rehearsal.most), best.method)
        proven = proven and self.split.pool.proven and self.split.rehearsal.proven
        words = verdict(self.accuracy, best, ours, chosen, proven)
        contestants = sorted([*classical, *learned], key=lambda each: each.rehearsal.seconds)
        found = Auto(
            self.name, method, chosen, words, self.accuracy, best, ours, contestants, proven,
            self._saved(method, words, best, ours), perf_counter() - self.began, curves,
        )  # fmt: skip
        page(found).write(self.out / f"{self.name}.html")
        self.say(words)
        return found

    def _saved(self, method: Method[Any], words: str, best: Contestant, ours: Contestant | None) -> Path:
        held_out = {
            each.name: {
                "solved": each.unseen.solved,
                "of": each.unseen.count,
                "seconds": each.unseen.seconds if math.isfinite(each.unseen.seconds) else None,
            }
            for each in (best, ours)
            if each is not None and each.unseen is not None
        }
        family = type(self.family)
        card = zoo.Card(
            self.name, words, family=f"{family.__module__}:{family.__qualname__}", held_out=held_out,
            parameters=sum(p.numel() for p in method.parameters()), use={"accuracy": self.accuracy},
        )  # fmt: skip
        self.out.mkdir(parents=True, exist_ok=True)
        return zoo.save(method, self.out / f"{self.name}.safetensors", card)


def _described(result: Result) -> str:
    return f"{result.solved} of {result.count} solved, {result.most} iterations, {_time(result.seconds)}"


def _time(seconds: float) -> str:
    return "too slow" if seconds == torch.inf else f"{1e3 * seconds:.3g} ms"
