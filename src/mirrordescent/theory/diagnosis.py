"""The diagnosis of a map or a method on a problem: constants, errors, energies, bounds, and
verdicts in words.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Generator, Tensor

from mirrordescent.methods import AMD, ASMD, MD, SMD, Method
from mirrordescent.methods.base import Storage, Theorem
from mirrordescent.mirrors import MirrorMap
from mirrordescent.mirrors.inverse import NotConverged
from mirrordescent.oracles import Default, Exact, Oracle
from mirrordescent.problems import Problem
from mirrordescent.references import certify
from mirrordescent.schedules import RootReciprocal
from mirrordescent.solving import solve
from mirrordescent.theory.assumptions import is_exact, map_verdicts, nearby_points, problem_verdicts
from mirrordescent.theory.beforehand import beforehand
from mirrordescent.theory.conditions import Setting, method_verdicts, no_theorem
from mirrordescent.theory.constants import (
    ProblemConstants,
    likeness,
    map_constants,
    problem_constants,
)
from mirrordescent.theory.energies import PROBED, observe
from mirrordescent.theory.equivariance import Defects, image_defects
from mirrordescent.theory.findings import Diagnosis, Geometry, Run
from mirrordescent.theory.geometry import Coupling, domain_of, exact_geometry, expanded, inside
from mirrordescent.theory.held import bounded_by, falls, stays_below
from mirrordescent.theory.inconsistency import (
    Inconsistency,
    UpdateErrors,
    inconsistency,
    inconsistency_over_box,
)
from mirrordescent.theory.recommend import Advice, advise, local_alpha
from mirrordescent.theory.watched import bare, storage_of, theorem_of
from mirrordescent.trees import Tree, batch_size, leaves, mix, tree_map

# times the iterations of a run, to find a point to compare with where there is no certificate
LONGER = 4


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
    """Ask of a map or a method: is it a good mirror map, do the assumptions hold here, how far is a
    run from its bound?

    Any method will do, including your own. Without a theorem about it, or without a map, the
    diagnosis has what is
    left: the verdicts on the problem, those on the map, and the run. An
        :class:`~mirrordescent.methods.Equipped` method is run with its own oracle; other wrappers
        are methods without a theorem. Further arguments are those of ``solve``; the generator draws
        points to sample at, too.

    Args:
        subject: a map, which is then run in MD, SMD, AMD and ASMD with the steps that
            :func:`recommend` supports, or a method, which is run as it is.
        name: what the page calls the subject.
        methods: the methods with the same map to run instead, by name.
        minimiser: a point to compare with. By default a certified minimiser if the problem has a
            way to one, else the best point of a longer run.
        exact_iterates: whether to follow the exact iterates x̂ and ẑ too, by a Newton solve in
            every step.
        before_learning: the map before it was learned, if its equivariance is to be compared.

    >>> import torch
    >>> from mirrordescent import MD, Quadratic
    >>> from mirrordescent.mirrors import Diagonal
    >>> problem = Quadratic(torch.tensor([1.0, 2.0]), centre=torch.ones(1, 2))
    >>> diagnosis = diagnose(MD(Diagonal(torch.tensor([2.0, 4.0])), 1.0), problem, iterations=20)
    >>> print(diagnosis.verdicts[0])
    f is convex: holds. By construction.
    """
    generator = generator or torch.Generator().manual_seed(0)
    oracle = oracle or Default()
    mirror = subject if isinstance(subject, MirrorMap) else subject.mirror
    x0 = problem.start() if x0 is None else x0
    how = "the point given"
    if minimiser is None:
        minimiser, how = _minimiser(problem, subject, x0, LONGER * iterations, generator)
    u = expanded(minimiser, x0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NotConverged)
        domain = domain_of(mirror, problem)
        points = [inside(x, domain) for x in (x0, mix(0.5, x0, u), u)] + nearby_points(
            x0, domain, generator, 1
        )[1:]
        probes = [tree_map(lambda leaf: leaf[:PROBED], x) for x in points]
        of_problem = problem_constants(problem, points, generator)
        examination = Examination(
            mirror,
            problem,
            of_problem,
            points,
            probes,
            x0,
            u,
            iterations,
            oracle,
            generator,
            exact_iterates,
        )
        if methods is None:
            own = {type(subject).__name__: subject} if isinstance(subject, Method) else None
            methods = own or examination.usual_methods(cast(MirrorMap, subject))
        runs = {label: examination.examine(method) for label, method in methods.items()}
        inconsistent = (
            {} if mirror is None else _inconsistency(mirror, probes, examination.duals, generator)
        )
        defects = _image_defects({"before learning": before_learning, "learned": mirror}, probes[0])
    others = [warning for warning in caught if not issubclass(warning.category, NotConverged)]
    for warning in others:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    asked = [method.resolve_oracle(oracle) for method in methods.values()]
    settings = {"problems": str(batch_size(x0)), "iterations": str(iterations)}
    if mirror is not None:
        settings["the map judged at"] = (
            f"{len(probes)} points of {batch_size(probes[0])} of the problems"
        )
    settings["gradients"] = ", ".join(
        {"Exact" if isinstance(o, Exact) else type(o).__name__: None for o in asked}
    )
    settings["compared with"] = how
    settings["exact inversions that did not converge"] = str(len(caught) - len(others))
    return Diagnosis(
        name or type(subject).__name__,
        type(problem).__name__,
        settings,
        of_problem,
        problem_verdicts(problem, points, of_problem),
        inconsistent,
        examination.geometries,
        runs,
        defects,
    )


def _minimiser(
    problem: Problem,
    subject: MirrorMap | Method[Any],
    x0: Tree,
    iterations: int,
    generator: Generator,
) -> tuple[Tree, str]:
    """Return a point to compare with, and what it is."""
    try:
        return certify(problem).x, "a certified minimiser"
    except TypeError:
        name = type(problem).__name__
    if isinstance(subject, Method):
        longer = solve(
            problem, subject, x0, iterations=iterations, generator=generator, progress=False
        )
        return longer.best_x, f"the best point of {iterations} iterations, which is not certified"
    raise ValueError(
        f"there is no certified minimiser of {name}: give minimiser=, or diagnose a method"
    )


def _inconsistency(
    mirror: MirrorMap, probes: Sequence[Tree], duals: Sequence[Tree], generator: Generator
) -> dict[str, Inconsistency]:
    """Measure along the way from the start to the minimiser, the first three probes, and in a box
    around it.
    """
    entries = torch.cat([leaf.flatten() for x in probes[:3] for leaf in leaves(x)])
    low = float(entries.min())
    high = float(entries.max())
    box = inconsistency_over_box(mirror, low, high, probes[0], generator, 1)
    along = inconsistency(mirror, probes[:3], images=duals[:3])
    return {
        "the start, half-way and the minimiser": along,
        f"the box [{low:.3g}, {high:.3g}] around them": box,
    }


def _image_defects(maps: Mapping[str, MirrorMap | None], x: Tree) -> Defects | None:
    """Measure learned maps on an image; others act pixel by pixel."""
    known = {when: mirror for when, mirror in maps.items() if mirror is not None}
    if (
        not isinstance(x, Tensor)
        or x.ndim != 4
        or not any(list(m.parameters()) for m in known.values())
    ):
        return None
    measured = {when: image_defects(mirror, x[:1]) for when, mirror in known.items()}
    by_name = {
        f"{name}, {when}": found
        for when, fields in measured.items()
        for name, found in fields.items()
    }
    return Defects(
        "motions of images (circular ones, so that a border of zeros counts as a defect)", by_name
    )


@dataclass
class Examination:
    """Examines methods with one map, or without one, on one problem.

    The problem is judged at ``points`` and the map at ``probes``, a few samples of them. ``u`` is a
    minimiser, or another point to compare with.
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
        self.exact = (
            mirror is not None and mirror.exact and is_exact(mirror, self.probes, self.duals)
        )

    def geometry(self, mirror: MirrorMap, storage: Storage) -> Geometry:
        """Judge the map as methods of a storage use it, once."""
        if storage not in self.geometries:
            exact = exact_geometry(mirror, storage, self.exact)
            constants = map_constants(exact, self.probes, self.duals, self.generator)
            verdicts = map_verdicts(mirror, exact, self.probes, self.duals, constants)
            alpha = local_alpha(exact, constants, self.probes)
            alike = likeness(exact, self.probes, self.duals)
            self.geometries[storage] = Geometry(
                Coupling(exact, self.u, tested=True), constants, alpha, verdicts, alike
            )
        return self.geometries[storage]

    def usual_methods(self, mirror: MirrorMap) -> dict[str, Method[Any]]:
        """MD, SMD, AMD and ASMD with supported step sizes; c/√k where no step is known to
        be safe.
        """
        methods: dict[str, Method[Any]] = {}
        for kind in (MD, SMD, AMD, ASMD):
            model = kind(mirror, 1.0)
            advice = self._advice(model, kind.theorem, self.geometry(mirror, model.storage))
            options: dict[str, Any] = {} if advice.gamma is None else {"gamma": advice.gamma}
            methods[kind.__name__] = kind(
                mirror, RootReciprocal(0.1) if advice.t is None else advice.t, **options
            )
        return methods

    def examine(self, method: Method[Any]) -> Run:
        theorem = theorem_of(method)
        storage = storage_of(method)
        oracle = method.resolve_oracle(self.oracle)
        geometry = None if self.mirror is None else self.geometry(self.mirror, storage)
        updates = (
            UpdateErrors() if (theorem, storage, self.exact) == ("descent", "dual", False) else None
        )
        solution, record = observe(
            self.problem,
            method,
            self.x0,
            minimiser=self.u,
            iterations=self.iterations,
            oracle=self.oracle,
            generator=self.generator,
            geometry=None if geometry is None else geometry.coupling,
            exact_iterates=self.exact_iterates,
            callbacks=[] if updates is None else [updates],
        )
        if theorem is None or geometry is None:
            return Run(method, solution, record, [no_theorem(method)])
        constants = geometry.constants
        of_problem = self.of_problem
        setting = Setting(
            self.problem, oracle, self.iterations, constants, of_problem, self.points, record
        )
        known = beforehand(
            bare(method),
            self.problem,
            geometry.coupling,
            self.points,
            oracle,
            self.generator,
            self.iterations,
            exact=storage == "dual" or self.exact,
        )
        bounded = bounded_by(theorem, bare(method), record, geometry.alpha.value, known, of_problem)
        verdicts = [*method_verdicts(method, setting), *falls(theorem, bounded, record)]
        verdicts.append(stays_below(bounded, solution, oracle.stochastic))
        return Run(
            method,
            solution,
            record,
            verdicts,
            bounded,
            self._advice(method, theorem, geometry),
            updates,
        )

    def _advice(self, method: Method[Any], theorem: Theorem, geometry: Geometry) -> Advice:
        stochastic = method.resolve_oracle(self.oracle).stochastic
        smoothness = self.of_problem.smoothness
        return advise(
            theorem, storage_of(method), self.exact, stochastic, geometry.alpha, smoothness
        )
