"""The diagnosis of a map or a method on a problem: constants, errors, energies, bounds, and verdicts in words."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Generator, Tensor

from mirrordescent.methods import AMD, ASMD, MD, SMD, Method
from mirrordescent.mirrors import MirrorMap, NotConverged
from mirrordescent.oracles import Exact, Oracle
from mirrordescent.problems import Problem, Quadratic
from mirrordescent.references import certify
from mirrordescent.schedules import RootReciprocal
from mirrordescent.solve import Solution, solve
from mirrordescent.theory import bounds
from mirrordescent.theory.assumptions import Verdict, is_exact, map_verdicts, nearby_points, problem_verdicts
from mirrordescent.theory.conditions import Setting, method_verdicts
from mirrordescent.theory.constants import Constant, MapConstants, ProblemConstants, map_constants, problem_constants
from mirrordescent.theory.energies import Record, observe
from mirrordescent.theory.equivariance import Defects, image_defects
from mirrordescent.theory.geometry import Coupling, Storage, domain_of, exact_geometry, expanded, inside, storage_of
from mirrordescent.theory.inconsistency import Inconsistency, UpdateErrors, inconsistency, inconsistency_over_box
from mirrordescent.theory.recommend import Advice, MethodName, advise, local_alpha, name_and_storage
from mirrordescent.trees import Tree, batch_size, leaves, mix, tree_map

ROUNDING = 1e3  # times the machine epsilon, relative to what was computed
LONGER = 4  # times the iterations of a run, to find a point to compare with where there is no certificate
PROBED = 2  # problems of a batch at whose points the map is judged: inverting it exactly is dear


@dataclass(frozen=True)
class Bounded:
    """What a theorem bounds along a run, and its bound: (K, batch) each, for k = 1, …, K."""

    what: str
    measured: Tensor
    bound: Tensor


@dataclass(frozen=True)
class Geometry:
    """The exact geometry that primal-stored, or dual-stored, runs are held against: its constants, and what holds.

    ``alpha`` is the one that bounds are computed with: that of the constants or, if it is 0, that of sampled points.
    """

    coupling: Coupling
    constants: MapConstants
    alpha: Constant
    verdicts: list[Verdict]


@dataclass(frozen=True)
class Run:
    """One method on the problem: what was measured, and which assumptions of its theorem hold."""

    method: Method[Any]
    storage: Storage
    solution: Solution
    record: Record
    bounded: Bounded
    slack: Tensor | None
    verdicts: list[Verdict]
    advice: Advice
    updates: UpdateErrors | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Everything that was found about a map on a problem."""

    name: str
    problem: str
    settings: dict[str, str]
    of_problem: ProblemConstants
    problem_verdicts: list[Verdict]
    inconsistency: dict[str, Inconsistency]
    geometries: dict[Storage, Geometry]
    runs: dict[str, Run]
    equivariance: Defects | None = None

    @property
    def judged(self) -> dict[str, list[Verdict]]:
        """The verdicts on the problem, on the map as each storage uses it, and on each run."""
        maps = {f"the map, {storage}-stored": geometry.verdicts for storage, geometry in self.geometries.items()}
        return {"the problem": self.problem_verdicts, **maps, **{name: run.verdicts for name, run in self.runs.items()}}

    @property
    def verdicts(self) -> list[Verdict]:
        """All verdicts."""
        return [verdict for part in self.judged.values() for verdict in part]

    def write(self, folder: str | Path) -> Path:
        """Write diagnosis.md and its figures to a folder; return the page."""
        from mirrordescent.theory.page import write

        return write(self, Path(folder))


