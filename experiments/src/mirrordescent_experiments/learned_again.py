"""Learn entries again from other seeds, and search for pairs that leave the identity.

Both at a reduced budget, which is the same for every map and for its control, the same method
without a map.

For every recipe and seed, log₁₀(gap of the control/gap of the map) is averaged over held-out
problems; its interval is over the seeds. The search learns pairs of networks through primal-stored
descent, as the paper does, and through dual-stored descent, with several weights of the penalty on
their inconsistency, and with larger and deeper networks.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from mirrordescent import zoo
from mirrordescent._internal import cache
from mirrordescent.learn import Draw, Objective, Recipe, Unrolled
from mirrordescent.learn.settings import Settings
from mirrordescent.learn.trainer import NothingLearned
from mirrordescent.methods import MD, SMD, Method
from mirrordescent.mirrors import ConvICNN, LearnedPair
from mirrordescent.recipes import recipe
from mirrordescent.recipes.image_maps import DUAL_PAIR, PAIR, steps
from mirrordescent.references import certify
from mirrordescent_experiments.attribution_bench import Bench, Problems
from mirrordescent_experiments.intervals import Estimate, paired
from mirrordescent_experiments.result import Claim, Result, Table
from mirrordescent_experiments.scales import Say, Scale

COUNTS = (10, 100)
TASKS = ("photo-inpaint", "ellipse-denoise")
RECIPES = (
    *(f"{task}-{kind}" for task in TASKS for kind in ("pair", "dual-pair", "conjugate", "stencil")),
    *(f"mnist49-svm-{kind}" for kind in ("pair", "conjugate", "quadratic")),
)
WANTED = {
    "dual-pair": 1.5,
    "conjugate": 1.5,
    "stencil": 1.5,
    "quadratic": 3.0,
}  # factors that maps are to be worth
SEARCHED = (
    "pair",
    "own, k = 10",
    "LSMD, k = 10",
    "LSMD, k = 100",
    "worth at 10",
    "worth at 100",
    "inconsistency",
)
COSTLY = {"stencil": 3, "quadratic": 5}  # by what their budget is divided


@dataclass(frozen=True)
class Size:
    """How large it is: meta-steps, seeds, held-out problems, recipes and rows of the search."""

    meta_steps: int
    seeds: int
    problems: int
    recipes: tuple[str, ...] = RECIPES
    searched: int = 100


SIZES: dict[Scale, Size] = {
    "quick": Size(2, 2, 2, ("ellipse-denoise-dual-pair",), 1),
    "standard": Size(300, 3, 16),
    "paper": Size(1200, 3, 32),
}


@dataclass(frozen=True)
class Trial:
    """A trial of the search: the descent, the weight of the penalty, and the networks."""

    through: str
    objective: Objective
    layers: int = 1
    kernel: int = 3

    def __str__(self) -> str:
        own = self.objective
        penalty = (
            f"{own.penalty:g} × {'mean' if own.penalty_norm == 'mean' else 'sum'} over entries"
        )
        return (
            f"{self.through}, {own.weights.replace('_', ' ')}, {penalty}, {self.layers} × "
            f"{self.kernel}²"
        )

    def method(self, channels: int, generator: torch.Generator) -> Method[Any]:
        """Return the method before learning; the forward network has the larger window."""
        make: type[MD] | type[SMD] = MD if self.through == "LMD" else SMD
        forward = ConvICNN(
            channels, filters=16, layers=self.layers, kernel=self.kernel, generator=generator
        )
        backward = ConvICNN(channels, filters=16, layers=self.layers, generator=generator)
        return make(LearnedPair(forward, backward), steps(0.3))


def trials() -> Iterator[Trial]:
    """Yield what is searched: what the paper does first."""
    yield Trial("LMD", PAIR.objective)
    for through in ("LMD", "LSMD"):
        for weight in (1.0, 10.0, 100.0, 1000.0):
            yield Trial(through, Objective("log_gap", penalty=weight, penalty_norm="mean"))
    for through in ("LMD", "LSMD"):
        yield Trial(through, Objective("log_gap", penalty=10.0, penalty_norm="mean"), kernel=7)
    yield Trial("LSMD", Objective("log_gap", penalty=10.0, penalty_norm="mean"), layers=2)


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Learn everything again, or go on where an interrupted run was."""
    size = SIZES[scale]
    settings = {
        "scale": scale,
        **{key: value for key, value in vars(size).items() if key != "recipes"},
    }
    settings |= {f"budget of {kind}": f"1/{share}" for kind, share in COSTLY.items()}
    result = Result("learned-again", "What learning again gives", settings)
    study = _Study(size, directory, say)
    rows = []
    for name in size.recipes:
        shares = study.seeds(name)
        rows += [
            (name, str(k), *(f"{each:.2f}" for each in row), str(paired(row)))
            for k, row in shares.items()
        ]
        result.claims += _claims(name, {k: paired(row) for k, row in shares.items()})
    seeds = [f"seed {i + 1}" for i in range(size.seeds)]
    result.tables["What a map is worth, in decades of the gap, from several seeds"] = Table(
        ("recipe", "k", *seeds, "mean, 95 %"), rows
    )
    for task in TASKS[-1:] if scale == "quick" else TASKS:
        found = [study.searched(task, trial) for trial in list(trials())[: size.searched]]
        result.tables[f"Search for pairs, {task}"] = Table(SEARCHED, found)
    if scale == "quick":
        result.claims = []
    return result


