"""Where the gain of every entry of the zoo comes from: its map, its schedules, its momentum, its start.

On the entry's own held-out problems, parts are taken away one after the other, in this order:

    the learned method  →  the best multiple of the identity for its map, from the same point
                        →  the same from the given start, if a start was learned
                        →  a constant step in place of its schedules  →  without momentum

Each loss, as log₁₀ of the ratio of gaps, is what that part contributes; together they are the gain over gradient
descent with its best constant step. Shares depend on this order: schedules were learned together with the map, so a
control that has learned its own (NAME-control) is the fairer one, and stands beside this where there is one.
Whatever is tuned, is tuned on other problems.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from mirrordescent import cache, zoo
from mirrordescent.domains import WholeSpace
from mirrordescent.learn import Draw, Pooled, ProblemFamily
from mirrordescent.learn.control import without_map
from mirrordescent.learn.recipe import CONTROL
from mirrordescent.methods import AMD, MD, Equipped, Method, Preconditioned
from mirrordescent.mirrors import Conjugate, Euclidean, MirrorMap
from mirrordescent.oracles import Minibatch, Oracle, Rounded
from mirrordescent.references import certify
from mirrordescent.schedules import Interpolated
from mirrordescent.solve import solve
from mirrordescent_lab import data
from mirrordescent_lab.experiments.result import Result, Table
from mirrordescent_lab.experiments.scales import Say, Scale
from mirrordescent_lab.intervals import Estimate, paired
from mirrordescent_lab.recipes import RECIPES

PROBLEMS, TUNING = {"quick": 2, "standard": 16, "paper": 32}, 6
MULTIPLES = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0, 2.8, 4.0, 8.0, 16.0, 32.0)
STEPS = tuple(m * 10.0**e for e in (-3, -2, -1, 0) for m in (1, 2, 5))
WORST = 1e3  # times the gap of the start: how far a failed run is from the optimum does not matter
LEVEL = 0.975  # of each interval, since an entry may earn its place at either of two counts
QUICK = ("ellipse-denoise-lpd", "ellipse-denoise-stencil", "moons-diagonal")
# Minutes for each of many settings.
COSTLY = (
    "mnist-cnn-diagonal", "mnist-mlp-spline", "omniglot-diagonal-reptile", "mnist-cnn-diagonal-printed",
    "mnist-mlp-spline-printed", "omniglot-diagonal-reptile-printed",
)  # fmt: skip
PARTS = ("map", "schedules", "momentum", "start")
NO_MAP, IS_CONTROL = "it has no map", "it is a control"
VERSION = 1  # raised when what is measured changes
UNKNOWN, MULTIPLE = "unknown", "multiple of the identity"
Runs: TypeAlias = dict[str, Tensor]  # gaps (counts, problems), by what was run


@dataclass(frozen=True)
class Attribution:
    """What was found about one entry: its gaps, what each part contributes, or why nothing is known."""

    entry: str
    counts: Sequence[int] = ()
    problems: int = 0
    gaps: dict[str, list[float]] = field(default_factory=dict)
    multiple: float | None = None
    parts: dict[str, list[Estimate]] = field(default_factory=dict)
    why_not: str = ""

    @property
    def earned(self) -> str:
        """What the gain is owed to: "geometry" if the map's part is significantly above 0 at one of the counts."""
        if "map" not in self.parts:
            return UNKNOWN
        return "geometry" if any(each.low > 0 for each in self.parts["map"]) else "schedules"

    def on_card(self) -> dict[str, Any]:
        """Return what is written on the card, under ``held_out.control``."""
        if not self.parts:
            return {"gain": UNKNOWN, "why": self.why_not}
        rows = {
            str(k): {
                **{name: float(f"{values[i]:.4g}") for name, values in self.gaps.items()},
                "map, log10": [round(number, 3) for number in self.parts["map"][i].numbers],
            }
            for i, k in enumerate(self.counts)
        }
        best = {"best multiple of the identity": self.multiple}
        return {"gain": self.earned, "problems": self.problems, **best, "gaps": rows}


