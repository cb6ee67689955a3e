"""The diagnosis of a map or a method on a problem: constants, errors, energies and verdicts."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from mirrordescent.methods import AMD, ASMD, MD, SMD, Method
from mirrordescent.methods.base import Storage, Theorem
from mirrordescent.mirrors import MirrorMap
from mirrordescent.mirrors.inverse import NotConverged
from mirrordescent.oracles import Default, Exact, Oracle
from mirrordescent.problems import Problem
from mirrordescent.problems.sizes import natural_length
from mirrordescent.references import certify
from mirrordescent.schedules import RootReciprocal
from mirrordescent.solving import solve
from mirrordescent.theory.assumptions import (
    inverts_exactly,
    map_verdicts,
    problem_verdicts,
    sample_nearby_points,
)
from mirrordescent.theory.bound_checks import (
    check_below_bound,
    check_energy_decrease,
    evaluate_bounds,
)
from mirrordescent.theory.conditions import Setting, method_verdicts, no_theorem
from mirrordescent.theory.constants import (
    ProblemConstants,
    compare_with_identity,
    map_constants,
    problem_constants,
)
from mirrordescent.theory.diagnosis_results import Diagnosis, Geometry, Run
from mirrordescent.theory.energies import PROBE_SAMPLES, observe
from mirrordescent.theory.equivariance import Defects, image_defects
from mirrordescent.theory.geometry import (
    Coupling,
    exact_geometry,
    expand_like,
    move_inside,
    usable_domain,
)
from mirrordescent.theory.inverse_consistency import (
    Inconsistency,
    UpdateErrors,
    inconsistency,
    inconsistency_over_box,
)
from mirrordescent.theory.prior_bounds import sample_prior_constants
from mirrordescent.theory.recommendation import Advice, advise, local_alpha
from mirrordescent.theory.recording import storage_of, theorem_of, unwrap
from mirrordescent.trees import Tree, batch_size, leaves, mix, tree_map

LONGER_RUN = 4
"""Length of the run that finds a point to compare with, relative to the run that is examined."""

UNSAFE_STEP = 0.1
"""The c of steps c/√k, which are used if no step is known to be safe."""


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
    """Examine a map or a method on a problem.

    The diagnosis answers three questions. Is this a good mirror map? Do the assumptions of the
    theorems hold here? How far is a run from its bound?

    Every method can be diagnosed, including your own. Without a theorem about the method the
    diagnosis contains the verdicts on the problem and on the map, and the run; without a map, the
    verdicts on the problem and the run. An :class:`~mirrordescent.methods.Equipped` method is run
    with its own oracle. Other wrappers are methods without a theorem.

    Args:
        subject: Method to run, or a map. A map is run in MD, SMD, AMD and ASMD with the steps that
            :func:`recommend` supports.
        problem: Problem to examine.
        x0: Start; by default the problem's own.
        name: Name of the subject in the result.
        methods: Methods with the same map to run instead, by name.
        iterations: Number of steps.
        oracle: Oracle for gradients.
        generator: Random generator of the runs and of the points to sample at.
        minimiser: Point to compare with. By default a certified minimiser if the problem has one,
            else the best point of a longer run.
        exact_iterates: Whether to compute the exact iterates x̂ and ẑ too, by a Newton solve in
            every step.
        before_learning: The map before it was learned, for a comparison of equivariance.

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
    if x0 is None:
        x0 = problem.start()
    compared_with = "the point given"
    if minimiser is None:
        minimiser, compared_with = _minimiser(
            problem, subject, x0, LONGER_RUN * iterations, generator
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NotConverged)
        examination = _prepare(
            mirror,
            problem,
            x0,
            expand_like(minimiser, x0),
            iterations,
            oracle,
            generator,
            exact_iterates,
        )
        if methods is None:
            if isinstance(subject, MirrorMap):
                methods = examination.usual_methods(subject)
            else:
                methods = {type(subject).__name__: subject}
        runs = {label: examination.examine(method) for label, method in methods.items()}
        errors = examination.inverse_errors()
        maps = {"before learning": before_learning, "learned": mirror}
        defects = _image_defects(maps, examination.probes[0])
    other_warnings = [each for each in caught if not issubclass(each.category, NotConverged)]
    for warning in other_warnings:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    settings = examination.settings(methods, compared_with)
    not_converged = len(caught) - len(other_warnings)
    settings["exact inversions that did not converge"] = str(not_converged)
    constants = examination.problem_constants
    return Diagnosis(
        name=name or type(subject).__name__,
        problem=type(problem).__name__,
        settings=settings,
        problem_constants=constants,
        problem_verdicts=problem_verdicts(problem, examination.points, constants),
        inconsistency=errors,
        geometries=examination.geometries,
        runs=runs,
        equivariance=defects,
    )


