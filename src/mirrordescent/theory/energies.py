"""Energies and error terms of the theorems along a run, as callbacks of :func:`~mirrordescent.solve`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Generator, Tensor

from mirrordescent.methods import AMD, ASMD, MD, SMD
from mirrordescent.methods.accelerated import AMDState, ASMDState
from mirrordescent.methods.accelerated import _area as area
from mirrordescent.methods.descent import MDState, SMDState
from mirrordescent.mirrors import MirrorMap
from mirrordescent.oracles import Exact, Oracle
from mirrordescent.problems import Problem
from mirrordescent.schedules import Schedule
from mirrordescent.solve import Look, Solution, solve
from mirrordescent.theory.geometry import (
    Coupling,
    Inverted,
    exact_geometry,
    expanded,
    squared_dual_norm,
    storage_of,
)
from mirrordescent.trees import Tree, dot, norm, tree_map


class Listening(Oracle):
    """G(x) of another oracle, remembered: what a callback needs to know of a step besides its two ends."""

    def __init__(self, base: Oracle) -> None:
        super().__init__()
        self.base, self.stochastic = base, base.stochastic
        self.heard: Tree | None = None

    def forward(self, problem: Problem, x: Tree, k: int, generator: Generator | None = None) -> Tree:
        """Return the base oracle's answer."""
        self.heard = self.base(problem, x, k, generator)
        return self.heard


@dataclass(frozen=True)
class Step:
    """One iteration: the states before and after it, the step size, the gradient told, and the true one."""

    before: Any
    after: Any
    t: float
    told: Tree
    true: Tree

    @property
    def noise(self) -> Tree:
        """Δ = G − g."""
        return tree_map(torch.sub, self.told, self.true)


