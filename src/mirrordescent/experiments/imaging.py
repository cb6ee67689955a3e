"""The imaging experiments, sections 5.2 and 5.3: denoising of ellipse phantoms and inpainting of photographs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch

from mirrordescent import data, zoo
from mirrordescent.experiments.claims import imaging_claims
from mirrordescent.experiments.contest import (
    BASELINES,
    CLASSICAL,
    EARLY_CLASSICAL,
    TUNED_AT,
    Contest,
    Tunable,
    recorded_iterations,
)
from mirrordescent.experiments.result import Curve, Result
from mirrordescent.methods import AMD, ASMD, MD, SMD, DualFISTA, Method
from mirrordescent.mirrors import MirrorMap
from mirrordescent.oracles import Noisy, Oracle
from mirrordescent.problems import TVDenoising, TVInpainting
from mirrordescent.references import certify
from mirrordescent.schedules import Extension, Prefix

Scale = Literal["quick", "standard", "paper"]
LEARNED: dict[str, Callable[[MirrorMap, Prefix], Method[Any]]] = {"LMD": MD, "LSMD": SMD, "LAMD": AMD, "LASMD": ASMD}
STOCHASTIC = ("LSMD", "LASMD")


@dataclass(frozen=True)
class Size:
    """How large an experiment is."""

    problems: int
    extension_problems: int
    iterations: int
    side: int


@dataclass(frozen=True)
class Task:
    """A kind of imaging problem: what it is called, its learned entries, and how its problems are made."""

    name: str
    title: str
    entry: str
    sizes: dict[Scale, Size]
    make: Callable[[int, int, bool, Path | None], TVInpainting]
    noise: float

    def learned(self, kind: str = "") -> Method[Any]:
        """Return the zoo's method of a kind: "" for the pair, "conjugate", "lpd"."""
        return cast(Method[Any], zoo.load(f"{self.entry}-{kind}" if kind else self.entry))


def inpainting(count: int, side: int, training: bool, directory: Path | None) -> TVInpainting:
    """Tiles of photographs, one fixed mask with a fifth missing, noise 0.05 on all channels after masking."""
    source, split = ("bsds500", "train") if training else ("stl10", "test")
    try:
        images = data.photographs(source, cast(Any, split), side, directory)
    except data.DataMissing:
        images = data.photographs("bundled", "train" if training else "test", side)
    chosen = images[:: max(1, len(images) // count)][:count]
    generator = torch.Generator().manual_seed(int(training))
    mask = torch.rand(side, side, generator=torch.Generator().manual_seed(7)) >= 0.2
    return TVInpainting(mask * chosen + 0.05 * torch.randn(chosen.shape, generator=generator), mask)


def denoising(count: int, side: int, training: bool, directory: Path | None) -> TVInpainting:
    """Tomographic reconstructions of random ellipses."""
    _, noisy = data.noisy_phantoms(count, side, seed=3 if training else 4)
    return TVDenoising(noisy)


TASKS = {
    "inpaint": Task(
        "inpaint",
        "TV inpainting of photographs",
        "photo-inpaint",
        {"quick": Size(2, 1, 60, 24), "standard": Size(16, 4, 2000, 96), "paper": Size(64, 8, 2000, 96)},
        inpainting,
        noise=0.0,
    ),
    "denoise": Task(
        "denoise",
        "TV denoising of ellipse phantoms",
        "ellipse-denoise",
        {"quick": Size(2, 1, 60, 32), "standard": Size(10, 4, 2000, 128), "paper": Size(50, 10, 2000, 128)},
        denoising,
        noise=0.05,
    ),
}


def run(task: Task, scale: Scale, directory: Path | None = None, say: Callable[[str], object] = print) -> Result:
    """Compare all methods on one task: the extensions on a few problems, the best of them on all."""
    size = task.sizes[scale]
    result = Result(task.name, task.title, {"scale": scale, **vars(size), "gradient noise": task.noise})
    problem, training = (task.make(size.problems, size.side, split, directory) for split in (False, True))
    starts = {"from y": False, "from y filled": True} if problem.mask is not None else {"from y": False}
    few = _first(_contest(problem, False, size.iterations), size.extension_problems)
    best = _extensions(task, result, few, say)
    for start, fill in starts.items():
        contest, rehearsal = (_contest(p, fill, size.iterations) for p in (problem, training))
        curves = [
            contest.run(f"{method} ({rule})", _with_rule(task, method, rule), _oracle(task, method))
            for method, rule in best.items()
        ]
        say(f"{start}: learned pairs done")
        conjugate = task.learned("conjugate")
        curves += [
            contest.run(f"one-network {method}", _rebuild(conjugate, method, rule), _oracle(task, method))
            for method, rule in best.items()
            if method != "LMD"
        ]
        say(f"{start}: one-network maps done")
        curves += [_tuned(contest, rehearsal, tunable) for tunable in (*BASELINES, CLASSICAL)]
        curves.append(_tuned(contest, rehearsal, EARLY_CLASSICAL, at=10))
        curves.append(contest.run("LPD", task.learned("lpd")))
        if problem.F_convexity > 0:
            curves.append(contest.run("dual FISTA", DualFISTA()))
        say(f"{start}: baselines done")
        result.panels[f"comparison {start}"] = curves
    if scale != "quick":
        result.claims = imaging_claims(result)
    return result


def _contest(problem: TVInpainting, fill: bool, iterations: int) -> Contest:
    return Contest(
        problem, problem.start(fill=fill), certify(problem).lower, iterations, recorded_iterations(iterations)
    )


def _first(contest: Contest, count: int) -> Contest:
    """Return the same contest on the first problems only."""
    problem = cast(TVInpainting, contest.problem)
    mask = problem.mask if problem.mask is None or len(problem.mask) == 1 else problem.mask[:count]
    few = TVInpainting(problem.y[:count], mask, problem.weight, problem.scale)
    return Contest(few, contest.x0[:count], contest.lower[:count], contest.iterations, contest.recorded)


def _extensions(task: Task, result: Result, contest: Contest, say: Callable[[str], object]) -> dict[str, Extension]:
    """Run every learned method with every extension rule; return the best rule of each at the end."""
    best: dict[str, Extension] = {}
    for method in LEARNED:
        curves = {
            rule: contest.run(rule, _with_rule(task, method, rule), _oracle(task, method))
            for rule in cast(tuple[Extension, ...], get_args(Extension))
        }
        result.panels[f"{method} extensions"] = list(curves.values())
        last = contest.recorded[-1]
        best[method] = min(curves, key=lambda rule: _or_infinite(curves[rule].mean_at(last)))
        say(f"extensions of {method} done, best is {best[method]}")
    return best


def _with_rule(task: Task, method: str, rule: Extension) -> Method[Any]:
    return _rebuild(task.learned(), method, rule)


def _rebuild(learned: Method[Any], method: str, rule: Extension) -> Method[Any]:
    """Use the map and the step sizes of a learned method in another one, with an extension rule."""
    steps = cast(Prefix, learned.t)
    return LEARNED[method](cast(MirrorMap, learned.mirror), Prefix(steps.values.detach(), rule))


def _oracle(task: Task, method: str) -> Oracle | None:
    return Noisy(task.noise) if task.noise > 0 and method in STOCHASTIC else None


def _tuned(contest: Contest, rehearsal: Contest, tunable: Tunable, at: int = TUNED_AT) -> Curve:
    setting = rehearsal.tune(tunable, at=min(at, rehearsal.iterations))
    return contest.run(f"{tunable.name} ({setting:g})", tunable.make(setting))


def _or_infinite(number: float) -> float:
    return number if number == number else float("inf")