def _minimiser(
    problem: Problem,
    subject: MirrorMap | Method[Any],
    x0: Tree,
    iterations: int,
    generator: Generator,
) -> tuple[Tree, str]:
    """Return a point to compare with, and its description."""
    try:
        return certify(problem).x, "a certified minimiser"
    except TypeError:
        if not isinstance(subject, Method):
            raise ValueError(
                f"there is no certified minimiser of {type(problem).__name__}: "
                "give minimiser=, or diagnose a method"
            ) from None
    longer = solve(problem, subject, x0, iterations=iterations, generator=generator, progress=False)
    return longer.best_x, f"the best point of {iterations} iterations, which is not certified"


def _prepare(
    mirror: MirrorMap | None,
    problem: Problem,
    x0: Tree,
    u: Tree,
    iterations: int,
    oracle: Oracle,
    generator: Generator,
    exact_iterates: bool,
) -> "Examination":
    """Choose the points to sample at and compute the constants of the problem.

    The points are the start, the minimiser, the point half-way and one random point near the
    start, all moved into the domain.
    """
    domain = usable_domain(mirror, problem)
    points = [move_inside(x, domain) for x in (x0, mix(0.5, x0, u), u)]
    _, nearby = sample_nearby_points(x0, domain, generator, 1, natural_length(problem, x0))
    points.append(nearby)
    return Examination(
        mirror=mirror,
        problem=problem,
        problem_constants=problem_constants(problem, points, generator),
        points=points,
        probes=[tree_map(lambda leaf: leaf[:PROBE_SAMPLES], x) for x in points],
        x0=x0,
        u=u,
        iterations=iterations,
        oracle=oracle,
        generator=generator,
        exact_iterates=exact_iterates,
    )


def _image_defects(maps: Mapping[str, MirrorMap | None], x: Tree) -> Defects | None:
    """Measure the equivariance of learned maps on an image; other maps act pixel by pixel."""
    if not isinstance(x, Tensor) or x.ndim != 4:
        return None
    present = {when: mirror for when, mirror in maps.items() if mirror is not None}
    if not any(list(mirror.parameters()) for mirror in present.values()):
        return None
    by_name = {}
    for when, mirror in present.items():
        for field_name, defects in image_defects(mirror, x[:1]).items():
            by_name[f"{field_name}, {when}"] = defects
    group = "motions of images (circular ones, so that a border of zeros counts as a defect)"
    return Defects(group, by_name)


