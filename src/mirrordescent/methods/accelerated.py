"""Accelerated mirror descent, deterministic (AMD) and stochastic (ASMD)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch import Tensor

from mirrordescent.methods.base import Method
from mirrordescent.methods.descent import require_inside
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.mirrors.quadratic import Euclidean
from mirrordescent.schedules import Schedule, ScheduleLike, as_schedule
from mirrordescent.trees import Tree, descend, mix, tree_map


class AMDState(NamedTuple):
    """Steps taken, the mirror iterate (primal or dual), the query point, and the corrected point."""

    k: int
    z: Tree
    x: Tree
    x_tilde: Tree


class AMD(Method[AMDState]):
    """Accelerated mirror descent. For k = 0, 1, …, with g = ∇f(x^(k+1)):

    .. code-block:: none

        x^(k+1)  =  λ_k z̃^(k) + (1 − λ_k) x̃^(k)              λ_k = r/(r+k)
        z̃^(k+1)  =  ∇ψ*(∇ψ(z̃^(k)) − (k/r) t_k g)
        x̃^(k+1)  =  argmin_x γ_k t_k ⟨g, x⟩ + R(x, x^(k+1))

    ``storage="primal"`` keeps z̃ (Algorithm 1, the subject of Theorem 1); ``storage="dual"`` keeps
    ∇ψ(z̃) and never applies ∇ψ again (LAMD). They agree for exact maps.

    The regulariser R is the divergence of a second mirror map; by default Euclidean on the primal
    domain of ``mirror``, so that iterates stay on the simplex, in the orthant, in the box. The dual
    weight k/r is 0 at the first step, as printed; ``weight_offset=1`` gives (k+1)/r instead, which
    lies outside Lemma 1. ``answer`` chooses what is returned: ``"x"``, the next query point, as the
    algorithm does, or ``"x_tilde"``, which Theorem 1 bounds. ``t``, ``gamma``, ``mixing`` (λ) and
    ``dual_weight`` are schedules; :func:`~mirrordescent.schedules.admissible_step` gives the t of Lemma 1.

    On noisy gradients use a decaying t: with a constant one the noise accumulates. Or a ``cap`` on the k of λ_k and of
    the dual weight, beyond which they stay as they are and old gradients are forgotten at a fixed rate, as by momentum.

    Reference: Krichene, Bayen, Bartlett, NeurIPS 2015.
    """

    def __init__(
        self,
        mirror: MirrorMap,
        t: ScheduleLike,
        *,
        r: float = 3.0,
        gamma: ScheduleLike = 1.0,
        regulariser: MirrorMap | None = None,
        storage: Literal["primal", "dual"] = "dual",
        answer: Literal["x", "x_tilde"] = "x",
        mixing: ScheduleLike | None = None,
        dual_weight: ScheduleLike | None = None,
        weight_offset: Literal[0, 1] = 0,
        cap: int | None = None,
    ) -> None:
        super().__init__()
        if not r >= 3:
            raise ValueError(f"AMD needs r ≥ 3, got r={r}")
        _choose("storage", storage, ("primal", "dual"))
        _choose("answer", answer, ("x", "x_tilde"))
        _choose("weight_offset", weight_offset, (0, 1))
        if cap is not None and cap < 1:
            raise ValueError(f"AMD needs cap ≥ 1, got cap={cap}")
        self.mirror = mirror
        self.regulariser = regulariser or Euclidean(mirror.primal_domain)
        self.t, self.gamma = as_schedule(t, "t"), as_schedule(gamma, "gamma")
        self.mixing = _Mixing(r, cap) if mixing is None else as_schedule(mixing, "mixing")
        self.dual_weight = (
            _DualWeight(r, weight_offset, cap) if dual_weight is None else as_schedule(dual_weight, "dual_weight")
        )
        self.r, self.storage, self.returned = float(r), storage, answer
        self.weight_offset, self.cap = weight_offset, cap

    def init(self, x0: Tree) -> AMDState:
        """Start at x̃⁰ = z̃⁰ = x0."""
        require_inside(self.mirror, x0)
        require_inside(self.regulariser, x0)
        z = self.mirror.dual_start(x0) if self.storage == "dual" else x0
        return AMDState(0, z, mix(self.mixing(1), self._primal(z), x0), x0)

    def update(self, state: AMDState, grad: Tree) -> AMDState:
        """Take the mirror step and the correcting step, then mix the next query point."""
        count = state.k + 1
        t = self.t(count)
        long, short = self.dual_weight(count) * t, self.gamma(count) * t
        if self.storage == "dual":
            z = tree_map(lambda z, g: descend(z, g, long), state.z, grad)
            x_tilde = self.regulariser.step(state.x, grad, short)
        elif self.mirror.linear and self.regulariser is self.mirror:
            direction = self.mirror.to_primal(grad)  # one application serves both steps
            z = tree_map(lambda z, v: descend(z, v, long), state.z, direction)
            x_tilde = tree_map(lambda x, v: descend(x, v, short), state.x, direction)
        else:
            z = self.mirror.step(state.z, grad, long)
            x_tilde = self.regulariser.step(state.x, grad, short)
        x = mix(self.mixing(count + 1), self._primal(z), x_tilde)
        return AMDState(count, z, x, x_tilde)

    def answer(self, state: AMDState) -> Tree:
        """Return x or x̃, as chosen."""
        return state.x if self.returned == "x" else state.x_tilde

    def inside(self, state: AMDState) -> Tensor:
        """Tell whether z and x are in their domains."""
        domain = self.mirror.primal_domain
        if self.storage == "dual":
            return self.mirror.dual_domain.contains(state.z) & domain.contains(state.x, closed=True)
        return domain.contains(state.z, closed=True) & domain.contains(state.x, closed=True)

    def _primal(self, z: Tree) -> Tree:
        return self.mirror.to_primal(z) if self.storage == "dual" else z


class _Mixing(Schedule):
    """λ = r/(r+k), k ≤ cap; schedules count from 1, so the k of the formula is one less."""

    def __init__(self, r: float, cap: int | None) -> None:
        super().__init__()
        self.r, self.cap = r, cap

    def forward(self, count: int) -> float:
        return self.r / (self.r + min(count - 1, self.cap or count))


class _DualWeight(Schedule):
    """(k + offset)/r, with k = count − 1 ≤ cap."""

    def __init__(self, r: float, offset: int, cap: int | None) -> None:
        super().__init__()
        self.r, self.offset, self.cap = r, offset, cap

    def forward(self, count: int) -> float:
        return (min(count - 1, self.cap or count) + self.offset) / self.r


class ASMDState(NamedTuple):
    """Steps taken, the dual iterate, and the query point."""

    k: int
    y: Tree
    x: Tree


class ASMD(Method[ASMDState]):
    """Accelerated stochastic mirror descent. For k = 0, 1, …, with g ≈ ∇f(x^(k+1)):

    .. code-block:: none

        x^(k+1)  =  w_k ∇ψ*(y^(k)) + (1 − w_k) x^(k)         w_k = (A_{k+1} − A_k) / A_{k+1}
        y^(k+1)  =  y^(k) − t_k (A_{k+1} − A_k)/s_k · g        A_k = k(k+1)/2,  A_0 = ½,  s_k = (k+1)^(3/2)

    LASMD when the map is learned. The algorithm itself has no step size: a constant t runs it on
    t·f. ``mixing`` (w) and ``dual_weight`` are schedules with these formulas as defaults.

    Reference: Xu, Wang, Gu, AISTATS 2018, Algorithm 2.
    """

    def __init__(
        self,
        mirror: MirrorMap,
        t: ScheduleLike = 1.0,
        *,
        mixing: ScheduleLike | None = None,
        dual_weight: ScheduleLike | None = None,
    ) -> None:
        super().__init__()
        self.mirror, self.t = mirror, as_schedule(t, "t")
        self.mixing = as_schedule(_asmd_mixing if mixing is None else mixing, "mixing")
        self.dual_weight = as_schedule(_asmd_dual_weight if dual_weight is None else dual_weight, "dual_weight")

    def init(self, x0: Tree) -> ASMDState:
        """Start at y⁰ = ∇ψ(x0)."""
        require_inside(self.mirror, x0)
        y = self.mirror.dual_start(x0)
        return ASMDState(0, y, mix(self.mixing(1), self.mirror.to_primal(y), x0))

    def update(self, state: ASMDState, grad: Tree) -> ASMDState:
        """Take the dual step, then mix the next query point."""
        count = state.k + 1
        length = self.t(count) * self.dual_weight(count)
        y = tree_map(lambda y, g: descend(y, g, length), state.y, grad)
        return ASMDState(count, y, mix(self.mixing(count + 1), self.mirror.to_primal(y), state.x))

    def inside(self, state: ASMDState) -> Tensor:
        """Tell whether y is in the dual domain and x in the primal one."""
        return self.mirror.dual_domain.contains(state.y) & self.mirror.primal_domain.contains(state.x, closed=True)


def _area(k: int) -> float:
    """A_k = k(k+1)/2 for k ≥ 1, and A_0 = ½."""
    return k * (k + 1) / 2 if k else 0.5


def _asmd_mixing(count: int) -> float:
    return 1 - _area(count - 1) / _area(count)


def _asmd_dual_weight(count: int) -> float:
    return (_area(count) - _area(count - 1)) / count**1.5


def _choose(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
