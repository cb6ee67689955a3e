"""Attribute the gain of every entry of the zoo to its map, schedules, momentum and start.

On the entry's own held-out problems, parts are taken away one after the other, in this order:

    the learned method  →  without a map, from the same point
                        →  the same from the given start, if a start was learned
                        →  a constant step in place of its schedules  →  without momentum

Each loss, as log₁₀ of the ratio of gaps, is what that part contributes; together they are the gain
over gradient descent with its best constant step. Without a map there are two: the same method with
the best multiple of the identity, whose schedules were learned for the map; and the control
(NAME-control), which has learned its own by the same procedure. A map is worth what it adds to the
stronger of them. Shares depend on the order. Whatever is tuned, is tuned on other problems.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mirrordescent import data, zoo
from mirrordescent._internal import cache
from mirrordescent._internal.files import whole
from mirrordescent.domains import WholeSpace
from mirrordescent.learn import Draw, Pooled, ProblemFamily
from mirrordescent.learn.control import without_map
from mirrordescent.learn.recipe import CONTROL
from mirrordescent.methods import AMD, MD, Equipped, Method, Preconditioned
from mirrordescent.mirrors import ByKind, Conjugate, Euclidean, LearnedPair, MirrorMap
from mirrordescent.oracles import Minibatch, Oracle, Rounded
from mirrordescent.recipes import RECIPES
from mirrordescent.recipes.spectral_maps import AnyTask, TaskFamily
from mirrordescent.recipes.training_tasks import LEARNING, VALIDATION, Task, optimiser_of
from mirrordescent.references import certify
from mirrordescent.schedules import TYPICAL_LENGTH, Interpolated, OverRun
from mirrordescent.solving import solve
from mirrordescent_experiments.intervals import Estimate, paired
from mirrordescent_experiments.provenance import recorded
from mirrordescent_experiments.rebuild import from_summary
from mirrordescent_experiments.result import Result, Table
from mirrordescent_experiments.scales import Say, Scale

PROBLEMS = {"quick": 2, "standard": 16, "paper": 32}
TUNING = 6
MULTIPLES = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.4, 2.0, 2.8, 4.0, 8.0, 16.0, 32.0)
STEPS = tuple(m * 10.0**e for e in (-3, -2, -1, 0) for m in (1, 2, 5))
NETWORK_MULTIPLES = (0.1, 0.2, 0.5, 1.0, 2.0)
NETWORKS = 3
TEST_SEED = 2000
WORST = 1e3  # times the gap of the start: how far a failed run is from the optimum does not matter
LEVEL = 0.975  # of each interval, since an entry may earn its place at either of two counts
QUICK = ("ellipse-denoise-lpd", "ellipse-denoise-stencil", "moons-diagonal")
COSTLY = (
    "mnist-",
    "omniglot-",
)  # what entries begin with that take minutes for each of many settings
PARTS = ("map", "schedules", "momentum", "start")
NO_MAP = "it has no map"
IS_CONTROL = "it is a control"
VERSION = 2  # raised when what is measured changes
UNKNOWN = "unknown"
MULTIPLE = "multiple of the identity"
Runs: TypeAlias = dict[str, Tensor]  # gaps (counts, problems), by what was run


@dataclass(frozen=True)
class Attribution:
    """The gaps of one entry, the contribution of each part, or the reason why it is unknown."""

    entry: str
    counts: Sequence[int | str] = ()
    problems: int = 0
    gaps: dict[str, list[float]] = field(default_factory=dict)
    multiple: float | None = None
    parts: dict[str, list[Estimate]] = field(default_factory=dict)
    why_not: str = ""

    @property
    def earned(self) -> str:
        """The source of the gain: "geometry" if the contribution of the map is significant."""
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


def attribute(
    name: str, problems: int, directory: Path | None, say: Say, every: int = 1
) -> Attribution:
    """Measure one entry; of the grids that are searched only every so-manieth number is tried."""
    method = zoo.load(name)
    card = zoo.card(name)
    if name.endswith(CONTROL):
        return Attribution(name, why_not=IS_CONTROL)
    recipe = RECIPES.get(name)
    if recipe is None or not any(isinstance(part, MirrorMap) for part in method.modules()):
        return Attribution(name, why_not=NO_MAP if recipe else "it has no recipe")
    if isinstance(method, Preconditioned):
        return of_networks(name, directory, say)
    try:
        family = recipe.family(directory)
    except data.DataMissing:
        return Attribution(name, why_not="its data are not there")
    control = f"{name}{CONTROL}"
    bench = Bench(cast(Method[Any], method), _counts(method, card), _oracle(card.use), every)

    def measured() -> Runs:
        held_out = family.validation(problems)
        tuning = _raw(family).draw(torch.arange(TUNING))
        gaps, multiple = bench.all_gaps(bounded(tuning), bounded(held_out), control)
        return gaps | {MULTIPLE: torch.tensor(multiple)}

    gaps = dict(sorted(cache.remember(_key(name, control, problems, every), measured).items()))
    multiple = round(float(gaps.pop(MULTIPLE)), 6)
    say(
        f"{name}: "
        f"{', '.join(f'{what} {float(each[-1].mean()):.3g}' for what, each in gaps.items())}"
    )
    means = {what: each.mean(1).tolist() for what, each in gaps.items()}
    return Attribution(name, bench.counts, problems, means, multiple, _parts(gaps))


def _key(name: str, control: str, problems: int, every: int) -> str:
    """Return what determines the outcome, so that an interrupted run goes on where it was."""
    weights = [zoo.fingerprint(each) for each in (name, control) if each in zoo.list()]
    return cache.key_of(
        "attribution", version=VERSION, entries=" ".join(weights), problems=problems, every=every
    )


def _parts(gaps: Runs) -> dict[str, list[Estimate]]:
    """Return the contributions: log₁₀ of ratios of gaps, with intervals over the problems."""
    there = _stronger(gaps, "same start", "learned control, same start")
    given = _stronger(gaps, "scaled identity", "learned control")
    chain = {"map": (gaps["learned"], there), "start": (there, given)}
    chain |= {"schedules": (given, gaps["constant step"])}
    chain |= {"momentum": (gaps["constant step"], gaps["gradient descent"])}
    return {
        part: [paired((after[i] / before[i]).log10(), LEVEL) for i in range(len(after))]
        for part, (before, after) in chain.items()
    }


def _stronger(gaps: Runs, *names: str) -> Tensor:
    """Return the gaps of the run with the smaller geometric mean, at every count."""
    there = [gaps[name] for name in names if name in gaps]
    return torch.stack(
        [min(rows, key=lambda row: float(row.log().mean())) for rows in zip(*there, strict=True)]
    )


@dataclass(frozen=True)
class Bench:
    """A learned method, the iterations at which it is measured, and its oracle."""

    method: Method[Any]
    counts: Sequence[int]
    oracle: Oracle | None
    every: int = 1

    def all_gaps(self, tuning: Draw, held_out: Draw, control: str) -> tuple[Runs, float]:
        """Run all variants; return gaps and the best multiple of the identity."""

        method = self.method
        plain_oracle = self._plain_oracle
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
            alone = cast(Method[Any], zoo.load(control))
            found["learned control"] = self.gaps(alone, held_out, self.oracle)
            found["learned control, same start"] = self.gaps(alone, there, self.oracle)
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
        self,
        numbers: Sequence[float],
        make: Callable[[float], Method[Any]],
        draw: Draw,
        oracle: Oracle | None,
    ) -> float:
        """Return the number with the smallest gaps at the last count, in the geometric mean."""
        tried = numbers[len(numbers) // 2 % self.every :: self.every]
        ends = {
            number: float(self.gaps(make(number), draw, oracle)[-1].log().mean())
            for number in tried
        }
        return min(ends, key=lambda number: ends[number])

    @torch.no_grad()
    def gaps(self, method: Method[Any], draw: Draw, oracle: Oracle | None) -> Tensor:
        """Return gaps (counts, problems) above rounding, or values if no bounds are known."""
        solution = solve(
            draw.problem,
            method,
            draw.x0,
            iterations=max(self.counts),
            oracle=oracle,
            progress=False,
            generator=torch.Generator().manual_seed(0),
            trace=list(self.counts),
            check_every=max(self.counts),
        )
        lower = 0.0 if draw.lower is None else draw.lower.double()
        start = draw.problem.value(draw.x0).double() - lower
        found = torch.stack([solution.trace.at(k).double() - lower for k in self.counts])
        return torch.maximum(
            torch.minimum(found.nan_to_num(nan=math.inf), WORST * start), 1e-9 * start
        )

    @property
    def _identity(self) -> MirrorMap:
        domain = next(
            part.primal_domain for part in self.method.modules() if isinstance(part, MirrorMap)
        )
        return Euclidean() if isinstance(domain, WholeSpace) else Euclidean(domain)

    @property
    def _plain_oracle(self) -> Oracle | None:
        """Return the oracle for runs without schedules: the method's own, without smoothing."""
        own = next(
            (part.oracle for part in self.method.modules() if isinstance(part, Equipped)), None
        )
        return self.oracle if own is None or isinstance(own, Rounded) else own


