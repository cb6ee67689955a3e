"""Attribute the gain of every entry of the zoo to its map, schedules, momentum and start.

On the entry's own held-out problems, parts are taken away one after the other, in this order:

    the learned method  →  without a map, from the same point
                        →  the same from the given start, if a start was learned
                        →  a constant step in place of its schedules  →  without momentum

Each loss, as log₁₀ of the ratio of gaps, is what that part contributes; together they are the gain
over gradient descent with its best constant step.

Without a map there are several methods: the same method with a multiple of the identity, the
control (NAME-control), which has learned its own schedules by the same procedure, and the controls
of other entries for the same problems. At every count the strongest of them is chosen on tuning
problems, and the map is worth what it adds to that one on held-out problems. Whatever else is tuned
is also tuned at every count, on the tuning problems. Shares depend on the order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mirrordescent import data, zoo
from mirrordescent._internal import cache
from mirrordescent._internal.files import whole
from mirrordescent.learn import Pooled, ProblemFamily
from mirrordescent.learn.control import without_map
from mirrordescent.learn.recipe import CONTROL
from mirrordescent.methods import Method, Preconditioned
from mirrordescent.mirrors import ByKind, MirrorMap
from mirrordescent.oracles import Minibatch, Oracle
from mirrordescent.recipes import RECIPES
from mirrordescent.recipes.spectral_maps import AnyTask, TaskFamily
from mirrordescent.recipes.training_tasks import LEARNING, VALIDATION, Task, optimiser_of
from mirrordescent.schedules import TYPICAL_LENGTH, Interpolated, OverRun
from mirrordescent_experiments.attribution_bench import (
    WORST,
    Bench,
    Choice,
    Measured,
    Runs,
    certified,
)
from mirrordescent_experiments.intervals import Estimate, paired
from mirrordescent_experiments.provenance import recorded
from mirrordescent_experiments.rebuild import from_summary
from mirrordescent_experiments.result import Result, Table
from mirrordescent_experiments.scales import Say, Scale

PROBLEMS = {"quick": 2, "standard": 16, "paper": 32}
TUNING = 8
NETWORK_MULTIPLES = (0.1, 0.2, 0.5, 1.0, 2.0)
NETWORKS = 3
TEST_SEED = 2000
EARLY = (10, 100)
ENDS = {
    "ellipse-denoise-": 2000,
    "photo-inpaint-": 2000,
    "mnist49-svm-": 2000,
    "image-tv": 1000,
    "ellipse-tomography": 480,
}
"""The last count by the beginning of an entry's name: that of the paper's figures if there is one.
An entry that was learned for runs of one length is measured at its end.
"""
KINDS = ("ellipse-denoise-", "photo-inpaint-", "mnist49-svm-", "moons-", "image-tv")
"""Beginnings of the names of entries for the same problems."""
ANY_IMAGE = "image-tv-control"
ANY_IMAGE_FOR = ("ellipse-denoise-", "photo-inpaint-", "image-tv")
"""Kinds of problems that the control of ``image-tv`` solves as well."""
QUICK = ("ellipse-denoise-lpd", "ellipse-denoise-stencil", "moons-diagonal")
COARSE = ("mnist", "omniglot-")
"""Beginnings of the names of entries for which every third number of a grid is tried."""
FEWER = ("mnist-", "omniglot-")
"""Beginnings of the names of entries that are measured on half as many problems."""
PARTS = ("map", "schedules", "momentum", "start")
NO_MAP = "it has no map"
IS_CONTROL = "it is a control"
VERSION = 3
"""Version of what is measured. An entry measured by another one is measured again."""
GEOMETRY = "geometry"
SCHEDULES = "schedules"
MIXED = "mixed"
NO_CONTROL = "no learned control"
UNKNOWN = "unknown"
UNMEASURED = "not measured by this rule"
OWN_CONTROL = "its control"
AGAINST_CONTROL = "map, against its own control"
LIMITED = ", limited by the reference"
"""Mark of a count at which a gap is near the accuracy of the certified optimum."""
FACT = "fact: "
"""Beginning of the names of the tensors in the cache that are not gaps."""


@dataclass(frozen=True)
class Attribution:
    """The gaps of one entry and the contribution of each part, or the reason why it is unknown.

    Args:
        entry: Name of the entry.
        counts: Counts of iterations.
        problems: Number of held-out problems.
        gaps: Mean gaps at every count, by what was run.
        controls: Strongest method without a map at every count.
        multiples: Best multiple of the identity at every count.
        limited: Whether the gaps of a count are limited by the accuracy of the certified optimum.
        parts: Contributions at every count in decades.
        against_control: Decades by which the method is ahead of its control, learned with the same
            budget; empty if there is none.
        why_not: Reason why nothing is known.
    """

    entry: str
    counts: Sequence[int | str] = ()
    problems: int = 0
    gaps: dict[str, list[float]] = field(default_factory=dict)
    controls: Sequence[str] = ()
    multiples: Sequence[float] = ()
    limited: Sequence[bool] = ()
    parts: dict[str, list[Estimate]] = field(default_factory=dict)
    against_control: Sequence[Estimate] = ()
    why_not: str = ""

    @property
    def earned(self) -> str:
        """The source of the gain.

        "geometry" if the interval of the map is above 0 at a count and below 0 at none. "mixed" if
        it is above 0 at one and below 0 at another. "no learned control" if it would be geometry,
        but no control was learned with the same budget. Else "schedules".
        """
        if "map" not in self.parts:
            return UNKNOWN
        helps = any(each.low > 0 for each in self.parts["map"])
        harms = any(each.high < 0 for each in self.parts["map"])
        if not helps:
            return SCHEDULES
        if harms:
            return MIXED
        return GEOMETRY if self.against_control else NO_CONTROL

    def on_card(self) -> dict[str, Any]:
        """Return what is written on the card, under ``held_out.control``."""
        if not self.parts:
            gain = UNMEASURED if self.why_not == UNMEASURED else UNKNOWN
            return {"gain": gain, "why": self.why_not}
        rows = {
            str(k): {
                **{name: float(f"{values[i]:.4g}") for name, values in self.gaps.items()},
                "map, log10": [round(number, 3) for number in self.parts["map"][i].numbers],
                "strongest without a map": self.controls[i],
                "best multiple of the identity": self.multiples[i],
            }
            for i, k in enumerate(self.counts)
        }
        return {"gain": self.earned, "problems": self.problems, "gaps": rows}


def attribute(
    name: str, problems: int, directory: Path | None, say: Say, every: int = 1
) -> Attribution:
    """Measure one entry, or return what was measured before.

    Args:
        name: Name of the entry.
        problems: Number of held-out problems.
        directory: Data directory.
        say: Function that reports the outcome.
        every: Only every so-many-th number of a grid is tried.
    """
    method = zoo.load(name)
    card = zoo.card(name)
    if reason := why_unknown(name, method):
        return Attribution(name, why_not=reason)
    if isinstance(method, Preconditioned):
        return of_networks(name, directory, say)
    rivals = controls_for(name)
    counts = _counts(name, method, card)

    def measured() -> Measured:
        family = RECIPES[name].family(directory)
        held_out = certified(family.validation(problems))
        tuning = certified(_raw(family).draw(torch.arange(min(problems, TUNING))))
        real = isinstance(held_out.draw.x0, Tensor)
        loaded = {each: (_loaded(each, real), _oracle(zoo.card(each).use)) for each in rivals}
        bench = Bench(_loaded(name, real), counts, _oracle(card.use), loaded, every)
        return bench.measure(tuning, held_out)

    key = _key([name, *rivals], problems=problems, every=every, counts=str(counts))
    try:
        found = _remembered(key, rivals, measured)
    except data.DataMissing:
        return Attribution(name, why_not="its data are not there")
    return _attribution(name, counts, found, say)


def why_unknown(name: str, method: nn.Module) -> str:
    """Return why an entry has no map whose worth could be measured, or an empty text."""
    if name.endswith(CONTROL):
        return IS_CONTROL
    if name not in RECIPES:
        return "it has no recipe"
    return "" if any(isinstance(part, MirrorMap) for part in method.modules()) else NO_MAP


def controls_for(name: str) -> list[str]:
    """Return the methods of the zoo that were learned without a map for an entry's problems.

    >>> controls_for("image-tv-deblur")
    ['image-tv-control']
    """
    kind = next((each for each in KINDS if name.startswith(each)), name)
    found = [each for each in zoo.list() if each.startswith(kind) and each.endswith(CONTROL)]
    if kind in ANY_IMAGE_FOR:
        found.append(ANY_IMAGE)
    return sorted(set(found))


def _loaded(name: str, double: bool) -> Method[Any]:
    method = cast(Method[Any], zoo.load(name))
    return method.double() if double else method


def _key(entries: Sequence[str], **settings: int | str) -> str:
    """Return what determines the outcome, so that an interrupted run goes on where it was."""
    weights = [zoo.fingerprint(each) for each in entries if each in zoo.list()]
    return cache.key_of("attribution", version=VERSION, entries=" ".join(weights), **settings)


def _remembered(key: str, rivals: Sequence[str], measure: Callable[[], Measured]) -> Measured:
    """Return what was measured, from the cache if it is there.

    The cache keeps tensors. A chosen control is stored as its index among the rivals, and a
    multiple of the identity as −1.
    """

    def stored() -> dict[str, Tensor]:
        new = measure()
        index = [rivals.index(each) if each in rivals else -1 for each in new.controls]
        facts = {
            f"{FACT}control": torch.tensor(index),
            f"{FACT}multiple": torch.tensor(new.multiples, dtype=torch.float64),
            f"{FACT}limited": torch.tensor(new.limited),
        }
        return new.gaps | facts

    found = dict(sorted(cache.remember(key, stored).items()))
    index, limited, multiple = (
        found.pop(f"{FACT}{fact}").tolist() for fact in ("control", "limited", "multiple")
    )
    controls = [
        rivals[each] if each >= 0 else str(Choice(multiple=number))
        for each, number in zip(index, multiple, strict=True)
    ]
    return Measured(found, controls, multiple, limited)


def _attribution(name: str, counts: Sequence[int | str], found: Measured, say: Say) -> Attribution:
    """Return the contributions that follow from gaps, and report them."""
    own = found.gaps.get(f"{name}{CONTROL}")
    means = {what: each.mean(1).tolist() for what, each in found.gaps.items()}
    result = Attribution(
        name,
        counts,
        found.gaps["learned"].shape[1],
        means,
        found.controls,
        found.multiples,
        found.limited,
        contributions(found.gaps),
        () if own is None else decades(own, found.gaps["learned"]),
    )
    worth = [
        f"{each} against {control} at {k}"
        for each, control, k in zip(result.parts["map"], found.controls, counts, strict=True)
    ]
    say(f"{name}: {result.earned}; {', '.join(worth)}")
    return result


def contributions(gaps: Runs) -> dict[str, list[Estimate]]:
    """Return the contributions: log₁₀ of ratios of gaps, with intervals over the problems.

    The intervals of all counts hold together with 95 % probability.
    """
    there = gaps["strongest"]
    given = gaps["strongest, given start"]
    chain = {
        "map": (gaps["learned"], there),
        "start": (there, given),
        "schedules": (given, gaps["constant step"]),
        "momentum": (gaps["constant step"], gaps["gradient descent"]),
    }
    return {part: decades(after, before) for part, (before, after) in chain.items()}


def decades(above: Tensor, below: Tensor) -> list[Estimate]:
    """Return log₁₀ of the ratio of gaps (counts, problems) at every count."""
    level = 1 - 0.05 / len(above)
    return [paired((a / b).log10(), level) for a, b in zip(above, below, strict=True)]


def of_networks(
    name: str, directory: Path | None, say: Say, tasks: Sequence[Task] = VALIDATION
) -> Attribution:
    """Measure a geometry for networks by final held-out losses on tasks of validation.

    Without schedules, the steps of the identity are of one length, the best of some; without
    momenta too. Everything is chosen on the tasks of learning.
    """
    control = f"{name}{CONTROL}"
    rivals = [control] if control in zoo.list() else []

    def measured() -> Measured:
        return _networks_measured(name, rivals, TaskFamily(LEARNING, tuple(tasks), directory))

    key = _key([name, *rivals], tasks=" ".join(str(task) for task in tasks), networks=NETWORKS)
    found = _remembered(key, rivals, measured)
    return _attribution(name, ("end",), found, say)


def _networks_measured(name: str, rivals: Sequence[str], family: TaskFamily) -> Measured:
    entry = cast(Preconditioned, zoo.load(name))

    def losses(method: Preconditioned, some: tuple[AnyTask, ...], networks: int) -> Tensor:
        def make(model: nn.Module, steps: int) -> tuple[Optimizer, None]:
            return optimiser_of(method, model, steps), None

        runs = [family.log_losses(make, some, TEST_SEED + i) for i in range(networks)]
        return torch.cat(runs).exp().clamp(max=WORST)[None]

    def tuning_loss(method: Preconditioned) -> float:
        return float(losses(method, LEARNING, 1).log().mean())

    def best(make: Callable[[float], Preconditioned]) -> tuple[float, float]:
        ends = {s: tuning_loss(make(s)) for s in NETWORK_MULTIPLES}
        scale = min(ends, key=lambda s: ends[s])
        return scale, ends[scale]

    plain = without_map(entry)
    flat = OverRun(TYPICAL_LENGTH, 0.0, 0.0)
    bare = Preconditioned(cast(ByKind, plain.mirror), flat, normalised=True, decay=plain.decay)
    scale, loss = best(lambda s: _rescaled(plain, s))
    multiple = 1 / scale
    ends = {str(Choice(multiple=multiple)): loss}
    compared = {"learned": entry, "identity": plain, "best multiple": _rescaled(plain, scale)}
    for rival in rivals:
        compared[rival] = cast(Preconditioned, zoo.load(rival))
        ends[rival] = tuning_loss(compared[rival])
    strongest = min(ends, key=lambda each: ends[each])
    steps, _ = best(lambda s: _rescaled(plain, s, t=flat))
    compared["constant step"] = _rescaled(plain, steps, t=flat)
    steps, _ = best(lambda s: _rescaled(bare, s))
    compared["gradient descent"] = _rescaled(bare, steps)
    gaps = {what: losses(method, family.held_out, NETWORKS) for what, method in compared.items()}
    gaps["strongest"] = gaps[strongest if strongest in rivals else "best multiple"]
    gaps["strongest, given start"] = gaps["strongest"]
    return Measured(gaps, [strongest], [multiple], [False])


def _rescaled(method: Preconditioned, scale: float, **others: Any) -> Preconditioned:
    """Return a method by kinds of layers with rescaled steps, and other schedules if given."""
    by_kind = cast(ByKind, method.mirror)
    scales = {kind: scale * each for kind, each in by_kind.scales.items()}
    return method.replace(mirror=by_kind.replace(scales=scales), **others).requires_grad_(False)


def _raw(family: ProblemFamily) -> ProblemFamily:
    """Return a family without its pool, whose bounds take long and are not needed."""
    return family.family if isinstance(family, Pooled) else family


def _oracle(use: dict[str, Any]) -> Oracle | None:
    return Minibatch(use["minibatch"]) if "minibatch" in use else None


def _counts(name: str, method: Any, card: zoo.Card) -> tuple[int, ...]:
    """Return when to look: at 10, at 100, and at the end of a run."""
    end = next((count for kind, count in ENDS.items() if name.startswith(kind)), EARLY[-1])
    steps = getattr(method, "t", None)
    if isinstance(steps, Interpolated):
        one_step = len(steps.counts) == 1
        end = card.stages[0]["settings"]["horizon"] if one_step else steps.counts[-1]
    return tuple(sorted({*(k for k in EARLY if k < end), end}))


def run(scale: Scale, directory: Path | None, say: Say) -> Result:
    """Attribute the gain of every entry."""
    return _of(QUICK if scale == "quick" else zoo.list(), scale, directory, say)


def _of(
    names: Sequence[str],
    scale: Scale,
    directory: Path | None,
    say: Say,
    later: Sequence[str] = (),
) -> Result:
    """Attribute the gains of some entries; those that are measured later are said to be unknown."""
    result = Result(
        "attribution",
        "Where gains come from",
        {"scale": scale, "problems": PROBLEMS[scale], "version": VERSION},
    )
    found = []
    for name in names:
        if name in later:
            found.append(Attribution(name, why_not=UNMEASURED))
            continue
        coarse = scale == "standard" and name.startswith(COARSE)
        fewer = scale == "standard" and name.startswith(FEWER)
        every = 6 if scale == "quick" else 3 if coarse else 1
        found.append(attribute(name, PROBLEMS[scale] // (1 + fewer), directory, say, every))
    result.tables = {"gains": gains(found), "gaps": gap_table(found)}
    on_cards = [each for each in found if each.why_not not in (NO_MAP, IS_CONTROL)]
    result.settings["cards"] = {each.entry: each.on_card() for each in on_cards}
    return result


def add_missing(
    summary: Path,
    directory: Path | None = None,
    say: Say = print,
    only: Sequence[str] | None = None,
) -> Result:
    """Attribute the gains of entries that are new or changed, and write them into a summary.

    If the summary was written by another version of the rule, all entries are measured.

    Args:
        summary: File of the summary.
        directory: Data directory.
        say: Function that reports the outcomes.
        only: Entries to measure now. The others are said not to be measured by this rule; they are
            measured when this function is called again.
    """
    stored = from_summary(summary)
    current = stored.settings.get("version") == VERSION
    known = stored.provenance["entries"] if current else {}
    changed = {name for name in zoo.list() if known.get(name) != zoo.fingerprint(name)}
    names = [name for name in zoo.list() if changed & {name, *controls_for(name)}]
    if not names:
        return stored
    later = [
        name
        for name in names
        if only is not None and name not in only and not why_unknown(name, zoo.load(name))
    ]
    with recorded("as in the sources", run) as where:
        new = _of(names, stored.settings["scale"], directory, say, later)
    for name in later:
        where["entries"].pop(name, None)
    if current:
        new = _merged(stored, new, names)
        entries = dict(sorted({**known, **where["entries"]}.items()))
        measured = [
            name for name in names if name not in later and not why_unknown(name, zoo.load(name))
        ]
        origin = stored.provenance | {"entries": entries}
        if measured:  # the others keep their numbers, and the code that made them
            commits = f"{stored.provenance['commit']}, and {where['commit']} for "
            origin |= {"commit": commits + ", ".join(measured)}
        where = origin
    new.provenance = where
    with whole(summary) as partial, whole(summary.with_name("claims.md")) as page:
        partial.write_text(new.as_json(), encoding="utf-8")
        page.write_text(new.markdown(), encoding="utf-8")
    return new


def _merged(stored: Result, new: Result, names: Sequence[str]) -> Result:
    """Return stored results in which the rows of some entries are replaced."""
    for name, table in stored.tables.items():
        kept = [row for row in table.rows if row[0] not in names]
        # the sort is stable, so that counts stay in order
        rows = sorted([*kept, *new.tables[name].rows], key=lambda row: row[0])
        stored.tables[name] = Table(table.columns, rows)
    cards = {**stored.settings["cards"], **new.settings["cards"]}
    stored.settings["cards"] = dict(sorted(cards.items()))
    return stored


def gains(found: Sequence[Attribution]) -> Table:
    """Return the table of contributions in decades of the gap."""
    rows = []
    for each in found:
        if not each.parts:
            unknown = [UNKNOWN] * len(PARTS)
            gain = UNMEASURED if each.why_not == UNMEASURED else f"{UNKNOWN}: {each.why_not}"
            rows.append((each.entry, "", *unknown, "", "", gain))
        for i, k in enumerate(each.counts if each.parts else ()):
            cells = [str(each.parts[part][i]) for part in PARTS]
            cells[0] += LIMITED if each.limited[i] else ""
            alike = str(each.against_control[i]) if each.against_control else ""
            rows.append((each.entry, str(k), *cells, each.controls[i], alike, each.earned))
    columns = ("entry", "k", *PARTS, "strongest without a map", AGAINST_CONTROL, "its gain is")
    return Table(columns, rows)


def gap_table(found: Sequence[Attribution]) -> Table:
    """Return the gaps themselves, on average."""
    names = (
        "learned",
        "exact start",
        "strongest",
        "strongest, given start",
        "identity",
        "best multiple",
        OWN_CONTROL,
        "constant step",
        "gradient descent",
    )
    rows = []
    for each in found:
        gaps = {
            OWN_CONTROL if name == f"{each.entry}{CONTROL}" else name: values
            for name, values in each.gaps.items()
        }
        for i, k in enumerate(each.counts if each.gaps else ()):
            cells = [f"{gaps[name][i]:.3g}" if name in gaps else "" for name in names]
            rows.append((each.entry, str(k), *cells, f"{each.multiples[i]:g}"))
    return Table(("entry", "k", *names, "its number"), rows)


if __name__ == "__main__":
    # Measure some entries into the cache, from which ``reproduce`` and ``cards`` take them.
    _of(sys.argv[1:], "standard", None, print)
