"""Mirror descent, stored in the primal or in the dual."""

from typing import ClassVar, NamedTuple

from torch import Tensor

from mirrordescent.domains import WholeSpace
from mirrordescent.methods.base import GradientMethod, Storage
from mirrordescent.mirrors.base import MirrorMap
from mirrordescent.problems.base import Problem
from mirrordescent.schedules import ScheduleLike, as_schedule
from mirrordescent.trees import Tree, descend, tree_map


class MDState(NamedTuple):
    """Steps taken, and the primal iterate."""

    k: int
    x: Tree


class MD(GradientMethod[MDState]):
    """Mirror descent:  x⁺ = ∇ψ*(∇ψ(x) − t_k g).

    The state has the primal iterate. With a learned map this is LMD, learned mirror descent. If the
    map and its inverse are inexact, every step applies both and their errors add up; :class:`SMD`
    avoids that.

    Args:
        mirror: Mirror map ψ.
        t: Step sizes.

    Reference: Beck and Teboulle, Oper. Res. Lett. 31 (2003).

    >>> import torch
    >>> from mirrordescent.mirrors import SimplexEntropy
    >>> method = MD(SimplexEntropy(), t=1.0)
    >>> state = method.init(torch.full((1, 2), 0.5))
    >>> method.update(state, torch.tensor([[0.0, 1.0]])).x
    tensor([[0.7311, 0.2689]])
    """

    cli_names: ClassVar[tuple[str, ...]] = ("md", "lmd")
    theorem = "descent"
    storage: Storage = "primal"

    mirror: MirrorMap

    def __init__(self, mirror: MirrorMap, t: ScheduleLike) -> None:
        super().__init__(mirror)
        self.t = as_schedule(t, "t")

    def init(self, x0: Tree, problem: Problem | None = None) -> MDState:
        require_inside(self.mirror, x0)
        return MDState(0, x0)

    def update(self, state: MDState, grad: Tree) -> MDState:
        return MDState(state.k + 1, self.mirror.step(state.x, grad, self.t(state.k + 1)))

    def inside(self, state: MDState) -> Tensor:
        return self.mirror.primal_domain.contains(state.x, closed=True)


class SMDState(NamedTuple):
    """Steps taken, the dual iterate, and its primal image."""

    k: int
    y: Tree
    x: Tree


class SMD(GradientMethod[SMDState]):
    """Mirror descent stored in the dual:  y⁺ = y − t_k g,  x⁺ = ∇ψ*(y⁺).

    The usual form for stochastic gradients: LSMD if the map is learned. For exact maps the iterates
    equal those of :class:`MD`. If ``to_primal`` is only close to the inverse of ``to_dual``, this
    is still exact mirror descent, for the potential whose ∇ψ* is ``to_primal``: ∇ψ is applied only
    once, for y⁰.

    Args:
        mirror: Mirror map ψ.
        t: Step sizes.

    Reference: Nemirovski, Juditsky, Lan, Shapiro, SIAM J. Optim. 19 (2009).
    """

    cli_names = ("smd", "lsmd")
    theorem = "descent"
    storage: Storage = "dual"
    needs_x = False

    mirror: MirrorMap

    def __init__(self, mirror: MirrorMap, t: ScheduleLike) -> None:
        super().__init__(mirror)
        self.t = as_schedule(t, "t")

    def init(self, x0: Tree, problem: Problem | None = None) -> SMDState:
        """Start at y⁰ = ∇ψ(x0)."""
        require_inside(self.mirror, x0)
        y = self.mirror.dual_start(x0)
        return SMDState(0, y, self.mirror.to_primal(y))

    def update(self, state: SMDState, grad: Tree) -> SMDState:
        t = self.t(state.k + 1)
        y = tree_map(lambda y, g: descend(y, g, t), state.y, grad)
        return SMDState(state.k + 1, y, self.mirror.to_primal(y))

    def inside(self, state: SMDState) -> Tensor:
        return self.mirror.dual_domain.contains(state.y)


def require_inside(mirror: MirrorMap, x0: Tree) -> None:
    """Raise a DomainError if a start lies outside the map's primal domain."""
    if not isinstance(mirror.primal_domain, WholeSpace):
        mirror.primal_domain.require(
            x0, what="x0", of=str(mirror), closed=mirror.defined_on_boundary
        )
