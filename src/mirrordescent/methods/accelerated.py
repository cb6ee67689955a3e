"""Accelerated mirror descent, deterministic (AMD) and stochastic (ASMD)."""

from typing import Literal, NamedTuple

from torch import Tensor

from mirrordescent.methods.base import GradientMethod, Storage
from mirrordescent.methods.descent import require_inside
from mirrordescent.mirrors import Euclidean, MirrorMap
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import Number, Schedule, ScheduleLike, as_schedule
from mirrordescent.trees import Tree, descend, mix, tree_map


class AMDState(NamedTuple):
    """Steps taken, the mirror iterate (primal or dual), the query point, and the corrected one."""

    k: int
    z: Tree
    x: Tree
    x_tilde: Tree


class AMD(GradientMethod[AMDState]):
    """Accelerated mirror descent. For k = 0, 1, …, with g = ∇f(x^(k+1)):

    .. code-block:: none

        x^(k+1)  =  λ_k z̃^(k) + (1 − λ_k) x̃^(k)              λ_k = r/(r+k)
        z̃^(k+1)  =  ∇ψ*(∇ψ(z̃^(k)) − (k/r) t_k g)
        x̃^(k+1)  =  argmin_x γ_k t_k ⟨g, x⟩ + R(x, x^(k+1))

    With a learned map this is LAMD. For noisy gradients use a decaying t, since a constant one
    accumulates noise; or a ``cap``, beyond which λ and the dual weight stay constant, and old
    gradients are forgotten at a fixed rate as with momentum.

    Args:
        mirror: Mirror map ψ.
        t: Step sizes. :func:`~mirrordescent.schedules.admissible_step` gives those of Lemma 1.
        r: Number r ≥ 3.
        gamma: Factors γ.
        regulariser: Map whose divergence is R. By default Euclidean on the primal domain of
            ``mirror``, so that iterates stay on the simplex, in the orthant, or in the box.
        storage: ``"primal"`` stores z̃ (Algorithm 1, the subject of Theorem 1). ``"dual"`` stores
            ∇ψ(z̃) and never applies ∇ψ again. They agree for exact maps.
        returns: The answer: ``"x"``, the next query point, as in Algorithm 1; or ``"x_tilde"``,
            which Theorem 1 bounds.
        mixing: λ, in place of its formula.
        dual_weight: k/r, in place of its formula.
        weight_offset: 1 for the dual weight (k + 1)/r, which lies outside Lemma 1. With 0, as
            published, the first dual step has the weight 0.
        cap: Largest k in λ_k and in the dual weight.

    Reference: Krichene, Bayen, Bartlett, NeurIPS 2015.
    """

    cli_names = ("amd", "lamd")
    theorem = "accelerated"
    carried = ("z",)  # x̃ is an answer, on which the next step does not depend

    mirror: MirrorMap

    def __init__(
        self,
        mirror: MirrorMap,
        t: ScheduleLike,
        *,
        r: float = 3.0,
        gamma: ScheduleLike = 1.0,
        regulariser: MirrorMap | None = None,
        storage: Storage = "dual",
        returns: Literal["x", "x_tilde"] = "x",
        mixing: ScheduleLike | None = None,
        dual_weight: ScheduleLike | None = None,
        weight_offset: Literal[0, 1] = 0,
        cap: int | None = None,
    ) -> None:
        super().__init__(mirror)
        if not r >= 3:
            raise ValueError(f"AMD needs r ≥ 3, got r={r}")
        _require_choice("storage", storage, ("primal", "dual"))
        _require_choice("returns", returns, ("x", "x_tilde"))
        _require_choice("weight_offset", weight_offset, (0, 1))
        if cap is not None and cap < 1:
            raise ValueError(f"AMD needs cap ≥ 1, got cap={cap}")
        self.regulariser = regulariser or Euclidean(mirror.primal_domain)
        self.t = as_schedule(t, "t")
        self.gamma = as_schedule(gamma, "gamma")
        self.mixing = as_schedule(Mixing(r, cap) if mixing is None else mixing, "mixing")
        self.dual_weight = as_schedule(
            DualWeight(r, weight_offset, cap) if dual_weight is None else dual_weight, "dual_weight"
        )
        self.r = float(r)
        self.storage = storage
        self.returns = returns
        self.weight_offset = weight_offset
        self.cap = cap

    @property
    def adjustable_momentum(self) -> float | None:
        """The value cap/(r + cap) of 1 − λ from the cap on.

        None without a cap, or if λ or the dual weight is not given by its formula.
        """
        mixing = self.mixing
        if not isinstance(mixing, Mixing) or not isinstance(self.dual_weight, DualWeight):
            return None
        if mixing.cap is None:
            return None
        return mixing.cap / (mixing.r + mixing.cap)

    def set_momentum(self, momentum: float) -> None:
        mixing = self.mixing
        weight = self.dual_weight
        if not isinstance(mixing, Mixing) or not isinstance(weight, DualWeight):
            raise TypeError("the momentum can be set only if λ and the dual weight are formulas")
        cap = mixing.r * momentum / (1 - momentum)
        mixing.cap = cap
        weight.cap = cap

    def init(self, x0: Tree, problem: Problem | None = None) -> AMDState:
        """Start at x̃⁰ = z̃⁰ = x0."""
        require_inside(self.mirror, x0)
        require_inside(self.regulariser, x0)
        if self.storage == "primal":
            return AMDState(0, x0, x0, x0)
        z = self.mirror.dual_start(x0)
        return AMDState(0, z, mix(self.mixing(1), self._primal(z), x0), x0)

    def update(self, state: AMDState, grad: Tree) -> AMDState:
        count = state.k + 1
        far, near, mixing = self._numbers(count)
        if self.storage == "dual":
            z = tree_map(lambda z, g: descend(z, g, far), state.z, grad)
            x_tilde = self.regulariser.step(state.x, grad, near)
        elif self.regulariser is self.mirror:
            z, x_tilde = self.mirror.steps(grad, (state.z, far), (state.x, near))
        else:
            z = self.mirror.step(state.z, grad, far)
            x_tilde = self.regulariser.step(state.x, grad, near)
        return AMDState(count, z, mix(mixing, self._primal(z), x_tilde), x_tilde)

    def answer(self, state: AMDState) -> Tree:
        return state.x if self.returns == "x" else state.x_tilde

    def inside(self, state: AMDState) -> Tensor:
        domain = self.mirror.primal_domain
        if self.storage == "dual":
            return self.mirror.dual_domain.contains(state.z) & domain.contains(state.x, closed=True)
        return domain.contains(state.z, closed=True) & domain.contains(state.x, closed=True)

    def _numbers(self, count: int) -> tuple[Number, Number, Number]:
        t = self.t(count)
        return self.dual_weight(count) * t, self.gamma(count) * t, self.mixing(count + 1)

    def _primal(self, z: Tree) -> Tree:
        return self.mirror.to_primal(z) if self.storage == "dual" else z