def _from_where_it_begins(method: Method[Any], draw: Draw) -> Draw:
    """Return the draw from the point at which a learned start begins; the draw itself without one.

    Stored in the dual, an inexact pair begins at ∇M*(∇M(x₀)), which learning may have made a better
    point.
    """
    scaled = any(
        isinstance(part, Conjugate) and part.log_scale is not None for part in method.modules()
    )
    inexact = not isinstance(method, MD) and any(
        isinstance(part, LearnedPair) for part in method.modules()
    )
    if not scaled and not inexact:
        return draw
    return Draw(draw.problem, method.init(draw.x0, draw.problem).x, draw.lower)


def _with_exact_start(method: Method[Any]) -> Method[Any]:
    exact = copy.deepcopy(method)
    for part in exact.modules():
        if isinstance(part, Conjugate):
            part.start = "exact"
            part.log_scale = None
    if isinstance(exact.mirror, LearnedPair):
        exact.mirror = Conjugate(exact.mirror.backward_potential)
    return exact


def of_networks(
    name: str, directory: Path | None, say: Say, tasks: Sequence[Task] = VALIDATION
) -> Attribution:
    """Measure a geometry for networks by final held-out losses on tasks of validation.

    Without schedules, the steps of the identity are of one length, the best of some; without
    momenta too.
    """
    entry = cast(Preconditioned, zoo.load(name))
    control = (
        cast(Preconditioned, zoo.load(f"{name}{CONTROL}"))
        if f"{name}{CONTROL}" in zoo.list()
        else None
    )
    family = TaskFamily(LEARNING, tuple(tasks), directory)

    def losses(method: Preconditioned, some: tuple[AnyTask, ...], networks: int) -> Tensor:
        def make(model: nn.Module, steps: int) -> tuple[Optimizer, None]:
            return optimiser_of(method, model, steps), None

        runs = [family.log_losses(make, some, TEST_SEED + i) for i in range(networks)]
        return torch.cat(runs).exp().clamp(max=WORST)[None]

    def best(make: Callable[[float], Preconditioned]) -> tuple[float, Preconditioned]:
        scale = min(
            NETWORK_MULTIPLES, key=lambda s: float(losses(make(s), LEARNING, 1).log().mean())
        )
        return scale, make(scale)

    plain = without_map(entry)
    flat = OverRun(TYPICAL_LENGTH, 0.0, 0.0)
    bare = Preconditioned(cast(ByKind, plain.mirror), flat, normalised=True, decay=plain.decay)
    multiple, scaled = best(lambda s: _rescaled(plain, s))
    compared = {
        "learned": entry,
        "identity": plain,
        "same start": scaled,
        "scaled identity": scaled,
        **({} if control is None else {"learned control": control}),
        "constant step": best(lambda s: _rescaled(plain, s, t=flat))[1],
        "gradient descent": best(lambda s: _rescaled(bare, s))[1],
    }
    gaps = {what: losses(method, family.held_out, NETWORKS) for what, method in compared.items()}
    if control is not None:
        gaps["learned control, same start"] = gaps["learned control"]
    geometric_means = {what: float(each.log().mean().exp()) for what, each in gaps.items()}
    say(f"{name}: {', '.join(f'{what} {mean:.3g}' for what, mean in geometric_means.items())}")
    means = {what: each.mean(1).tolist() for what, each in gaps.items()}
    return Attribution(name, ("end",), gaps["learned"].shape[1], means, 1 / multiple, _parts(gaps))


