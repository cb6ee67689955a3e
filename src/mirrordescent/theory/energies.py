"""Energies and error terms of the theorems along a run, as a callback of
:func:`~mirrordescent.solve`.
"""

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
from mirrordescent.theory.assumptions import runs_exactly
from mirrordescent.theory.geometry import (
    Coupling,
    Inverted,
    difference,
    domain_of,
    exact_geometry,
    expanded,
    inside,
    squared_dual_norm,
)
from mirrordescent.theory.watched import Rows, Seen, Watched, bare, theorem_of
from mirrordescent.trees import Tree, descend, dot, norm, tree_map

Numbers: TypeAlias = dict[str, Tensor]
# problems of a batch at whose points a map is judged, since inverting it exactly is expensive
PROBED = 2


@dataclass(frozen=True)
class Record:
    """Series along a run of K steps: one number per sample, NaN where a sample has stopped.

    ``steps`` are the t_0, …, t_{K−1}: (K,). ``at_states`` are (K + 1, batch), from the start to the
    last iterate; ``at_steps`` are (K, batch). Indexing by a name finds either. Without a theorem
    there is only the gap.
    """

    steps: Tensor
    at_states: Numbers
    at_steps: Numbers

    def __getitem__(self, name: str) -> Tensor:
        return self.at_states[name] if name in self.at_states else self.at_steps[name]

    def __contains__(self, name: str) -> bool:
        return name in self.at_states or name in self.at_steps

    def running_maximum(self, name: str) -> Tensor:
        """Return max(0, series up to and including each step): the M of Theorem 1 for ``"error"``
        of AMD.
        """
        return self[name].clamp(min=0).cummax(0).values


