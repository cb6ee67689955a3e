"""Sections 5.2 and 5.3: denoising of ellipse phantoms and inpainting of photographs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mirrordescent import zoo
from mirrordescent.contests.contest import Contest
from mirrordescent.contests.image_contests import denoising, imaging_contest, inpainting
from mirrordescent.diagnosis.entries import DUAL_STORED, LEARNED
from mirrordescent.learn.recipe import CONTROL
from mirrordescent.methods import DualFISTA, Method
from mirrordescent.oracles import Noisy
from mirrordescent.problems import TVInpainting
from mirrordescent.schedules import Extension
from mirrordescent_experiments.baselines import BASELINES, CLASSICAL, EARLY_CLASSICAL, WIDE_NESTEROV
from mirrordescent_experiments.claims import imaging_claims
from mirrordescent_experiments.extensions import (
    CONTROLLED,
    NO_MAP,
    SHOWN,
    beside_controls,
    choose_rules,
    rebuild,
    with_controls,
    with_rules,
)
from mirrordescent_experiments.result import WIDTH, Curve, Panel, Result
from mirrordescent_experiments.scales import Say, Scale

KINDS = {"": "pair", "dual-pair ": "dual-pair", "one-network ": "conjugate"}
METHODS = {"": tuple(LEARNED), "dual-pair ": CONTROLLED, "one-network ": DUAL_STORED}
LONG = 10_000  # iterations over which one-network maps are to stay bounded


@dataclass(frozen=True)
class Size:
    """How large an experiment is."""

    problems: int
    extension_problems: int
    iterations: int
    side: int


@dataclass(frozen=True)
class Task:
    """A kind of imaging problem: its name, its learned entries, and its problems."""

    name: str
    title: str
    entry: str
    sizes: dict[Scale, Size]
    make: Callable[[int, int, bool, Path | None], TVInpainting]
    noise: Noisy | None

    def learned(self, kind: str = "pair") -> Method[Any]:
        """Return the method of the zoo of a kind, such as "pair" or "stencil"."""
        return cast(Method[Any], zoo.load(f"{self.entry}-{kind}"))

    def by_label(self, label: str) -> Method[Any]:
        """Return the learned method of a label."""
        return self.learned(KINDS[label])

    def control(self, label: str) -> Method[Any]:
        """Return the control of the learned method of a label."""
        return self.learned(f"{KINDS[label]}{CONTROL}")


TASKS = {
    "inpaint": Task(
        "inpaint",
        "TV inpainting of photographs",
        "photo-inpaint",
        {
            "quick": Size(2, 1, 30, 24),
            "standard": Size(10, 2, 2000, 96),
            "paper": Size(20, 5, 2000, 96),
        },
        inpainting,
        noise=None,
    ),
    "denoise": Task(
        "denoise",
        "TV denoising of ellipse phantoms",
        "ellipse-denoise",
        {
            "quick": Size(2, 1, 30, 32),
            "standard": Size(10, 2, 2000, 128),
            "paper": Size(20, 5, 2000, 128),
        },
        denoising,
        noise=Noisy(0.05),
    ),
}


def run(task: Task, scale: Scale, directory: Path | None, say: Say) -> Result:
    """Compare all methods on one task; settings are chosen on training problems."""
    size = task.sizes[scale]
    noise = 0.0 if task.noise is None else task.noise.sigma
    result = Result(task.name, task.title, {"scale": scale, **vars(size), "gradient noise": noise})
    problem, training = (
        task.make(size.problems, size.side, split, directory) for split in (False, True)
    )
    few = imaging_contest(_first(training, size.extension_problems), False, size.iterations)
    result.panels, rules = choose_rules(task.by_label, few, task.noise, METHODS)
    _, control_rules = choose_rules(
        task.control, few, task.noise, dict.fromkeys(METHODS, CONTROLLED)
    )
    say(f"best extensions: {', '.join(f'{name} {rule}' for name, rule in rules.items())}")
    for start, fill in {"from y": False, "from y filled": True}.items():
        if fill and problem.mask is None:
            continue
        contest, rehearsal = (
            imaging_contest(p, fill, size.iterations) for p in (problem, training)
        )
        result.settings[WIDTH] = float(f"{contest.width:.3g}")
        learned = [contest.run(*each) for each in with_rules(task.by_label, rules, task.noise)]
        learned.append(contest.run("stencil LAMD", task.learned("stencil")))
        panel = Panel(learned + _rivals(task, contest, rehearsal))
        alone = with_rules(task.control, control_rules, task.noise, NO_MAP)
        without = [contest.run(*each) for each in alone]
        without.append(contest.run(f"stencil LAMD{NO_MAP}", task.learned(f"stencil{CONTROL}")))
        result.panels[f"comparison {start}"] = with_controls(panel, without, SHOWN)
        result.panels[f"controls {start}"] = beside_controls(panel, without)
        result.panels[f"one image {start}"] = Panel([curve.of_run(0) for curve in panel.curves])
        say(f"comparison {start} done")
    if scale != "quick":
        result.panels["one network for long"] = _for_long(
            task, rules, _first(problem, size.extension_problems)
        )
        result.claims = imaging_claims(result)
    return result


def _rivals(task: Task, contest: Contest, rehearsal: Contest) -> list[Curve]:
    """Run the tuned baselines, the learned primal-dual scheme and the classical solvers."""
    curves = [
        contest.run_tuned(tunable, rehearsal) for tunable in (*BASELINES, WIDE_NESTEROV, CLASSICAL)
    ]
    curves.append(contest.run_tuned(EARLY_CLASSICAL, rehearsal, at=10))
    curves.append(contest.run("LPD", task.learned("lpd")))
    if cast(TVInpainting, contest.problem).F_convexity > 0:
        curves.append(contest.run("dual FISTA", DualFISTA()))
    return curves


def _for_long(task: Task, rules: dict[str, Extension], problem: TVInpainting) -> Panel:
    """Run the one-network methods without noise for many iterations."""
    contest = imaging_contest(problem, False, LONG)
    learned = task.learned("conjugate")
    return Panel(
        [
            contest.run(f"one-network {name}", rebuild(learned, name, rules[f"one-network {name}"]))
            for name in ("LSMD", "LAMD")
        ]
    )


def _first(problem: TVInpainting, count: int) -> TVInpainting:
    """Return the first few of a batch of problems, which share their mask."""
    return TVInpainting(problem.y[:count], problem.mask, problem.weight, problem.scale)