@dataclass
class Examination:
    """The examination of methods with one map, or without a map, on one problem.

    Attributes:
        mirror: Map of the methods, if they have one.
        problem: Problem of the runs.
        problem_constants: L_f and μ.
        points: Points at which the problem is examined.
        probes: A few samples of the points, at which the map is examined.
        x0: Start of the runs.
        u: Minimiser, or another point to compare with.
        iterations: Number of steps.
        oracle: Oracle for gradients.
        generator: Random generator of the runs.
        exact_iterates: Whether to compute exact iterates in every step.
        geometries: The map as methods of each storage use it, examined when needed.
    """

    mirror: MirrorMap | None
    problem: Problem
    problem_constants: ProblemConstants
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
        self.duals: list[Tree] = []
        self.exact = False
        if self.mirror is not None:
            self.duals = [self.mirror.to_dual(x) for x in self.probes]
            if self.mirror.exact:
                self.exact = inverts_exactly(self.mirror, self.probes, self.duals)

    def geometry(self, mirror: MirrorMap, storage: Storage) -> Geometry:
        """Examine the map as methods with this storage use it; the result is cached."""
        if storage not in self.geometries:
            exact = exact_geometry(mirror, storage, self.exact)
            constants = map_constants(exact, self.probes, self.duals, self.generator)
            self.geometries[storage] = Geometry(
                verdicts=map_verdicts(mirror, exact, self.probes, self.duals, constants),
                alpha=local_alpha(exact, constants, self.probes),
                identity_comparison=compare_with_identity(exact, self.probes, self.duals),
                coupling=Coupling(exact, self.u, tested=True),
                constants=constants,
            )
        return self.geometries[storage]

    def usual_methods(self, mirror: MirrorMap) -> dict[str, Method[Any]]:
        """Return MD, SMD, AMD and ASMD with supported steps, or c/√k if no step is known."""
        methods: dict[str, Method[Any]] = {}
        for kind in (MD, SMD, AMD, ASMD):
            model = kind(mirror, 1.0)
            advice = self._advice(model, kind.theorem, self.geometry(mirror, model.storage))
            t = RootReciprocal(UNSAFE_STEP) if advice.t is None else advice.t
            options: dict[str, Any] = {}
            if advice.gamma is not None:
                options["gamma"] = advice.gamma
            methods[kind.__name__] = kind(mirror, t, **options)
        return methods

    def examine(self, method: Method[Any]) -> Run:
        """Run a method, measure the quantities of its theorem, and compare them with bounds."""
        theorem = theorem_of(method)
        storage = storage_of(method)
        geometry = None
        if self.mirror is not None:
            geometry = self.geometry(self.mirror, storage)
        updates = None
        if theorem == "descent" and storage == "dual" and not self.exact:
            updates = UpdateErrors()
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
        oracle = method.resolve_oracle(self.oracle)
        prior = sample_prior_constants(
            unwrap(method),
            self.problem,
            geometry.coupling,
            self.points,
            oracle,
            self.generator,
            self.iterations,
            exact=storage == "dual" or self.exact,
        )
        check = evaluate_bounds(
            theorem, unwrap(method), record, geometry.alpha.value, prior, self.problem_constants
        )
        setting = Setting(
            self.problem,
            oracle,
            self.iterations,
            geometry.constants,
            self.problem_constants,
            self.points,
            record,
        )
        verdicts = method_verdicts(method, setting)
        verdicts += check_energy_decrease(theorem, check, record)
        verdicts.append(check_below_bound(check, solution, oracle.stochastic))
        advice = self._advice(method, theorem, geometry)
        return Run(method, solution, record, verdicts, check, advice, updates)

    def inverse_errors(self) -> dict[str, Inconsistency]:
        """Measure the inconsistency of the map.

        It is measured at the start, half-way and at the minimiser, which are the first three
        probes, and in a box around them.
        """
        if self.mirror is None:
            return {}
        probes = self.probes[:3]
        entries = torch.cat([leaf.flatten() for x in probes for leaf in leaves(x)])
        low = float(entries.min())
        high = float(entries.max())
        box = inconsistency_over_box(self.mirror, low, high, probes[0], self.generator, 1)
        along = inconsistency(self.mirror, probes, images=self.duals[:3])
        return {
            "the start, half-way and the minimiser": along,
            f"the box [{low:.3g}, {high:.3g}] around them": box,
        }

    def settings(self, methods: Mapping[str, Method[Any]], compared_with: str) -> dict[str, str]:
        """Describe the settings of the examination in words."""
        settings = {"problems": str(batch_size(self.x0)), "iterations": str(self.iterations)}
        if self.mirror is not None:
            count = batch_size(self.probes[0])
            settings["the map judged at"] = f"{len(self.probes)} points of {count} of the problems"
        oracles = []
        for method in methods.values():
            oracle = method.resolve_oracle(self.oracle)
            kind = "Exact" if isinstance(oracle, Exact) else type(oracle).__name__
            if kind not in oracles:
                oracles.append(kind)
        settings["gradients"] = ", ".join(oracles)
        settings["compared with"] = compared_with
        return settings

    def _advice(self, method: Method[Any], theorem: Theorem, geometry: Geometry) -> Advice:
        stochastic = method.resolve_oracle(self.oracle).stochastic
        smoothness = self.problem_constants.smoothness
        storage = storage_of(method)
        return advise(theorem, storage, self.exact, stochastic, geometry.alpha, smoothness)
