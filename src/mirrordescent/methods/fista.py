"""FISTA with backtracking and restarts, and proximal Nesterov steps with given step sizes."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from mirrordescent._internal.checks import require_positive
from mirrordescent.domains import Domain, WholeSpace
from mirrordescent.methods.base import Method
from mirrordescent.methods.baselines import NesterovState
from mirrordescent.oracles import Oracle
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import ScheduleLike, as_schedule
from mirrordescent.trees import (
    Tree,
    batch_size,
    descend,
    dot,
    leaves,
    norm,
    per_sample,
    tree_map,
    where,
)

HALVINGS = 60  # largest number of halvings of one step
GROWTH = 1.1  # factor of the next step, since f may be smoother there


class FISTAState(NamedTuple):
    """Steps taken, the extrapolated point, the iterate, and θ and step size t of every sample."""

    k: int
    x: Tree
    iterate: Tree
    theta: Tensor
    t: Tensor


class FISTA(Method[FISTAState]):
    """FISTA on a smooth f and a set X, with backtracking and adaptive restart. With g = ∇f(x):

    .. code-block:: none

        u⁺ = P_X(x − tg),   t halved until f(u⁺) ≤ f(x) + ⟨g, u⁺ − x⟩ + ‖u⁺ − x‖²/(2t)
        θ⁺ = (1 + √(1 + 4θ²))/2,   x⁺ = u⁺ + (θ − 1)/θ⁺ (u⁺ − u)

    Each sample has its own t, and its momentum restarts (θ = 1) when it points against the
    gradient. A step costs a gradient and at least two values of f; nothing has to be tuned. x⁺ is
    projected on X, since f may not be defined outside. The answer is u. If the problem is a smooth
    f plus a function with a simple prox (:meth:`Problem.proximal`), the prox replaces P_X.

    Args:
        domain: X. By default the domain of the problem.
        t: First step size; it is halved or grows from there.

    >>> import torch
    >>> from mirrordescent import Quadratic, solve
    >>> bowl = Quadratic(torch.tensor([1.0, 100.0]), centre=torch.ones(1, 2))
    >>> bool(solve(bowl, FISTA(), iterations=200).value < 1e-6)
    True

    References: Beck and Teboulle, SIAM J. Imaging Sci. 2 (2009); O'Donoghue and Candès, Found.
        Comput. Math. 15 (2015).
    """

    cli_names: ClassVar[tuple[str, ...]] = ("fista",)

    def __init__(self, domain: Domain | None = None, t: float = 1.0) -> None:
        super().__init__()
        require_positive(t=t)
        self.domain = domain
        self.t = float(t)

    def init(self, x0: Tree, problem: Problem | None = None) -> FISTAState:
        leaf = next(leaves(x0))
        ones = torch.ones(batch_size(x0), dtype=leaf.dtype, device=leaf.device)
        return FISTAState(0, x0, x0, ones, self.t * ones)

    def step(
        self,
        problem: Problem,
        state: FISTAState,
        oracle: Oracle,
        generator: Generator | None = None,
    ) -> FISTAState:
        x = state.x
        domain = self.domain or problem.domain
        smooth, prox = problem.proximal() or (problem, lambda point, t: domain.project(point))
        g = oracle(smooth, x, state.k, generator)
        value = smooth.value(x)
        u, t = self._backtrack(smooth, prox, x, g, value, state.t)
        grown = (1 + (1 + 4 * state.theta.square()).sqrt()) / 2
        change = tree_map(torch.sub, u, state.iterate)
        against = dot(tree_map(torch.sub, x, u), change) > 0
        momentum = torch.where(against, 0.0, (state.theta - 1) / grown)
        ahead = tree_map(lambda a, d: a + per_sample(momentum, d) * d, u, change)
        if not isinstance(domain, WholeSpace):
            ahead = domain.project(ahead)
        return FISTAState(
            state.k + 1, ahead, u, torch.where(against, torch.ones_like(grown), grown), t
        )

    def _backtrack(
        self,
        problem: Problem,
        prox: Callable[[Tree, Tensor], Tree],
        x: Tree,
        g: Tree,
        value: Tensor,
        t: Tensor,
    ) -> tuple[Tree, Tensor]:
        """Return the next iterates, and the step sizes to try next.

        If f decreases by no more than its rounding errors, values are no guide: the step is taken
        as it is, and its size is kept.
        """
        # Rounding of x to its precision changes f by ε‖g‖‖x‖.
        rounding = 8 * torch.finfo(value.dtype).eps * (value.abs() + norm(g) * norm(x))
        accepted = x
        searching = torch.ones_like(value, dtype=torch.bool)
        for _ in range(HALVINGS):
            u = prox(tree_map(lambda p, d, t=t: p - per_sample(t, d) * d, x, g), t)
            moved = tree_map(torch.sub, u, x)
            allowed = value + dot(g, moved) + dot(moved, moved) / (2 * t) + rounding
            good = problem.value(u) <= allowed  # false for NaN
            accepted = where(searching & good, u, accepted)
            searching = searching & ~good
            if not bool(searching.any()):
                break
            t = torch.where(searching, t / 2, t)
        significant = dot(g, tree_map(torch.sub, x, accepted)) > 100 * rounding
        return accepted, torch.where(significant, GROWTH * t, t)

    def answer(self, state: FISTAState) -> Tree:
        return state.iterate

    def resolve_oracle(self, oracle: Oracle) -> Oracle:
        if oracle.stochastic:
            raise TypeError(
                f"FISTA searches for its steps by exact values and gradients, "
                f"and cannot use the stochastic oracle {type(oracle).__name__}"
            )
        return oracle


class ProximalNesterov(Method[NesterovState]):
    """Nesterov's method on a smooth f plus a g with a simple prox (:meth:`Problem.proximal`):

    u⁺ = prox_{t_k g}(x − t_k ∇f(x)),  x⁺ = u⁺ + k/(k+3) (u⁺ − u).

    This is FISTA with given step sizes, so it needs no values of f. The answer is u.
    """

    def __init__(self, t: ScheduleLike) -> None:
        super().__init__()
        self.t = as_schedule(t, "t")

    def init(self, x0: Tree, problem: Problem | None = None) -> NesterovState:
        return NesterovState(0, x0, x0)

    def step(
        self,
        problem: Problem,
        state: NesterovState,
        oracle: Oracle,
        generator: Generator | None = None,
    ) -> NesterovState:
        parts = problem.proximal()
        if parts is None:
            raise TypeError(
                "ProximalNesterov needs a problem that offers proximal(); "
                f"{type(problem).__name__} does not"
            )
        smooth, prox = parts
        t = self.t(state.k + 1)
        momentum = state.k / (state.k + 3)
        g = oracle(smooth, state.x, state.k, generator)
        lengths = torch.as_tensor(t, dtype=next(leaves(g)).dtype, device=next(leaves(g)).device)
        u = prox(tree_map(lambda x, d: descend(x, d, t), state.x, g), lengths.expand(batch_size(g)))
        x = tree_map(lambda new, old: new + momentum * (new - old), u, state.iterate)
        return NesterovState(state.k + 1, x, u)

    def answer(self, state: NesterovState) -> Tree:
        return state.iterate