def diagnose(
    subject: MirrorMap | Method[Any],
    problem: Problem,
    x0: Tree | None = None,
    *,
    name: str | None = None,
    methods: Mapping[str, Method[Any]] | None = None,
    iterations: int = 200,
    oracle: Oracle | None = None,
    generator: Generator | None = None,
    minimiser: Tree | None = None,
    exact_iterates: bool = False,
    before_learning: MirrorMap | None = None,
) -> Diagnosis:
    """Ask of a map or a method: is it a good mirror map, do the assumptions hold here, how far is a run from its bound?

    Args:
        subject: a map, which is then run in MD, SMD, AMD and ASMD with the steps that :func:`recommend` supports, or a
            method, which is run as it is.
        problem: on what.
        x0: from where; the problem's start by default.
        name: of the subject, for the page.
        methods: other methods with the same map to run, by name.
        iterations: of every run.
        oracle: how gradients are asked for; exact by default.
        generator: of random points and of the oracle.
        minimiser: a point to compare with. By default a certified minimiser, where there is a reference for the kind of
            problem, else the best point of a longer run.
        exact_iterates: whether to follow the exact iterates x̂ and ẑ too, by a Newton solve in every step.
        before_learning: the map as it was then, if its equivariance is to be compared.

    >>> import torch
    >>> from mirrordescent import MD, Quadratic
    >>> from mirrordescent.mirrors import Diagonal
    >>> problem = Quadratic(torch.tensor([1.0, 2.0]), centre=torch.ones(1, 2))
    >>> diagnosis = diagnose(MD(Diagonal(torch.tensor([2.0, 4.0])), 1.0), problem, iterations=20)
    >>> print(diagnosis.verdicts[0])
    f is convex: holds. A is positive semidefinite.
    """
    generator = generator or torch.Generator().manual_seed(0)
    oracle = oracle or Exact()
    mirror = subject if isinstance(subject, MirrorMap) else _mirror_of(subject)
    x0 = problem.start() if x0 is None else x0
    minimiser, how = _minimiser(problem, subject, x0, minimiser, iterations)
    u = expanded(minimiser, x0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NotConverged)
        domain = domain_of(mirror, problem)
        points = [inside(x, domain) for x in (x0, mix(0.5, x0, u), u)] + nearby_points(x0, domain, generator, 1)[1:]
        of_problem = problem_constants(problem, points, generator)
        probes = [tree_map(lambda leaf: leaf[:PROBED], x) for x in points]
        doctor = _Doctor(
            mirror, problem, of_problem, points, probes, x0, u, iterations, oracle, generator, exact_iterates
        )
        chosen = methods or (
            {type(subject).__name__: subject} if isinstance(subject, Method) else doctor.usual_methods()
        )
        low, high = _range(probes[:3])
        runs = {label: doctor.examine(method) for label, method in chosen.items()}
        box = inconsistency_over_box(mirror, low, high, probes[0], generator, 1)
        measured = {
            "the start, half-way and the minimiser": inconsistency(mirror, probes[:3], images=doctor.duals[:3]),
            f"the box [{low:.3g}, {high:.3g}] around them": box,
        }
        defects = _image_defects({"before learning": before_learning, "learned": mirror}, probes[0])
    unsolved = [warning for warning in caught if issubclass(warning.category, NotConverged)]
    for warning in caught:
        if warning not in unsolved:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return Diagnosis(
        name=name or type(subject).__name__,
        problem=type(problem).__name__,
        settings={
            "problems": str(batch_size(x0)),
            "iterations": str(iterations),
            "the map judged at": f"{len(probes)} points of {batch_size(probes[0])} of the problems",
            "gradients": type(oracle).__name__,
            "compared with": how,
            "exact inversions that did not converge": str(len(unsolved)),
        },
        of_problem=of_problem,
        problem_verdicts=problem_verdicts(problem, points, of_problem),
        inconsistency=measured,
        geometries={storage: doctor.geometry(storage) for storage in {run.storage: None for run in runs.values()}},
        runs=runs,
        equivariance=defects,
    )