class Mixing(Schedule):
    """λ = r/(r+k), k ≤ cap. Schedules count from 1, so the k of the formula is one less.

    Args:
        r: r of AMD.
        cap: Largest k.
    """

    def __init__(self, r: float, cap: float | None = None) -> None:
        super().__init__()
        self.r = r
        self.cap = cap

    def forward(self, k: int) -> float:
        return self.r / (self.r + _capped(k - 1, self.cap))


class DualWeight(Schedule):
    """(k + offset)/r, k ≤ cap, with k counted as in :class:`Mixing`.

    Args:
        r: r of AMD.
        offset: 0 or 1.
        cap: Largest k.
    """

    def __init__(self, r: float, offset: int = 0, cap: float | None = None) -> None:
        super().__init__()
        self.r = r
        self.offset = offset
        self.cap = cap

    def forward(self, k: int) -> float:
        return (_capped(k - 1, self.cap) + self.offset) / self.r


def _capped(k: int, cap: float | None) -> float:
    return k if cap is None else min(k, cap)


class ASMDState(NamedTuple):
    """Steps taken, the dual iterate, and the query point."""

    k: int
    y: Tree
    x: Tree


class ASMD(GradientMethod[ASMDState]):
    """Accelerated stochastic mirror descent. For k = 0, 1, …, with g ≈ ∇f(x^(k+1)):

    .. code-block:: none

        x^(k+1)  =  w_k ∇ψ*(y^(k)) + (1 − w_k) x^(k)         w_k = (A_{k+1} − A_k) / A_{k+1}
        y^(k+1)  =  y^(k) − t_k (A_{k+1} − A_k)/s_k · g
        A_k = k(k+1)/2,  A_0 = ½,  s_k = (k+1)^(3/2)

    With a learned map this is LASMD. The published algorithm has no step size: a constant t applies
    it to t·f.

    Args:
        mirror: Mirror map ψ.
        t: Step sizes.
        mixing: w, in place of its formula.
        dual_weight: (A_{k+1} − A_k)/s_k, in place of this formula.

    Reference: Xu, Wang, Gu, AISTATS 2018, Algorithm 2.
    """

    cli_names = ("asmd", "lasmd")
    theorem = "accelerated stochastic"
    storage: Storage = "dual"

    mirror: MirrorMap

    def __init__(
        self,
        mirror: MirrorMap,
        t: ScheduleLike = 1.0,
        *,
        mixing: ScheduleLike | None = None,
        dual_weight: ScheduleLike | None = None,
    ) -> None:
        super().__init__(mirror)
        self.t = as_schedule(t, "t")
        self.mixing = as_schedule(AreaMixing() if mixing is None else mixing, "mixing")
        self.dual_weight = as_schedule(
            AreaWeight() if dual_weight is None else dual_weight, "dual_weight"
        )

    def init(self, x0: Tree, problem: Problem | None = None) -> ASMDState:
        """Start at y⁰ = ∇ψ(x0)."""
        require_inside(self.mirror, x0)
        y = self.mirror.dual_start(x0)
        return ASMDState(0, y, mix(self.mixing(1), self.mirror.to_primal(y), x0))

    def update(self, state: ASMDState, grad: Tree) -> ASMDState:
        count = state.k + 1
        length = self.t(count) * self.dual_weight(count)
        y = tree_map(lambda y, g: descend(y, g, length), state.y, grad)
        return ASMDState(count, y, mix(self.mixing(count + 1), self.mirror.to_primal(y), state.x))

    def inside(self, state: ASMDState) -> Tensor:
        in_dual = self.mirror.dual_domain.contains(state.y)
        return in_dual & self.mirror.primal_domain.contains(state.x, closed=True)


def area(k: int) -> float:
    """Return A_k = k(k+1)/2 for k ≥ 1, and A_0 = ½."""
    return k * (k + 1) / 2 if k else 0.5


class AreaMixing(Schedule):
    """w = (A_k − A_{k−1})/A_k, k ≥ 1."""

    def forward(self, k: int) -> float:
        return 1 - area(k - 1) / area(k)


class AreaWeight(Schedule):
    """(A_k − A_{k−1})/k^(3/2), k ≥ 1."""

    def forward(self, k: int) -> float:
        return (area(k) - area(k - 1)) / k**1.5


def _require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
