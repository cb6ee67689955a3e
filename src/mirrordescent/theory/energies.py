"""Energies and error terms of the theorems, measured along a run by a callback of ``solve``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Generator, Tensor

from mirrordescent.methods import Method
from mirrordescent.methods.accelerated import AMDState, ASMDState, area
from mirrordescent.methods.base import Theorem
from mirrordescent.mirrors import MirrorMap
from mirrordescent.oracles import Oracle
from mirrordescent.problems import Problem
from mirrordescent.schedules import Schedule
from mirrordescent.solving import Snapshot, Solution, solve
from mirrordescent.theory.assumptions import takes_exact_steps
from mirrordescent.theory.geometry import (
    Coupling,
    NewtonInverse,
    difference,
    exact_geometry,
    expand_like,
    move_inside,
    squared_dual_norm,
    usable_domain,
)
from mirrordescent.theory.recording import (
    RecordedStep,
    SeriesBuilder,
    StepRecorder,
    theorem_of,
    unwrap,
)
from mirrordescent.trees import Tree, descend, dot, norm, tree_map

Numbers: TypeAlias = dict[str, Tensor]

PROBE_SAMPLES = 2
"""Samples of a batch at which a map is examined; few, because exact inversion is expensive."""


@dataclass(frozen=True)
class Record:
    """Series along a run of K steps: one number per sample, NaN after a sample has stopped.

    A series is found by its name, ``record["gap"]``. If the method has no theorem, the record
    contains only the gap.

    Attributes:
        steps: Step sizes t_0, …, t_{K−1}: (K,).
        at_states: Series from the start to the last iterate: (K + 1, batch) each.
        at_steps: Series with one entry a step: (K, batch) each.
    """

    steps: Tensor
    at_states: Numbers
    at_steps: Numbers

    def __getitem__(self, name: str) -> Tensor:
        if name in self.at_states:
            return self.at_states[name]
        return self.at_steps[name]

    def __contains__(self, name: str) -> bool:
        return name in self.at_states or name in self.at_steps

    def running_maximum(self, name: str) -> Tensor:
        """Return the maximum of 0 and the series up to each step.

        For ``"error"`` of a run of AMD it is the constant M of Theorem 1.
        """
        return self[name].clamp(min=0).cummax(0).values


class Energies:
    """Measure the quantities of the theorem about MD, SMD, AMD or ASMD along a run.

    Below, u is a minimiser, ψ the exact geometry of the run
    (:func:`~mirrordescent.theory.geometry.exact_geometry`), g = ∇f, G the gradient that the oracle
    returned, and Δ = G − g. For dual-stored methods B(u, ·) is the coupling F(u, y).

    **MD, SMD** (section 1.3, Theorem 2). The *error* of a step is the dual vector

        U_k = (∇ψ(x_k) − ∇ψ(x_{k+1}))/t_k − G_k,        ∇ψ(x_{k+1}) = ∇ψ(x_k) − t_k(G_k + U_k)

    which is zero for exact maps. With x = x_{k+1} and x̂ = ∇ψ*(∇ψ(x_k) − t_k G_k) the series are

    =================  ====================================================================
    ``gap``            f(x_k) − f(u)
    ``divergence``     B(u, x_k)
    ``displacement``   ‖G_k + U_k‖_*²
    ``error``          ‖U_k‖_*
    ``error_pairing``  ⟨U_k, x_k − u⟩
    ``noise``          ‖Δ_k‖_*²
    ``noise_pairing``  ⟨Δ_k, x_k − u⟩
    ``dual_error``     ⟨∇ψ(x̂) − ∇ψ(x), u − x⟩, an error term of LMD
    ``primal_error``   ⟨∇f(x̂), x − x̂⟩, the other error term; needs exact iterates
    =================  ====================================================================

    **AMD** (Lemma 1, Theorem 1). ``gap`` f(x̃_k) − f(u), ``divergence`` B(u, z̃_k), ``energy``

        Ẽ_k = (k² t_{k−1}/r)(f(x̃_k) − f(u)) + r B(u, z̃_k)

    and ``error`` ⟨∇ψ(z̃_{k+1}) − ∇ψ(ẑ_{k+1}), z̃_{k+1} − u⟩. The error does not need ẑ, because
    ∇ψ(ẑ_{k+1}) = ∇ψ(z̃_k) − (k/r) t_k G_k by definition. ``distance`` ‖z̃_{k+1} − ẑ_{k+1}‖ needs
    exact iterates.

    **ASMD** (Theorem 3). ``gap`` f(x_k) − f(u), ``divergence`` B(u, ∇ψ*(y_k)), ``energy``

        E_k = A_k (f(x_k) − f(u)) + (s_k/t_k) B(u, ∇ψ*(y_k)),

    which is the paper's for t = 1, ``displacement`` ‖G‖_*², ``noise`` ‖Δ‖_*², ``distance``
    ‖x_{k+1} − u‖, and ``error`` ⟨∇f(x_{k+1}), U_k⟩. Here U_k is the difference between the map's
    ∇ψ*(y_k) and the exact one.

    A method of your own that declares one of these theorems (``Method.theorem``) needs states with
    the same fields. For a method without a theorem only ``gap`` is measured.

    :func:`observe` runs a method with this callback. To use the callback directly, wrap the method
    in :class:`~mirrordescent.theory.recording.StepRecorder` and call ``solve`` with
    ``check_every=1``.

    Args:
        minimiser: Point u, or one per problem. The inequalities hold for every u in place of x*.
        geometry: Another exact map to compare the run with, such as M for a dual-stored pair, or
            its :class:`~mirrordescent.theory.geometry.Coupling` with the minimiser. For a
            :class:`~mirrordescent.mirrors.Conjugate` a given coupling saves an inversion.
        exact_iterates: Whether to compute x̂ or ẑ by an exact inversion in every step.

    >>> import torch
    >>> from mirrordescent import MD, Quadratic, solve
    >>> from mirrordescent.mirrors import Euclidean
    >>> problem = Quadratic(torch.ones(2), centre=torch.ones(1, 2))
    >>> energies = Energies(minimiser=torch.ones(1, 2))
    >>> method = StepRecorder(MD(Euclidean(), 0.5))
    >>> _ = solve(problem, method, iterations=2, callbacks=[energies], check_every=1)
    >>> energies.record["divergence"].flatten()
    tensor([1.0000, 0.2500, 0.0625])
    """

    _measurement: _Measurement | None
    _step_sizes: list[float]
    _iterate: MirrorIterate
    _value: Tensor
    _least_value: Tensor

    def __init__(
        self,
        minimiser: Tree,
        *,
        geometry: MirrorMap | Coupling | None = None,
        exact_iterates: bool = False,
    ) -> None:
        self.minimiser = minimiser
        self.geometry = geometry
        self.exact_iterates = exact_iterates
        self._at_states = SeriesBuilder()
        self._at_steps = SeriesBuilder()
        self._k = -1

    def __call__(self, snapshot: Snapshot) -> None:
        """Measure the newest state and the step that led to it."""
        if snapshot.k == 0:
            self._begin(snapshot)
        elif snapshot.k != self._k + 1:
            raise ValueError("Energies must see every step: call solve(…, check_every=1)")
        if self._measurement is None:
            measured = {"gap": snapshot.value - self._least_value}
        else:
            measured = self._measure(snapshot, self._measurement)
        self._at_states.append(measured, snapshot.running)
        self._k = snapshot.k
        self._value = snapshot.value

    def _measure(self, snapshot: Snapshot, measurement: _Measurement) -> Numbers:
        """Append the numbers of the last step, and return those of the newest state."""
        state = snapshot.state.inner
        iterate = measurement.mirror_iterate(state)
        if snapshot.k > 0:
            step = cast(RecordedStep, snapshot.state.own)
            t = schedule_value(measurement.method.t, snapshot.k)
            self._step_sizes.append(t)
            numbers = measurement.of_step(step, state, t, self._iterate, iterate)
            self._at_steps.append(numbers, snapshot.running)
        self._iterate = iterate
        return measurement.of_state(state, iterate, snapshot.value, self._value)

    def _begin(self, snapshot: Snapshot) -> None:
        theorem = theorem_of(snapshot.method)
        u = expand_like(self.minimiser, snapshot.x)
        self._measurement = None
        self._step_sizes = []
        if theorem:
            if not isinstance(snapshot.method, StepRecorder):
                raise ValueError(
                    "Energies needs recorded steps: call solve(problem, StepRecorder(method), …)"
                )
            method: Any = unwrap(snapshot.method)
            coupling, exact_run = self._reference_geometry(method, u, snapshot)
            self._measurement = _MEASUREMENTS[theorem](
                method, snapshot.problem, coupling, exact_run, self.exact_iterates
            )
        self._at_states = SeriesBuilder()
        self._at_steps = SeriesBuilder()
        self._value = snapshot.start_value
        self._least_value = snapshot.problem.value(u)

    def _reference_geometry(
        self, method: Any, u: Tree, snapshot: Snapshot
    ) -> tuple[Coupling, bool]:
        """Return the geometry to compare with, and whether the run is exact in it.

        Exactness is tested at the start and at u; the map's own claim is not trusted.
        """
        mirror: MirrorMap = method.mirror
        dual_stored = method.storage == "dual"
        domain = usable_domain(mirror, snapshot.problem)
        interior = [move_inside(x, domain) for x in (snapshot.x, u)]
        points = [tree_map(lambda leaf: leaf[:PROBE_SAMPLES], x) for x in interior]
        if self.geometry is None:
            exact = mirror.exact and takes_exact_steps(mirror, dual_stored, mirror, points)
            coupling = Coupling(exact_geometry(mirror, method.storage, exact), u, tested=True)
        elif isinstance(self.geometry, Coupling):
            coupling = self.geometry
        else:
            coupling = Coupling(self.geometry, u)
        same_map = coupling.mirror is mirror
        if same_map and coupling.tested:
            return coupling, True
        exact_run = takes_exact_steps(mirror, dual_stored, coupling.mirror, points)
        if same_map and not exact_run:
            raise ValueError(
                f"the geometry must be exact, but to_primal of {type(mirror).__name__} does not "
                "invert to_dual; pass another geometry=, or none"
            )
        return coupling, exact_run

    @property
    def record(self) -> Record:
        """The series measured so far."""
        if not self._at_states:
            raise ValueError(
                "nothing was observed: pass this callback to solve(…, check_every=1) first"
            )
        at_states = self._at_states.stacked()
        steps = at_states["gap"].new_tensor(self._step_sizes)
        return Record(steps, at_states, self._at_steps.stacked())


class MirrorIterate(NamedTuple):
    """The mirror iterate of a state in the exact geometry: y and, if it is known, ∇ψ*(y)."""

    dual: Tree
    primal: Tree | None


class _TheoremMeasurement:
    """The common part of the measurements for the three theorems.

    If a run is exact in its reference geometry (``exact_run``), errors are zero by definition. The
    formulas would return a normal vector of the domain instead, because ∇ψ is determined only up
    to normal vectors.
    """

    def __init__(
        self,
        method: Any,
        problem: Problem,
        coupling: Coupling,
        exact_run: bool,
        exact_iterates: bool,
    ) -> None:
        self.method = method
        self.problem = problem
        self.coupling = coupling
        self.exact_run = exact_run
        self.u = coupling.u
        self.geometry = coupling.mirror
        self.dual_stored = method.storage == "dual" and exact_run
        self.exact_iterates = exact_iterates and not exact_run
        self.least_value = problem.value(self.u)
        self.zeros = torch.zeros_like(self.least_value)

    def squared_norm(self, v: Tree) -> Tensor:
        """Return ‖v‖_*²."""
        return squared_dual_norm(self.geometry, v)

    def exact_primal(self, y: Tree, start: Tree) -> Tree:
        """Return ∇ψ*(y); an iterative inversion starts at a point nearby."""
        if isinstance(self.geometry, NewtonInverse):
            return self.geometry.to_primal_from(y, start)
        return self.geometry.to_primal(y)


class _DescentMeasurement(_TheoremMeasurement):
    """The quantities of Theorem 2, for MD and SMD."""

    def mirror_iterate(self, state: Any) -> MirrorIterate:
        if self.dual_stored:
            return MirrorIterate(state.y, state.x)
        return MirrorIterate(self.geometry.to_dual(state.x), state.x)

    def of_state(
        self, state: Any, iterate: MirrorIterate, value: Tensor, previous_value: Tensor
    ) -> Numbers:
        return {"gap": value - self.least_value, "divergence": self.coupling(*iterate)}

    def of_step(
        self,
        step: RecordedStep,
        state: Any,
        t: float,
        previous: MirrorIterate,
        current: MirrorIterate,
    ) -> Numbers:
        from_u = difference(step.previous.x, self.u)
        numbers = {
            "noise": self.squared_norm(step.noise),
            "noise_pairing": dot(step.noise, from_u),
        }
        if self.exact_run:
            numbers["error"] = self.zeros
            numbers["error_pairing"] = self.zeros
            numbers["dual_error"] = self.zeros
            numbers["displacement"] = self.squared_norm(step.gradient)
            return numbers
        # G + U is the vector by which the dual iterate moved, divided by the step size.
        displacement = tree_map(lambda a, b: (a - b) / t, previous.dual, current.dual)
        error = difference(displacement, step.gradient)
        numbers["displacement"] = self.squared_norm(displacement)
        numbers["error"] = self.squared_norm(error).sqrt()
        numbers["error_pairing"] = dot(error, from_u)
        numbers["dual_error"] = -t * dot(error, difference(state.x, self.u))
        if self.exact_iterates:
            x_hat = self.exact_primal(dual_step(previous.dual, step.gradient, t), state.x)
            numbers["primal_error"] = dot(self.problem.grad(x_hat), difference(state.x, x_hat))
        return numbers


class _AcceleratedMeasurement(_TheoremMeasurement):
    """The quantities of Lemma 1 and Theorem 1, for AMD."""

    def mirror_iterate(self, state: AMDState) -> MirrorIterate:
        if self.dual_stored:
            return MirrorIterate(state.z, None)
        z = state.z
        if self.method.storage == "dual":
            z = self.method.mirror.to_primal(z)
        return MirrorIterate(self.geometry.to_dual(z), z)

    def of_state(
        self, state: AMDState, iterate: MirrorIterate, value: Tensor, previous_value: Tensor
    ) -> Numbers:
        r = self.method.r
        if self.method.returns != "x_tilde":
            value = self.problem.value(state.x_tilde)
        weight = 0.0
        if state.k:
            weight = state.k**2 * schedule_value(self.method.t, state.k) / r
        gap = value - self.least_value
        divergence = self.coupling(*iterate)
        return {"gap": gap, "divergence": divergence, "energy": weight * gap + r * divergence}

    def of_step(
        self,
        step: RecordedStep,
        state: AMDState,
        t: float,
        previous: MirrorIterate,
        current: MirrorIterate,
    ) -> Numbers:
        if self.exact_run:
            return {"error": self.zeros}
        z = cast(Tree, current.primal)
        weight = t * schedule_value(self.method.dual_weight, state.k)
        z_hat_dual = dual_step(previous.dual, step.gradient, weight)
        error = dot(difference(current.dual, z_hat_dual), difference(z, self.u))
        if not self.exact_iterates:
            return {"error": error}
        z_hat = self.exact_primal(z_hat_dual, z)
        return {"error": error, "distance": norm(difference(z, z_hat))}


class _AcceleratedStochasticMeasurement(_TheoremMeasurement):
    """The quantities of Theorem 3, for ASMD."""

    def mirror_iterate(self, state: ASMDState) -> MirrorIterate:
        if self.exact_run:
            return MirrorIterate(state.y, None)
        start = self.method.mirror.to_primal(state.y)
        return MirrorIterate(state.y, self.exact_primal(state.y, start))

    def of_state(
        self, state: ASMDState, iterate: MirrorIterate, value: Tensor, previous_value: Tensor
    ) -> Numbers:
        # The state with count k holds x_{k+1}; the previous answer was x_k.
        gap = previous_value - self.least_value
        divergence = self.coupling(*iterate)
        weight = (state.k + 1) ** 1.5 / schedule_value(self.method.t, state.k + 1)
        energy = area(state.k) * gap + weight * divergence
        return {"gap": gap, "divergence": divergence, "energy": energy}

    def of_step(
        self,
        step: RecordedStep,
        state: ASMDState,
        t: float,
        previous: MirrorIterate,
        current: MirrorIterate,
    ) -> Numbers:
        error = self.zeros
        if previous.primal is not None:
            computed = self.method.mirror.to_primal(step.previous.y)
            error = dot(step.true_gradient, difference(computed, previous.primal))
        return {
            "displacement": self.squared_norm(step.gradient),
            "noise": self.squared_norm(step.noise),
            "distance": norm(difference(step.previous.x, self.u)),
            "error": error,
        }


_Measurement: TypeAlias = (
    _DescentMeasurement | _AcceleratedMeasurement | _AcceleratedStochasticMeasurement
)
_MEASUREMENTS: dict[Theorem, type[_Measurement]] = {
    "descent": _DescentMeasurement,
    "accelerated": _AcceleratedMeasurement,
    "accelerated stochastic": _AcceleratedStochasticMeasurement,
}


class Observed(NamedTuple):
    """A run and the series measured along it."""

    solution: Solution
    record: Record


def observe(
    problem: Problem,
    method: Method[Any],
    x0: Tree | None = None,
    *,
    minimiser: Tree,
    iterations: int = 200,
    oracle: Oracle | None = None,
    generator: Generator | None = None,
    geometry: MirrorMap | Coupling | None = None,
    exact_iterates: bool = False,
    callbacks: Sequence[Callable[[Snapshot], object]] = (),
) -> Observed:
    """Solve a problem and measure the quantities of the method's theorem along the run.

    The series are described in :class:`~mirrordescent.theory.energies.Energies`. If no theorem
    covers the method, as for most wrappers, only the gap is measured. An
    :class:`~mirrordescent.methods.Equipped` method asks its own oracle.

    Args:
        problem: Problem to solve.
        method: Method to run.
        x0: Start; by default the problem's own.
        minimiser: Point u, or one per problem, to compare with.
        iterations: Number of steps.
        oracle: Oracle for gradients; by default the one of ``solve``.
        generator: Random generator of the run.
        geometry: Exact map, or coupling, to compare with; by default the geometry of the run.
        exact_iterates: Whether to compute exact iterates by an inversion in every step.
        callbacks: Further callbacks of the run.
    """
    energies = Energies(minimiser, geometry=geometry, exact_iterates=exact_iterates)
    if theorem_of(method):
        method = StepRecorder(cast(Any, method))
    solution = solve(
        problem,
        method,
        x0,
        iterations=iterations,
        oracle=oracle,
        generator=generator,
        callbacks=[energies, *callbacks],
        check_every=1,
        progress=False,
    )
    return Observed(solution, energies.record)


def dual_step(y: Tree, g: Tree, t: float | Tensor) -> Tree:
    """Return y − t·g."""
    return tree_map(lambda y, g: descend(y, g, t), y, g)


def schedule_value(schedule: Schedule, count: int) -> float:
    """Return the value of a schedule as a plain number."""
    value = schedule(count)
    if isinstance(value, Tensor):
        value = value.detach()
    return float(value)