@dataclass
class _Doctor:
    """Examines methods with one map on one problem."""

    mirror: MirrorMap
    problem: Problem
    of_problem: ProblemConstants
    points: Sequence[Tree]
    probes: Sequence[Tree]
    x0: Tree
    u: Tree
    iterations: int
    oracle: Oracle
    generator: Generator
    exact_iterates: bool

    def __post_init__(self) -> None:
        self.duals = [self.mirror.to_dual(x) for x in self.probes]
        self.exact = self.mirror.exact and is_exact(self.mirror, self.probes, self.duals)
        self._geometries: dict[Storage, Geometry] = {}

    def geometry(self, storage: Storage) -> Geometry:
        """Judge the map as methods of a storage use it, once."""
        if storage not in self._geometries:
            exact = exact_geometry(self.mirror, storage, self.exact)
            constants = map_constants(exact, self.probes, self.duals, self.generator)
            verdicts = map_verdicts(self.mirror, exact, self.probes, self.duals, constants)
            alpha = local_alpha(exact, constants, self.probes)
            self._geometries[storage] = Geometry(Coupling(exact, self.u), constants, alpha, verdicts)
        return self._geometries[storage]

    def usual_methods(self) -> dict[str, Method[Any]]:
        """MD, SMD, AMD and ASMD with supported step sizes; c/√k where no step is known to be safe."""
        methods: dict[str, Method[Any]] = {}
        for kind in (MD, SMD, AMD, ASMD):
            advice = self._advice(cast(MethodName, kind.__name__))
            t = RootReciprocal(0.1) if advice.t is None else advice.t
            options: dict[str, Any] = {"gamma": advice.gamma} if kind is AMD and advice.gamma is not None else {}
            methods[kind.__name__] = kind(self.mirror, t, **options)
        return methods

    def examine(self, method: Method[Any]) -> Run:
        """Run a method and judge it."""
        storage = storage_of(method)
        geometry = self.geometry(storage)
        updates = UpdateErrors() if isinstance(method, SMD) and not self.exact else None
        observed = observe(
            self.problem,
            method,
            self.x0,
            minimiser=self.u,
            iterations=self.iterations,
            oracle=self.oracle,
            generator=self.generator,
            geometry=geometry.coupling,
            exact_iterates=self.exact_iterates,
            callbacks=[] if updates is None else [updates],
        )
        record, constants = observed.record, geometry.constants
        bounded, slack = _bounded(method, record, geometry.alpha.value)
        setting = Setting(self.problem, self.oracle, self.iterations, constants, self.of_problem, self.points, record)
        verdicts = [*method_verdicts(method, setting), *_inequalities(method, bounded, slack, record)]
        return Run(method, storage, observed.solution, record, bounded, slack, verdicts, self._advice(method), updates)

    def _advice(self, method: MethodName | Method[Any]) -> Advice:
        name, storage = name_and_storage(method)
        alpha, smoothness = self.geometry(storage).alpha, self.of_problem.smoothness
        return advise(name, storage, self.exact, self.oracle.stochastic, alpha, smoothness)


def _bounded(method: Method[Any], record: Record, alpha: float) -> tuple[Bounded, Tensor | None]:
    """Return what the method's theorem bounds, the bound with what was measured, and the slack of each step.

    Without an α > 0 there is no bound.
    """
    alpha = alpha if alpha > 0 else math.nan
    if isinstance(method, AMD):
        t, r = float(record.steps[0]), method.r
        first = bounds.amd_first_energy(record["divergence"][0], record["gap"][0], t, r, record["error"][0])
        bound = bounds.amd_bound(first, record.steps, r, record.running_maximum("error"))
        return Bounded("f(x̃_k) − f*", record["gap"][1:], bound), bounds.amd_slack(record, r)
    if isinstance(method, ASMD):
        far = torch.cat([record["divergence"], alpha / 2 * record["distance"].square()])
        error = record["error"].clamp(min=0).amax(0)
        bound = bounds.asmd_bound_by_moments(
            record["energy"][0], record.steps, far.amax(0), record["displacement"], alpha, error
        )
        return Bounded("f(x_k) − f*", record["gap"][1:], bound), None
    what = "the mean of f(x_i) − f* weighted by t_i"
    bounded = Bounded(what, bounds.weighted_mean_gap(record), bounds.smd_realised_bound(record, alpha))
    return bounded, bounds.smd_slack(record, alpha)


