"""Runs of methods with one map on one problem, held against their theorems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from mirrordescent.methods import AMD, ASMD, MD, SMD, Method
from mirrordescent.methods.base import Storage, Theorem
from mirrordescent.mirrors import MirrorMap
from mirrordescent.oracles import Oracle
from mirrordescent.problems import Problem
from mirrordescent.schedules import RootReciprocal
from mirrordescent.solve import Solution
from mirrordescent.theory import bounds
from mirrordescent.theory.assumptions import Verdict, is_exact, map_verdicts
from mirrordescent.theory.conditions import Setting, method_verdicts, no_theorem
from mirrordescent.theory.constants import Constant, MapConstants, ProblemConstants, map_constants
from mirrordescent.theory.energies import Record, observe
from mirrordescent.theory.geometry import Coupling, exact_geometry
from mirrordescent.theory.inconsistency import UpdateErrors
from mirrordescent.theory.recommend import Advice, advise, local_alpha
from mirrordescent.theory.watched import bare, storage_of, theorem_of
from mirrordescent.trees import Tree

ROUNDING = 1e3  # times the machine epsilon, relative to what was computed


@dataclass(frozen=True)
class Bounded:
    """What a theorem bounds along a run, its bound, and the slack of each step: (K, batch) each, for k = 1, …, K."""

    what: str
    measured: Tensor
    bound: Tensor
    slack: Tensor | None = None


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
    """One method on the problem: what was measured, and which assumptions of its theorem hold.

    Without a theorem there are no bound and no advice, and the record has only the gap.
    """

    method: Method[Any]
    solution: Solution
    record: Record
    verdicts: list[Verdict]
    bounded: Bounded | None = None
    advice: Advice | None = None
    updates: UpdateErrors | None = None


@dataclass
class Examination:
    """Examines methods with one map, or without one, on one problem.

    The problem is judged at ``points`` and the map at ``probes``, a few samples of them. ``u`` is a minimiser, or
    another point to compare with.
    """

    mirror: MirrorMap | None
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
    geometries: dict[Storage, Geometry] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        mirror = self.mirror
        self.duals = [] if mirror is None else [mirror.to_dual(x) for x in self.probes]
        self.exact = mirror is not None and mirror.exact and is_exact(mirror, self.probes, self.duals)

    def geometry(self, mirror: MirrorMap, storage: Storage) -> Geometry:
        """Judge the map as methods of a storage use it, once."""
        if storage not in self.geometries:
            exact = exact_geometry(mirror, storage, self.exact)
            constants = map_constants(exact, self.probes, self.duals, self.generator)
            verdicts = map_verdicts(mirror, exact, self.probes, self.duals, constants)
            alpha = local_alpha(exact, constants, self.probes)
            self.geometries[storage] = Geometry(Coupling(exact, self.u), constants, alpha, verdicts)
        return self.geometries[storage]

    def usual_methods(self, mirror: MirrorMap) -> dict[str, Method[Any]]:
        """MD, SMD, AMD and ASMD with supported step sizes; c/√k where no step is known to be safe."""
        methods: dict[str, Method[Any]] = {}
        for kind in (MD, SMD, AMD, ASMD):
            model = kind(mirror, 1.0)
            advice = self._advice(model, kind.theorem, self.geometry(mirror, model.storage))
            t = RootReciprocal(0.1) if advice.t is None else advice.t
            options: dict[str, Any] = {} if advice.gamma is None else {"gamma": advice.gamma}
            methods[kind.__name__] = kind(mirror, t, **options)
        return methods

    def examine(self, method: Method[Any]) -> Run:
        """Run a method and judge it."""
        theorem, storage, oracle = theorem_of(method), storage_of(method), method.asked(self.oracle)
        geometry = None if self.mirror is None else self.geometry(self.mirror, storage)
        updates = UpdateErrors() if (theorem, storage, self.exact) == ("descent", "dual", False) else None
        solution, record = observe(
            self.problem, method, self.x0, minimiser=self.u, iterations=self.iterations, oracle=self.oracle,
            generator=self.generator, geometry=None if geometry is None else geometry.coupling,
            exact_iterates=self.exact_iterates, callbacks=[] if updates is None else [updates],
        )  # fmt: skip
        if theorem is None or geometry is None:
            return Run(method, solution, record, [no_theorem(method)])
        constants, of_problem = geometry.constants, self.of_problem
        setting = Setting(self.problem, oracle, self.iterations, constants, of_problem, self.points, record)
        bounded = _bounded(theorem, bare(method), record, geometry.alpha.value)
        verdicts = [*method_verdicts(method, setting), *_falls(theorem, bounded, record), _below(bounded)]
        return Run(method, solution, record, verdicts, bounded, self._advice(method, theorem, geometry), updates)

    def _advice(self, method: Method[Any], theorem: Theorem, geometry: Geometry) -> Advice:
        stochastic, smoothness = method.asked(self.oracle).stochastic, self.of_problem.smoothness
        return advise(theorem, storage_of(method), self.exact, stochastic, geometry.alpha, smoothness)


def _bounded(theorem: Theorem, method: Any, record: Record, alpha: float) -> Bounded:
    """Return what the theorem bounds, and the bound with what was measured; there is none without an α > 0."""
    alpha = alpha if alpha > 0 else math.nan
    if theorem == "accelerated":
        t, r = float(record.steps[0]), method.r
        first = bounds.amd_first_energy(record["divergence"][0], record["gap"][0], t, r, record["error"][0])
        bound = bounds.amd_bound(first, record.steps, r, record.running_maximum("error"))
        return Bounded("f(x̃_k) − f*", record["gap"][1:], bound, bounds.amd_slack(record, r))
    if theorem == "accelerated stochastic":
        far = torch.cat([record["divergence"], alpha / 2 * record["distance"].square()]).amax(0)
        first, error = record["energy"][0], record["error"].clamp(min=0).amax(0)
        bound = bounds.asmd_bound_by_moments(first, record.steps, far, record["displacement"], alpha, error)
        return Bounded("f(x_k) − f*", record["gap"][1:], bound)
    what, bound = "the mean of f(x_i) − f* weighted by t_i", bounds.smd_realised_bound(record, alpha)
    return Bounded(what, bounds.weighted_mean_gap(record), bound, bounds.smd_slack(record, alpha))


def _falls(theorem: Theorem, bounded: Bounded, record: Record) -> list[Verdict]:
    slack = bounded.slack
    if theorem != "accelerated" or slack is None:
        return []
    rounding = ROUNDING * torch.finfo(slack.dtype).eps * (1 + record["energy"].abs())
    violated = int((slack < -torch.maximum(rounding[1:], rounding[:-1])).any(1).sum())
    smallest = float(slack.nan_to_num(torch.inf).min())
    because = f"The smallest slack is {smallest:.3g}; {violated} of {len(slack)} steps violate it."
    return [Verdict.of("the energy falls as in Lemma 1", not violated, because)]


def _below(bounded: Bounded) -> Verdict:
    assumption = "the run stays below its bound"
    if bool(bounded.bound.isnan().all()):
        return Verdict.of(assumption, None, "There is no bound, because no α > 0 was found or the run failed.")
    rounding = ROUNDING * torch.finfo(bounded.bound.dtype).eps * (1 + bounded.bound.abs())
    above = (bounded.measured > bounded.bound + rounding).any(1).nonzero().flatten()  # NaN is not above
    last, bound = (float(series[-1].nanmean()) for series in (bounded.measured, bounded.bound))
    first = f"It is above it first after {int(above[0]) + 1} steps. " if len(above) else ""
    numbers = f"At the end {bounded.what} is {last:.3g} and its bound {bound:.3g}, on average."
    return Verdict.of(assumption, not len(above), first + numbers)