@dataclass(frozen=True)
class _Study:
    size: Size
    directory: Path | None
    say: Say

    def seeds(self, name: str) -> dict[int, Tensor]:
        """Return what the map of a recipe is worth at both counts, seed by seed."""
        held_out = self._held_out(name)
        worth = []
        for seed in range(1, self.size.seeds + 1):
            ours, alone = (
                self._gaps(self._learned(each, seed), held_out)
                for each in (recipe(name), control(name))
            )
            worth.append((alone / ours).log10().mean(1))
            self.say(
                f"{name}, seed {seed}: {', '.join(f'{w:.2f}' for w in worth[-1].tolist())} decades"
            )
        return dict(zip(COUNTS, torch.stack(worth, 1), strict=True))

    def searched(self, task: str, trial: Trial) -> tuple[str, ...]:
        """Return the row of one trial: its gaps in both storages, against the control."""
        base = recipe(f"{task}-dual-pair")
        channels = 3 if task.startswith("photo") else 1
        stage = Unrolled(replace(DUAL_PAIR, objective=trial.objective, optimiser=_optimiser(trial)))
        tried = replace(
            base,
            name=f"{task} {cache.key_of(str(trial))[:12]}",
            stages=(stage,),
            method=lambda generator, family: trial.method(channels, generator),
        )
        held_out = self._held_out(base.name)
        own = self._learned(tried, 1)
        alone = self._learned(control(base.name), 1)
        mirror = cast(LearnedPair, own.mirror)
        gaps, dual, without = (
            self._gaps(each, held_out) for each in (own, SMD(mirror, own.t), alone)
        )
        worth = [paired((a / b).log10()) for a, b in zip(without, dual, strict=True)]
        x0 = torch.as_tensor(held_out.x0)
        relative = float((mirror.inconsistency(x0) / x0.flatten(1).abs().sum(1)).mean())
        self.say(
            f"{task}, {trial}: {float(gaps[0].mean()):.3g}; stored in the dual "
            f"{dual.mean(1).tolist()}"
        )
        means = (f"{float(each.mean()):.3g}" for each in (gaps[0], *dual))
        return str(trial), *means, *map(str, worth), f"{relative:.1%}"

    def _held_out(self, name: str) -> Draw:
        return _held_out(name, self.size.problems, self.directory)

    def _gaps(self, method: Method[Any], draw: Draw) -> Tensor:
        return Bench(method, COUNTS).gaps(method, Problems(draw), None)

    def _learned(self, made: Recipe, seed: int) -> Method[Any]:
        """Learn with the reduced budget, or load what was learned before."""
        meta_steps = self.size.meta_steps // next(
            (n for kind, n in COSTLY.items() if kind in made.name), 1
        )
        changes = [f"meta_steps={max(1, meta_steps)}", f"seed={seed}"]
        version = cache.key_of(
            "learned-again", settings=repr(_settings(made)), changes=str(changes)
        )[:12]
        folder = cache.directory() / f"learned-again-{version}"
        path = folder / f"{made.name}.safetensors"
        if not path.exists():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NothingLearned)  # the numbers tell
                bare = replace(made, evaluate=None)
                bare.train(folder / "runs", folder, self.directory, changes=changes, progress=False)
        return cast(Method[Any], zoo.load(path))


def control(name: str) -> Recipe:
    """Return the recipe of the control of an entry."""
    return recipe(name).control()


@lru_cache(maxsize=2)
def _held_out(name: str, problems: int, directory: Path | None) -> Draw:
    draw = recipe(name).family(directory).validation(problems)
    if draw.lower is not None:
        return draw
    return Draw(draw.problem, draw.x0, certify(draw.problem, 1e-5).lower)


def _optimiser(trial: Trial) -> Any:
    return PAIR.optimiser if trial.objective == PAIR.objective else DUAL_PAIR.optimiser


def _settings(made: Recipe) -> list[Settings]:
    return [stage.settings for stage in made.stages if isinstance(stage, Unrolled)]


def _claims(name: str, worth: dict[int, Estimate]) -> list[Claim]:
    factor = next((factor for kind, factor in WANTED.items() if name.endswith(kind)), 1.0)
    wanted = math.log10(factor)
    times = f"{factor:g} times below" if factor > 1 else "below"
    return [
        Claim.by(
            f"{name}: learned from other seeds, its gap is {times} its control's at k = {k}",
            each.low - wanted,
            each.high - wanted,
            f"decades over seeds {each}",
        )
        for k, each in worth.items()
    ]