class Energies:
    """Follow a run of MD, SMD, AMD or ASMD and measure the quantities that its theorem is about.

    Below u is a minimiser, ψ the exact geometry of the run
    (:func:`~mirrordescent.theory.exact_geometry`), and B(u, ·) = F(u, y), the coupling, for
    dual-stored methods. g = ∇f, G is what the oracle told, Δ = G − g.

    **MD, SMD** (section 1.3, Theorem 2). With the *error* of a step as a dual vector, zero for
    exact maps,

        U_k = (∇ψ(x_k) − ∇ψ(x_{k+1}))/t_k − G_k,        ∇ψ(x_{k+1}) = ∇ψ(x_k) − t_k(G_k + U_k)

    ``gap`` f(x_k) − f(u), ``divergence`` B(u, x_k); ``displacement`` ‖G_k + U_k‖_*², ``error``
    ‖U_k‖_*, ``error_pairing`` ⟨U_k, x_k − u⟩, ``noise`` ‖Δ_k‖_*², ``noise_pairing`` ⟨Δ_k, x_k − u⟩,
    and with x̂ = ∇ψ*(∇ψ(x_k) − t_k G_k), x = x_{k+1}: ``dual_error`` ⟨∇ψ(x̂) − ∇ψ(x), u − x⟩ and,
    if exact iterates are asked for, ``primal_error`` ⟨∇f(x̂), x − x̂⟩: the two error terms of LMD.

    **AMD** (Lemma 1, Theorem 1). ``gap`` f(x̃_k) − f(u), ``divergence`` B(u, z̃_k), ``energy``

        Ẽ_k = (k² t_{k−1}/r)(f(x̃_k) − f(u)) + r B(u, z̃_k)

    and ``error`` ⟨∇ψ(z̃_{k+1}) − ∇ψ(ẑ_{k+1}), z̃_{k+1} − u⟩, for which ẑ is not needed, since
    ∇ψ(ẑ_{k+1}) = ∇ψ(z̃_k) − (k/r) t_k G_k by definition; ``distance`` ‖z̃_{k+1} − ẑ_{k+1}‖ needs
    it.

    **ASMD** (Theorem 3). ``gap`` f(x_k) − f(u), ``divergence`` B(u, ∇ψ*(y_k)), ``energy``

        E_k = A_k (f(x_k) − f(u)) + (s_k/t_k) B(u, ∇ψ*(y_k))

    (the paper's for t = 1), ``displacement`` ‖G‖_*², ``noise`` ‖Δ‖_*², ``distance`` ‖x_{k+1} − u‖,
    and ``error`` ⟨∇f(x_{k+1}), U_k⟩ with U_k = what the map gave for ∇ψ*(y_k), minus ∇ψ*(y_k).

    A method of your own that declares one of these theorems (``Method.theorem``) needs states with
    the same fields. Of a method without a theorem only ``gap`` is measured.

    Use it as a callback on a run of the method in :class:`~mirrordescent.theory.Watched`, looked at
    in every step, or call :func:`observe`, which does both.

    >>> import torch
    >>> from mirrordescent import MD, Quadratic, solve
    >>> from mirrordescent.mirrors import Euclidean
    >>> problem = Quadratic(torch.ones(2), centre=torch.ones(1, 2))
    >>> energies = Energies(minimiser=torch.ones(1, 2))
    >>> _ = solve(problem, Watched(MD(Euclidean(), 0.5)), iterations=2, callbacks=[energies], check_every=1)
    >>> energies.record["divergence"].flatten()
    tensor([1.0000, 0.2500, 0.0625])

    Args:
        minimiser: u, a point or one per problem. The inequalities hold for every u in place of x*.
        geometry: another exact map to hold the run against, such as M for a dual-stored pair; or
            the :class:`~mirrordescent.theory.Coupling` of a map with the minimiser, where it is at
            hand: for a :class:`~mirrordescent.mirrors.Conjugate` it takes an inversion.
        exact_iterates: whether to compute x̂ or ẑ by an exact inversion in every step.
    """

    _terms: _Terms | None
    _t: list[float]
    _place: Place
    _value: Tensor
    _least: Tensor

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
        self._at_states = Rows()
        self._at_steps = Rows()
        self._k = -1

    def __call__(self, look: Snapshot) -> None:
        """Take in the newest state, and the step that led to it."""
        if look.k == 0:
            self._begin(look)
        elif look.k != self._k + 1:
            raise ValueError("Energies must see every step: solve(…, check_every=1)")
        terms = self._terms
        found = {"gap": look.value - self._least}
        if terms is not None:
            state = look.state.inner
            seen = cast(Seen, look.state.own)
            place = terms.place(state)
            if look.k:
                self._t.append(value_at(terms.method.t, look.k))
                self._at_steps.append(
                    terms.of_step(seen, state, self._t[-1], self._place, place), look.running
                )
            found = terms.of_state(state, place, look.value, self._value)
            self._place = place
        self._at_states.append(found, look.running)
        self._k = look.k
        self._value = look.value

    def _begin(self, look: Snapshot) -> None:
        method = bare(look.method)
        theorem = theorem_of(look.method)
        u = expanded(self.minimiser, look.x)
        self._terms = None
        self._t = []
        if theorem:
            if not isinstance(look.method, Watched):
                raise ValueError(
                    "Energies must hear the gradients: solve(problem, Watched(method), …)"
                )
            coupling, own = self._held_against(method, u, look)
            self._terms = _TERMS[theorem](method, look.problem, coupling, own, self.exact_iterates)
        self._at_states = Rows()
        self._at_steps = Rows()
        self._value = look.start_value
        self._least = look.problem.value(u)

    def _held_against(self, method: Any, u: Tree, look: Snapshot) -> tuple[Coupling, bool]:
        """Return the geometry, and whether the run is exact in it: at the start and at u, not by
        what the map says.
        """
        mirror = cast(MirrorMap, method.mirror)
        dual = method.storage == "dual"
        given = self.geometry
        domain = domain_of(mirror, look.problem)
        points = [tree_map(lambda leaf: leaf[:PROBED], inside(x, domain)) for x in (look.x, u)]
        if given is None:
            claimed = mirror.exact and runs_exactly(mirror, dual, mirror, points)
            given = Coupling(exact_geometry(mirror, method.storage, claimed), u, tested=True)
        coupling = given if isinstance(given, Coupling) else Coupling(given, u)
        geometry = coupling.mirror
        own = (geometry is mirror and coupling.tested) or runs_exactly(
            mirror, dual, geometry, points
        )
        if geometry is mirror and not own:
            raise ValueError(
                f"the geometry is not exact: to_primal of {type(mirror).__name__} does not invert to_dual"
            )
        return coupling, own

    @property
    def record(self) -> Record:
        """What was measured so far."""
        if not self._at_states:
            raise ValueError(
                "nothing was observed: pass this callback to a solve with check_every=1"
            )
        at_states = self._at_states.stacked()
        return Record(at_states["gap"].new_tensor(self._t), at_states, self._at_steps.stacked())


class Place(NamedTuple):
    """The mirror iterate of a state in the exact geometry: y and, where it is at hand, ∇ψ*(y)."""

    dual: Tree
    primal: Tree | None


class _Common:
    """What the quantities of the three theorems have in common.

    ``own`` says whether the run is exact in the geometry it is held against. Errors are then zero
    by definition. The formulas would find a normal vector of the domain instead: ∇ψ is determined
    only up to those.
    """

    def __init__(
        self, method: Any, problem: Problem, coupling: Coupling, own: bool, exact_iterates: bool
    ) -> None:
        self.method = method
        self.problem = problem
        self.coupling = coupling
        self.own = own
        self.u = coupling.u
        self.geometry = coupling.mirror
        self.dual_stored = method.storage == "dual" and own
        self.exact_iterates = exact_iterates and not own
        self.least = problem.value(self.u)
        self.nothing = torch.zeros_like(self.least)

    def measured(self, gap: Tensor, place: Place, *weights: float) -> Numbers:
        """Return gap and divergence, and the energy that is made of them with some weights."""
        found = {"gap": gap, "divergence": self.coupling(*place)}
        if weights:
            found["energy"] = weights[0] * gap + weights[1] * found["divergence"]
        return found

    def squared(self, v: Tree) -> Tensor:
        """‖v‖_*²."""
        return squared_dual_norm(self.geometry, v)

    def exactly(self, y: Tree, start: Tree) -> Tree:
        """∇ψ*(y)."""
        return (
            self.geometry.near(y, start)
            if isinstance(self.geometry, Inverted)
            else self.geometry.to_primal(y)
        )