def _rescaled(method: Preconditioned, scale: float, **others: Any) -> Preconditioned:
    """Return a method by kinds of layers with rescaled steps, and other schedules if given."""
    by_kind = cast(ByKind, method.mirror)
    scales = {kind: scale * each for kind, each in by_kind.scales.items()}
    return method.replace(mirror=by_kind.replace(scales=scales), **others).requires_grad_(False)


def _raw(family: ProblemFamily) -> ProblemFamily:
    """Return a family without its pool, whose bounds take long and are not needed."""
    return family.family if isinstance(family, Pooled) else family


def bounded(draw: Draw) -> Draw:
    """Return a draw with certified bounds, if its problems can have some."""
    if draw.lower is not None or not _certifiable(draw):
        return draw
    return Draw(draw.problem, draw.x0, certify(draw.problem, 1e-5).lower)


def _certifiable(draw: Draw) -> bool:
    return draw.problem.saddle_point() is not None or type(draw.problem).__name__ == "SVM"


def _oracle(use: dict[str, Any]) -> Oracle | None:
    return Minibatch(use["minibatch"]) if "minibatch" in use else None


def _counts(method: Any, card: zoo.Card) -> tuple[int, int]:
    """Return when to look: a third and the whole of what was learned, or 10 and 100."""
    steps = getattr(method, "t", None)
    if not isinstance(steps, Interpolated):
        return 10, 100
    horizon = (
        steps.counts[-1] if len(steps.counts) > 1 else card.stages[0]["settings"]["horizon"]
    )  # or one step size
    return horizon // 3, horizon


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Attribute the gain of every entry."""
    return _of(QUICK if scale == "quick" else zoo.list(), scale, directory, say)


def _of(names: Sequence[str], scale: Scale, directory: Path | None, say: Say) -> Result:
    result = Result(
        "attribution", "Where gains come from", {"scale": scale, "problems": PROBLEMS[scale]}
    )
    found = []
    for name in names:
        costly = scale == "standard" and name.startswith(COSTLY) and "svm" not in name
        every = 6 if scale == "quick" else 3 if costly else 1
        found.append(attribute(name, PROBLEMS[scale] // (1 + costly), directory, say, every))
    result.tables = {"gains": gains(found), "gaps": gap_table(found)}
    on_cards = [each for each in found if each.why_not not in (NO_MAP, IS_CONTROL)]
    result.settings["cards"] = {each.entry: each.on_card() for each in on_cards}
    return result


def add_missing(summary: Path, directory: Path | None = None, say: Say = print) -> Result:
    """Attribute the gains of entries that are new or changed, and write them into a summary."""
    stored = from_summary(summary)
    known = stored.provenance["entries"]
    changed = {name for name in zoo.list() if known.get(name) != zoo.fingerprint(name)}
    names = [name for name in zoo.list() if changed & {name, f"{name}{CONTROL}"}]
    with recorded("as in the sources") as where:
        new = _of(names, stored.settings["scale"], directory, say)
    for name, table in stored.tables.items():
        kept = [row for row in table.rows if row[0] not in names]
        rows = sorted(
            [*kept, *new.tables[name].rows], key=lambda row: row[0]
        )  # the order of counts stays
        stored.tables[name] = Table(table.columns, rows)
    stored.settings["cards"] = dict(
        sorted({**stored.settings["cards"], **new.settings["cards"]}.items())
    )
    commits = (
        f"{stored.provenance['commit']}, and {where['commit']} for {', '.join(names)}"
        if names
        else None
    )
    entries = dict(sorted({**stored.provenance["entries"], **where["entries"]}.items()))
    stored.provenance |= {"commit": commits or stored.provenance["commit"], "entries": entries}
    with whole(summary) as partial, whole(summary.with_name("claims.md")) as page:
        partial.write_text(stored.as_json(), encoding="utf-8")
        page.write_text(stored.markdown(), encoding="utf-8")
    return stored


def gains(found: Sequence[Attribution]) -> Table:
    """Return the table of contributions in decades of the gap."""
    rows = []
    for each in found:
        for i, k in enumerate(each.counts or ("",)):
            cells = [str(each.parts[part][i]) if part in each.parts else UNKNOWN for part in PARTS]
            rows.append(
                (
                    each.entry,
                    str(k),
                    *cells,
                    each.earned if each.parts else f"{UNKNOWN}: {each.why_not}",
                )
            )
    return Table(("entry", "k", *PARTS, "its gain is"), rows)


def gap_table(found: Sequence[Attribution]) -> Table:
    """Return the gaps themselves, on average."""
    identities = (
        "identity",
        "same start",
        "scaled identity",
        "learned control",
        "learned control, same start",
    )
    names = ("learned", "exact start", *identities, "constant step", "gradient descent")
    rows = []
    for each in found:
        for i, k in enumerate(each.counts):
            cells = [f"{each.gaps[name][i]:.3g}" if name in each.gaps else "" for name in names]
            rows.append((each.entry, str(k), *cells, f"{each.multiple:g}"))
    return Table(("entry", "k", *names, "best multiple"), rows)