def attribute(name: str, problems: int, directory: Path | None, say: Say, every: int = 1) -> Attribution:
    """Measure one entry; of the grids that are searched only every so-manieth number is tried."""
    method, card = zoo.load(name), zoo.card(name)
    if name.endswith(CONTROL):
        return Attribution(name, why_not=IS_CONTROL)
    recipe = RECIPES.get(name)
    if recipe is None or not any(isinstance(part, MirrorMap) for part in method.modules()):
        return Attribution(name, why_not=NO_MAP if recipe else "it has no recipe")
    if isinstance(method, Preconditioned):
        return Attribution(name, why_not="it trains any network, one at a time: see network-geometry")
    try:
        family = recipe.family(directory)
    except data.DataMissing:
        return Attribution(name, why_not="its data are not there")
    bench, control = Bench(cast(Method[Any], method), _counts(method), _oracle(card.use), every), f"{name}{CONTROL}"

    def measured() -> Runs:
        held_out, tuning = family.validation(problems), _raw(family).draw(torch.arange(TUNING))
        gaps, multiple = bench.all_gaps(_bounded(tuning), _bounded(held_out), control)
        return gaps | {MULTIPLE: torch.tensor(multiple)}

    gaps = dict(sorted(cache.remember(_key(name, control, problems, every), measured).items()))
    multiple = round(float(gaps.pop(MULTIPLE)), 6)
    say(f"{name}: {', '.join(f'{what} {float(each[-1].mean()):.3g}' for what, each in gaps.items())}")
    means = {what: each.mean(1).tolist() for what, each in gaps.items()}
    return Attribution(name, bench.counts, problems, means, multiple, _parts(gaps))


def _key(name: str, control: str, problems: int, every: int) -> str:
    """Return what determines the outcome, so that an interrupted run goes on where it was."""
    weights = [zoo.fingerprint(each) for each in (name, control) if each in zoo.list()]
    return cache.key_of("attribution", version=VERSION, entries=" ".join(weights), problems=problems, every=every)


def _parts(gaps: Runs) -> dict[str, list[Estimate]]:
    """Return the contributions: log₁₀ of ratios of gaps, with intervals over the problems."""
    chain = {"map": ("learned", "same start"), "start": ("same start", "scaled identity")}
    chain |= {"schedules": ("scaled identity", "constant step"), "momentum": ("constant step", "gradient descent")}
    known = {part: pair for part, pair in chain.items() if all(each in gaps for each in pair)}
    return {
        part: [paired((gaps[after][i] / gaps[before][i]).log10(), LEVEL) for i in range(len(gaps["learned"]))]
        for part, (before, after) in known.items()
    }