@dataclass(frozen=True)
class Record:
    """Series along a run of K steps: one number per sample, NaN where a sample has stopped.

    ``steps`` are the t_0, …, t_{K−1}: (K,). ``at_states`` are (K + 1, batch), from the start to the last iterate;
    ``at_steps`` are (K, batch). Indexing by a name finds either.
    """

    steps: Tensor
    at_states: dict[str, Tensor]
    at_steps: dict[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        """Return a series by its name."""
        return self.at_states[name] if name in self.at_states else self.at_steps[name]

    def running_maximum(self, name: str) -> Tensor:
        """Return max(0, series up to and including each step): the M of Theorem 1 for ``"error"`` of AMD."""
        return self[name].clamp(min=0).cummax(0).values

    def __contains__(self, name: str) -> bool:
        return name in self.at_states or name in self.at_steps


class Energies:
    """Follow a run of MD, SMD, AMD or ASMD and measure the quantities that its theorem is about.

    Below u is a minimiser, ψ the exact geometry of the run (:func:`~mirrordescent.theory.exact_geometry`), and
    B(u, ·) = F(u, y), the coupling, for dual-stored methods. g = ∇f, G is what the oracle told, Δ = G − g.

    **MD, SMD** (section 1.3, Theorem 2). With the *error* of a step as a dual vector, zero for exact maps,

        U_k = (∇ψ(x_k) − ∇ψ(x_{k+1}))/t_k − G_k,        ∇ψ(x_{k+1}) = ∇ψ(x_k) − t_k(G_k + U_k)

    ``gap`` f(x_k) − f(u), ``divergence`` B(u, x_k); ``displacement`` ‖G_k + U_k‖_*², ``error`` ‖U_k‖_*,
    ``error_pairing`` ⟨U_k, x_k − u⟩, ``noise`` ‖Δ_k‖_*², ``noise_pairing`` ⟨Δ_k, x_k − u⟩, and
    with x̂ = ∇ψ*(∇ψ(x_k) − t_k G_k), x = x_{k+1}: ``dual_error`` ⟨∇ψ(x̂) − ∇ψ(x), u − x⟩ and, if exact iterates
    are asked for, ``primal_error`` ⟨∇f(x̂), x − x̂⟩: the two error terms of LMD.

    **AMD** (Lemma 1, Theorem 1). ``gap`` f(x̃_k) − f(u), ``divergence`` B(u, z̃_k), ``energy``

        Ẽ_k = (k² t_{k−1}/r)(f(x̃_k) − f(u)) + r B(u, z̃_k)

    and ``error`` ⟨∇ψ(z̃_{k+1}) − ∇ψ(ẑ_{k+1}), z̃_{k+1} − u⟩, for which ẑ is not needed, since
    ∇ψ(ẑ_{k+1}) = ∇ψ(z̃_k) − (k/r) t_k G_k by definition; ``distance`` ‖z̃_{k+1} − ẑ_{k+1}‖ needs it.

    **ASMD** (Theorem 3). ``gap`` f(x_k) − f(u), ``divergence`` B(u, ∇ψ*(y_k)), ``energy``

        E_k = A_k (f(x_k) − f(u)) + (s_k/t_k) B(u, ∇ψ*(y_k))

    (the paper's for t = 1), ``displacement`` ‖G‖_*², ``noise`` ‖Δ‖_*², ``distance`` ‖x_{k+1} − u‖, and ``error``
    ⟨∇f(x_{k+1}), U_k⟩ with U_k = what the map gave for ∇ψ*(y_k), minus ∇ψ*(y_k).

    Use it as a callback that also listens to the oracle, on a run that is looked at in every step, or call
    :func:`observe`, which does so.

    >>> import torch
    >>> from mirrordescent import MD, Quadratic, solve
    >>> from mirrordescent.mirrors import Euclidean
    >>> problem = Quadratic(torch.ones(2), centre=torch.ones(1, 2))
    >>> energies = Energies(minimiser=torch.ones(1, 2))
    >>> _ = solve(
    ...     problem, MD(Euclidean(), 0.5), iterations=2,
    ...     oracle=energies.listen(), callbacks=[energies], check_every=1,
    ... )
    >>> energies.record["divergence"].flatten()
    tensor([1.0000, 0.2500, 0.0625])

    Args:
        minimiser: u, a point or one per problem. The inequalities hold for every u in place of x*.
        geometry: another exact map to hold the run against, such as M for a dual-stored pair; or the
            :class:`~mirrordescent.theory.Coupling` of a map with the minimiser, where it is at hand: for a
            :class:`~mirrordescent.mirrors.Conjugate` it takes an inversion.
        exact_iterates: whether to compute x̂ or ẑ by an exact inversion in every step.
    """

    def __init__(
        self, minimiser: Tree, *, geometry: MirrorMap | Coupling | None = None, exact_iterates: bool = False
    ) -> None:
        self.minimiser, self.geometry, self.exact_iterates = minimiser, geometry, exact_iterates
        self._oracle: Listening | None = None
        self._terms: _Terms | None = None
        self._before: Any = None
        self._value: Tensor

    def listen(self, oracle: Oracle | None = None) -> Listening:
        """Return the oracle to solve with: the one given, or the exact one, overheard."""
        self._oracle = Listening(oracle or Exact())
        return self._oracle

    def __call__(self, look: Look) -> None:
        """Take in the newest state, and the step that led to it."""
        if self._oracle is None:
            raise ValueError("Energies must hear the gradients: solve(…, oracle=energies.listen(oracle))")
        if look.k == 0 or self._terms is None:
            self._begin(look)
            return
        if look.k != self._before.k + 1:
            raise ValueError("Energies must see every step: solve(…, check_every=1)")
        terms, told = self._terms, self._oracle.heard
        assert told is not None
        true = told if isinstance(self._oracle.base, Exact) else look.problem.grad(self._before.x)
        step = Step(self._before, look.state, value_at(terms.method.t, look.k), told, true)
        self._t.append(step.t)
        _append(self._at_steps, terms.of_step(step), look.running)
        _append(self._at_states, terms.of_state(look, self._value), look.running)
        self._before, self._value = look.state, look.value

    @property
    def record(self) -> Record:
        """What was measured so far."""
        if self._terms is None:
            raise ValueError("nothing was observed: pass this callback to a solve with check_every=1")
        steps = torch.tensor(self._t, dtype=self._value.dtype, device=self._value.device)
        series = (
            {name: torch.stack(rows) for name, rows in rows.items()} for rows in (self._at_states, self._at_steps)
        )
        return Record(steps, *series)

    def _begin(self, look: Look) -> None:
        kind = next((kind for kind in _TERMS if isinstance(look.method, kind)), None)
        storage = storage_of(look.method)
        assert kind is not None
        u = expanded(self.minimiser, look.state.x)
        geometry = self.geometry or exact_geometry(cast(MirrorMap, look.method.mirror), storage)
        coupling = geometry if isinstance(geometry, Coupling) else Coupling(geometry, u)
        self._terms = _TERMS[kind](look.method, look.problem, coupling, storage, self.exact_iterates)
        self._t: list[float] = []
        self._at_states: dict[str, list[Tensor]] = {}
        self._at_steps: dict[str, list[Tensor]] = {}
        _append(self._at_states, self._terms.of_state(look, look.start_value), look.running)
        self._before, self._value = look.state, look.value


@dataclass(frozen=True)
class Observed:
    """A run and what was measured along it."""

    solution: Solution
    record: Record


def observe(
    problem: Problem,
    method: Any,
    x0: Tree | None = None,
    *,
    minimiser: Tree,
    iterations: int = 200,
    oracle: Oracle | None = None,
    generator: Generator | None = None,
    geometry: MirrorMap | Coupling | None = None,
    exact_iterates: bool = False,
    callbacks: Sequence[Callable[[Look], object]] = (),
) -> Observed:
    """Solve, and follow the run with :class:`Energies`, and with further callbacks if there are any."""
    energies = Energies(minimiser, geometry=geometry, exact_iterates=exact_iterates)
    solution = solve(
        problem,
        method,
        x0,
        iterations=iterations,
        oracle=energies.listen(oracle),
        callbacks=[energies, *callbacks],
        generator=generator,
        check_every=1,
        progress=False,
    )
    return Observed(solution, energies.record)


class _Terms(ABC):
    """The quantities of one method's theorem.

    ``own`` says whether the run is exact in the geometry it is held against. Errors are then zero by definition. The
    formulas would find a normal vector of the domain instead: ∇ψ is determined only up to those.
    """

    def __init__(self, method: Any, problem: Problem, coupling: Coupling, storage: str, exact_iterates: bool) -> None:
        self.method, self.problem, self.coupling = method, problem, coupling
        self.u, self.geometry = coupling.u, coupling.mirror
        self.least = problem.value(self.u)
        geometry = self.geometry
        self.own = geometry is method.mirror or (storage == "dual" and not isinstance(geometry, Inverted))
        self.dual_stored = storage == "dual" and self.own
        self.exact_iterates = exact_iterates and not self.own
        self._last: tuple[Any, Tree] | None = None

    @abstractmethod
    def of_state(self, look: Look, value_before: Tensor) -> dict[str, Tensor]:
        """Measure a state; ``value_before`` is the value at the look before, or at the start."""

    @abstractmethod
    def of_step(self, step: Step) -> dict[str, Tensor]:
        """Measure a step."""

    def from_u(self, x: Tree) -> Tree:
        """x − u."""
        return tree_map(torch.sub, x, self.u)

    def nothing(self) -> Tensor:
        return torch.zeros_like(self.least)

    def squared(self, v: Tree) -> Tensor:
        return squared_dual_norm(self.geometry, v)

    def once(self, state: Any, compute: Callable[[], Tree]) -> Tree:
        """Compute something of a state, unless the state is the one asked about last."""
        if self._last is None or self._last[0] is not state:
            self._last = (state, compute())
        return self._last[1]

    def exactly(self, y: Tree, start: Tree) -> Tree:
        """∇ψ*(y)."""
        return self.geometry.near(y, start) if isinstance(self.geometry, Inverted) else self.geometry.to_primal(y)


class _Descent(_Terms):
    def of_state(self, look: Look, value_before: Tensor) -> dict[str, Tensor]:
        self._dual = self._dual_of(look.state)
        return {"gap": look.value - self.least, "divergence": self.coupling(self._dual, look.state.x)}

    def of_step(self, step: Step) -> dict[str, Tensor]:
        from_u = self.from_u(step.before.x)
        found = {"noise": self.squared(step.noise), "noise_pairing": dot(step.noise, from_u)}
        if self.own:
            names = ("error", "error_pairing", "dual_error")
            return found | {"displacement": self.squared(step.told)} | dict.fromkeys(names, self.nothing())
        before, after, x = self._dual, self._dual_of(step.after), step.after.x
        total = tree_map(lambda a, b: (a - b) / step.t, before, after)
        error = tree_map(torch.sub, total, step.told)
        found["displacement"], found["error"] = self.squared(total), self.squared(error).sqrt()
        found["error_pairing"] = dot(error, from_u)
        found["dual_error"] = -step.t * dot(error, self.from_u(x))
        if self.exact_iterates:
            x_hat = self.exactly(tree_map(lambda y, g: y - step.t * g, before, step.told), x)
            found["primal_error"] = dot(self.problem.grad(x_hat), tree_map(torch.sub, x, x_hat))
        return found

    def _dual_of(self, state: MDState | SMDState) -> Tree:
        if self.dual_stored and isinstance(state, SMDState):
            return state.y
        return self.once(state, lambda: self.geometry.to_dual(state.x))


class _Accelerated(_Terms):
    def of_state(self, look: Look, value_before: Tensor) -> dict[str, Tensor]:
        state: AMDState = look.state
        self._dual = self._dual_of(state)
        gap = (look.value if self.method.returned == "x_tilde" else self.problem.value(state.x_tilde)) - self.least
        divergence = self.coupling(self._dual, None if self.dual_stored else self._primal_of(state))
        r, k = self.method.r, state.k
        weight = k**2 * value_at(self.method.t, k) / r if k else 0.0
        return {"gap": gap, "divergence": divergence, "energy": weight * gap + r * divergence}

    def of_step(self, step: Step) -> dict[str, Tensor]:
        if self.own:
            return {"error": self.nothing()}
        after, z = self._dual_of(step.after), self._primal_of(step.after)
        length = step.t * value_at(self.method.dual_weight, step.after.k)
        aimed = tree_map(lambda y, g: y - length * g, self._dual, step.told)
        found = {"error": dot(tree_map(torch.sub, after, aimed), self.from_u(z))}
        if self.exact_iterates:
            found["distance"] = norm(tree_map(torch.sub, z, self.exactly(aimed, z)))
        return found

    def _dual_of(self, state: AMDState) -> Tree:
        """∇ψ(z̃)."""
        if self.dual_stored:
            return state.z
        return self.once(state, lambda: self.geometry.to_dual(self._primal_of(state)))

    def _primal_of(self, state: AMDState) -> Tree:
        """z̃."""
        return self.method.mirror.to_primal(state.z) if self.method.storage == "dual" else state.z


class _AcceleratedStochastic(_Terms):
    def of_state(self, look: Look, value_before: Tensor) -> dict[str, Tensor]:
        state: ASMDState = look.state
        gap = value_before - self.least  # the state of count k holds x_{k+1}; x_k was the answer before
        self._exact = None if self.own else self.exactly(state.y, self.method.mirror.to_primal(state.y))
        divergence = self.coupling(state.y, self._exact)
        weight = (state.k + 1) ** 1.5 / value_at(self.method.t, state.k + 1)
        return {"gap": gap, "divergence": divergence, "energy": area(state.k) * gap + weight * divergence}

    def of_step(self, step: Step) -> dict[str, Tensor]:
        error = self.nothing()
        if self._exact is not None:
            error = dot(step.true, tree_map(torch.sub, self.method.mirror.to_primal(step.before.y), self._exact))
        return {
            "displacement": self.squared(step.told),
            "noise": self.squared(step.noise),
            "distance": norm(self.from_u(step.before.x)),
            "error": error,
        }


_TERMS: dict[type, type[_Terms]] = {
    MD: _Descent,
    SMD: _Descent,
    AMD: _Accelerated,
    ASMD: _AcceleratedStochastic,
}


def value_at(schedule: Schedule, count: int) -> float:
    """Return the value of a schedule as a plain number."""
    value = schedule(count)
    return float(value.detach() if isinstance(value, Tensor) else value)


def _append(rows: dict[str, list[Tensor]], found: dict[str, Tensor], running: Tensor) -> None:
    for name, numbers in found.items():
        rows.setdefault(name, []).append(torch.where(running, numbers, torch.nan))