class _Descent(_Common):
    def place(self, state: Any) -> Place:
        return Place(state.y if self.dual_stored else self.geometry.to_dual(state.x), state.x)

    def of_state(self, state: Any, place: Place, value: Tensor, value_before: Tensor) -> Numbers:
        return self.measured(value - self.least, place)

    def of_step(self, seen: Seen, after: Any, t: float, there: Place, here: Place) -> Numbers:
        from_u = difference(seen.before.x, self.u)
        found = {"noise": self.squared(seen.noise), "noise_pairing": dot(seen.noise, from_u)}
        if self.own:
            none = dict.fromkeys(("error", "error_pairing", "dual_error"), self.nothing)
            return {**found, **none, "displacement": self.squared(seen.told)}
        total = tree_map(lambda a, b: (a - b) / t, there.dual, here.dual)
        error = difference(total, seen.told)
        found["displacement"] = self.squared(total)
        found["error"] = self.squared(error).sqrt()
        found["error_pairing"] = dot(error, from_u)
        found["dual_error"] = -t * dot(error, difference(after.x, self.u))
        if self.exact_iterates:
            x_hat = self.exactly(moved(there.dual, seen.told, t), after.x)
            found["primal_error"] = dot(self.problem.grad(x_hat), difference(after.x, x_hat))
        return found


class _Accelerated(_Common):
    def place(self, state: AMDState) -> Place:
        if self.dual_stored:
            return Place(state.z, None)
        z = self.method.mirror.to_primal(state.z) if self.method.storage == "dual" else state.z
        return Place(self.geometry.to_dual(z), z)

    def of_state(
        self, state: AMDState, place: Place, value: Tensor, value_before: Tensor
    ) -> Numbers:
        value = value if self.method.returns == "x_tilde" else self.problem.value(state.x_tilde)
        weight = state.k**2 * value_at(self.method.t, state.k) / self.method.r if state.k else 0.0
        return self.measured(value - self.least, place, weight, self.method.r)

    def of_step(self, seen: Seen, after: AMDState, t: float, there: Place, here: Place) -> Numbers:
        if self.own:
            return {"error": self.nothing}
        z = cast(Tree, here.primal)
        aimed = moved(there.dual, seen.told, t * value_at(self.method.dual_weight, after.k))
        found = {"error": dot(difference(here.dual, aimed), difference(z, self.u))}
        if self.exact_iterates:
            found["distance"] = norm(difference(z, self.exactly(aimed, z)))
        return found


class _AcceleratedStochastic(_Common):
    def place(self, state: ASMDState) -> Place:
        return Place(
            state.y,
            None if self.own else self.exactly(state.y, self.method.mirror.to_primal(state.y)),
        )

    def of_state(
        self, state: ASMDState, place: Place, value: Tensor, value_before: Tensor
    ) -> Numbers:
        gap = (
            value_before - self.least
        )  # the state of count k holds x_{k+1}; x_k was the answer before
        return self.measured(
            gap, place, area(state.k), (state.k + 1) ** 1.5 / value_at(self.method.t, state.k + 1)
        )

    def of_step(self, seen: Seen, after: ASMDState, t: float, there: Place, here: Place) -> Numbers:
        error = self.nothing
        if there.primal is not None:
            error = dot(
                seen.true, difference(self.method.mirror.to_primal(seen.before.y), there.primal)
            )
        distance = norm(difference(seen.before.x, self.u))
        sizes = {"displacement": self.squared(seen.told), "noise": self.squared(seen.noise)}
        return {**sizes, "distance": distance, "error": error}


_Terms: TypeAlias = _Descent | _Accelerated | _AcceleratedStochastic
_TERMS: dict[Theorem, type[_Terms]] = {
    "descent": _Descent,
    "accelerated": _Accelerated,
    "accelerated stochastic": _AcceleratedStochastic,
}


class Observed(NamedTuple):
    """A run and what was measured along it."""

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
    """Solve, and follow the run with :class:`Energies`, and with further callbacks if there are
    any.

    An :class:`~mirrordescent.methods.Equipped` method asks its own oracle. Where there is no
    theorem about the method, as with all other wrappers, only the gap is measured.
    """
    energies = Energies(minimiser, geometry=geometry, exact_iterates=exact_iterates)
    solution = solve(
        problem,
        Watched(cast(Any, method)) if theorem_of(method) else method,
        x0,
        iterations=iterations,
        oracle=oracle,
        generator=generator,
        callbacks=[energies, *callbacks],
        check_every=1,
        progress=False,
    )
    return Observed(solution, energies.record)


def moved(y: Tree, g: Tree, t: float | Tensor) -> Tree:
    """y − t·g."""
    return tree_map(lambda y, g: descend(y, g, t), y, g)


def value_at(schedule: Schedule, count: int) -> float:
    """Return the value of a schedule as a plain number."""
    value = schedule(count)
    return float(value.detach() if isinstance(value, Tensor) else value)