def _inequalities(method: Method[Any], bounded: Bounded, slack: Tensor | None, record: Record) -> list[Verdict]:
    """Judge the inequalities themselves, on this run."""
    verdicts = [_below(bounded)]
    if isinstance(method, AMD) and slack is not None:
        verdicts.insert(0, _falls(slack, record["energy"]))
    return verdicts


def _falls(slack: Tensor, energy: Tensor) -> Verdict:
    rounding = ROUNDING * torch.finfo(slack.dtype).eps * (1 + energy.abs())
    violated = int((slack < -torch.maximum(rounding[1:], rounding[:-1])).any(1).sum())
    smallest = float(slack.nan_to_num(torch.inf).min())
    because = f"The smallest slack is {smallest:.3g}; {violated} of {len(slack)} steps violate it."
    return Verdict("the energy falls as in Lemma 1", "does not hold" if violated else "holds", because)


def _below(bounded: Bounded) -> Verdict:
    assumption = "the run stays below its bound"
    if bool(bounded.bound.isnan().all()):
        return Verdict(assumption, "not known", "There is no bound, because no α > 0 was found or the run failed.")
    rounding = ROUNDING * torch.finfo(bounded.bound.dtype).eps * (1 + bounded.bound.abs())
    above = (bounded.measured > bounded.bound + rounding).any(1).nonzero().flatten()  # NaN is not above
    last, bound = (float(series[-1].nanmean()) for series in (bounded.measured, bounded.bound))
    numbers = f"At the end {bounded.what} is {last:.3g} and its bound {bound:.3g}, in the mean."
    if len(above):
        return Verdict(assumption, "does not hold", f"Above it first after {int(above[0]) + 1} steps. {numbers}")
    return Verdict(assumption, "holds", numbers)


def _mirror_of(method: Method[Any]) -> MirrorMap:
    storage_of(method)
    return cast(MirrorMap, method.mirror)


def _minimiser(
    problem: Problem, subject: MirrorMap | Method[Any], x0: Tree, given: Tree | None, iterations: int
) -> tuple[Tree, str]:
    """Return a point to compare with, and what it is."""
    if given is not None:
        return given, "the point given"
    if isinstance(problem, Quadratic):
        return problem.centre, "the minimiser, by formula"
    try:
        return certify(problem).x, "a certified minimiser"
    except TypeError:
        if not isinstance(subject, Method):
            raise ValueError(
                f"there is no certified minimiser of {type(problem).__name__}: give minimiser=, or diagnose a method"
            ) from None
        longer = solve(problem, subject, x0, iterations=LONGER * iterations, progress=False)
        return longer.best_x, f"the best point of {LONGER * iterations} iterations, which is not certified"


def _range(points: Sequence[Tree]) -> tuple[float, float]:
    entries = [leaf for x in points for leaf in leaves(x)]
    return min(float(leaf.min()) for leaf in entries), max(float(leaf.max()) for leaf in entries)


def _image_defects(maps: Mapping[str, MirrorMap | None], x: Tree) -> Defects | None:
    """Measure learned maps on an image; others act pixel by pixel."""
    known = {when: mirror for when, mirror in maps.items() if mirror is not None}
    if not isinstance(x, Tensor) or x.ndim != 4 or not any(list(m.parameters()) for m in known.values()):
        return None
    measured = {when: image_defects(mirror, x[:1]) for when, mirror in known.items()}
    by_name = {f"{name}, {when}": found for when, fields in measured.items() for name, found in fields.items()}
    return Defects("motions of images (circular ones, so that a border of zeros counts as a defect)", by_name)