@dataclass(frozen=True)
class Bench:
    """A learned method, the iterations it is looked at, and how it asks for gradients unless it says so itself."""

    method: Method[Any]
    counts: Sequence[int]
    oracle: Oracle | None
    every: int = 1

    def all_gaps(self, tuning: Draw, held_out: Draw, control: str) -> tuple[Runs, float]:
        """Run everything on the held-out problems; return gaps and the best multiple of the identity."""

        method, plain_oracle = self.method, self._plain_oracle
        there, rehearsed = (_from_where_it_begins(method, draw) for draw in (held_out, tuning))
        multiple = self.best(MULTIPLES, lambda s: without_map(method, s), rehearsed, self.oracle)
        identity = without_map(method, multiple)
        found = {
            "learned": self.gaps(method, held_out, self.oracle),
            "identity": self.gaps(without_map(method), there, self.oracle),
            "same start": self.gaps(identity, there, self.oracle),
            "scaled identity": self.gaps(identity, held_out, self.oracle),
        }
        if there is not held_out:
            found["exact start"] = self.gaps(_with_exact_start(method), held_out, self.oracle)
        if control in zoo.list():
            found["learned control"] = self.gaps(cast(Method[Any], zoo.load(control)), held_out, self.oracle)
        plain = self._identity
        descent = self.best(STEPS, lambda t: MD(plain, t), tuning, plain_oracle)
        found["gradient descent"] = self.gaps(MD(plain, descent), held_out, plain_oracle)
        found["constant step"] = found["gradient descent"]
        accelerated = next((part for part in self.method.modules() if isinstance(part, AMD)), None)
        if accelerated is not None:
            cap = accelerated.cap
            t = self.best(STEPS, lambda t: AMD(plain, t, cap=cap), tuning, plain_oracle)
            found["constant step"] = self.gaps(AMD(plain, t, cap=cap), held_out, plain_oracle)
        return found, multiple

    def best(
        self, numbers: Sequence[float], make: Callable[[float], Method[Any]], draw: Draw, oracle: Oracle | None
    ) -> float:
        """Return the number with the smallest gaps at the last count, in the geometric mean."""
        tried = numbers[len(numbers) // 2 % self.every :: self.every]
        ends = {number: float(self.gaps(make(number), draw, oracle)[-1].log().mean()) for number in tried}
        return min(ends, key=lambda number: ends[number])

    @torch.no_grad()
    def gaps(self, method: Method[Any], draw: Draw, oracle: Oracle | None) -> Tensor:
        """Return gaps at the counts, or values where no bounds are known: (counts, problems), none below rounding."""
        solution = solve(
            draw.problem, method, draw.x0, iterations=max(self.counts), oracle=oracle, progress=False,
            generator=torch.Generator().manual_seed(0), trace=list(self.counts), check_every=max(self.counts),
        )  # fmt: skip
        lower = 0.0 if draw.lower is None else draw.lower.double()
        start = draw.problem.value(draw.x0).double() - lower
        found = torch.stack([solution.trace.at(k).double() - lower for k in self.counts])
        return torch.maximum(torch.minimum(found.nan_to_num(nan=math.inf), WORST * start), 1e-9 * start)

    @property
    def _identity(self) -> MirrorMap:
        domain = next(part.primal_domain for part in self.method.modules() if isinstance(part, MirrorMap))
        return Euclidean() if isinstance(domain, WholeSpace) else Euclidean(domain)

    @property
    def _plain_oracle(self) -> Oracle | None:
        """What gradients are asked for without schedules: the method's own way, but without rounded kinks."""
        own = next((part.oracle for part in self.method.modules() if isinstance(part, Equipped)), None)
        return self.oracle if own is None or isinstance(own, Rounded) else own


def _from_where_it_begins(method: Method[Any], draw: Draw) -> Draw:
    """Return the draw from the point at which a learned start begins; the draw itself without one."""
    if not any(isinstance(part, Conjugate) and part.log_scale is not None for part in method.modules()):
        return draw
    return Draw(draw.problem, method.init(draw.x0, draw.problem).x, draw.lower)


def _with_exact_start(method: Method[Any]) -> Method[Any]:
    exact = copy.deepcopy(method)
    for part in exact.modules():
        if isinstance(part, Conjugate):
            part.start, part.log_scale = "exact", None
    return exact


def _raw(family: ProblemFamily) -> ProblemFamily:
    """Return a family without its pool, whose bounds take long and are not needed."""
    return family.family if isinstance(family, Pooled) else family


def _bounded(draw: Draw) -> Draw:
    """Return a draw with certified bounds, if its problems can have some."""
    if draw.lower is not None or not _certifiable(draw):
        return draw
    return Draw(draw.problem, draw.x0, certify(draw.problem, 1e-5).lower)


def _certifiable(draw: Draw) -> bool:
    return draw.problem.saddle_point() is not None or type(draw.problem).__name__ == "SVM"


def _oracle(use: dict[str, Any]) -> Oracle | None:
    return Minibatch(use["minibatch"]) if "minibatch" in use else None


def _counts(method: Any) -> tuple[int, int]:
    """Return when to look: a tenth and the whole of what was learned, or 10 and 100."""
    steps = getattr(method, "t", None)
    return (steps.counts[-1] // 3, steps.counts[-1]) if isinstance(steps, Interpolated) else (10, 100)


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Attribute the gain of every entry."""
    result = Result("attribution", "Where gains come from", {"scale": scale, "problems": PROBLEMS[scale]})
    names, every = (QUICK, 6) if scale == "quick" else (zoo.list(), 1)
    found = []
    for name in names:
        if scale == "standard" and name in COSTLY:
            found.append(Attribution(name, why_not="training networks takes long: at the scale paper"))
        else:
            found.append(attribute(name, PROBLEMS[scale], directory, say, every))
    result.tables = {"gains": gains(found), "gaps": gap_table(found)}
    on_cards = [each for each in found if each.why_not not in (NO_MAP, IS_CONTROL)]
    result.settings["cards"] = {each.entry: each.on_card() for each in on_cards}
    return result


def gains(found: Sequence[Attribution]) -> Table:
    """Return the table of contributions, in decades of the gap; what is not known is said to be unknown."""
    rows = []
    for each in found:
        for i, k in enumerate(each.counts or ("",)):
            cells = [str(each.parts[part][i]) if part in each.parts else UNKNOWN for part in PARTS]
            rows.append((each.entry, str(k), *cells, each.earned if each.parts else f"{UNKNOWN}: {each.why_not}"))
    return Table(("entry", "k", *PARTS, "its gain is"), rows)


def gap_table(found: Sequence[Attribution]) -> Table:
    """Return the gaps themselves, on average."""
    alone = ("identity", "same start", "scaled identity", "learned control", "constant step", "gradient descent")
    names = ("learned", "exact start", *alone)
    rows = []
    for each in found:
        for i, k in enumerate(each.counts):
            cells = [f"{each.gaps[name][i]:.3g}" if name in each.gaps else "" for name in names]
            rows.append((each.entry, str(k), *cells, f"{each.multiple:g}"))
    return Table(("entry", "k", *names, "best multiple"), rows)
