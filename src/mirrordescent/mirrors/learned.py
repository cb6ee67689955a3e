"""Maps made of learned potentials: a pair of networks, or one network and its exact conjugate."""

from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from mirrordescent._internal.suggestions import require_known
from mirrordescent.mirrors.base import MirrorMap, StrongConvexity
from mirrordescent.mirrors.icnn import Potential
from mirrordescent.mirrors.inverse import invert
from mirrordescent.parts import Config
from mirrordescent.trees import Tree, add_over_leaves, leaves, sum_per_sample, tree_map

NormName: TypeAlias = Literal["l1", "l2", "mean"]
Start: TypeAlias = Literal["exact", "scaled"]


class LearnedPair(MirrorMap):
    """∇ψ = ∇M, with the gradient ∇M* of a second network instead of the inverse.

    M* is *not* the conjugate of M, so ∇M* ∘ ∇M is only close to the identity. During learning, a
    penalty keeps the inconsistency ‖(∇M*∘∇M − I)x‖ small. The remaining inconsistency affects the
    two forms of mirror descent differently:

    .. code-block:: none

        primal-stored:  ∇M(x⁺) = ∇M(x) − t g + e,  with a new e = (∇M∘∇M* − I)(∇M(x) − t g) per step
        dual-stored:    y⁺ = y − t g,  x⁺ = ∇M*(y⁺), which is mirror descent for the conjugate of M*

    So dual storage is stable where primal storage may diverge. If only M* is learned, there is no
    inconsistency: see :class:`Conjugate`.

    Args:
        forward: Potential M.
        backward: Potential M*.
    """

    proven = certified = True
    exact = False

    def __init__(self, forward: Potential, backward: Potential) -> None:
        super().__init__()
        self.forward_potential = forward
        self.backward_potential = backward

    @property
    def strong_convexity(self) -> StrongConvexity:
        """Strong convexity of M in ℓ₂."""
        return StrongConvexity(self.forward_potential.strong_convexity, 2.0)

    @property
    def continuous(self) -> bool | None:
        return self.forward_potential.smooth and self.backward_potential.smooth

    def config(self) -> Config:
        return {"forward": self.forward_potential, "backward": self.backward_potential}

    def inconsistency(self, x: Tree, norm: NormName = "l1") -> Tensor:
        """‖(∇M*∘∇M − I)x‖ per sample: (batch,).

        Args:
            x: Primal points.
            norm: ``"l1"`` or ``"l2"``, or ``"mean"`` for the mean of the absolute entries.
        """
        return _distance(self.to_primal(self.to_dual(x)), x, norm)

    def dual_inconsistency(self, y: Tree, norm: NormName = "l1") -> Tensor:
        """‖(∇M∘∇M* − I)y‖ per sample: (batch,).

        Args:
            y: Dual points.
            norm: Norm; see :meth:`inconsistency`.
        """
        return _distance(self.to_dual(self.to_primal(y)), y, norm)

    def _potential(self, x: Tensor) -> Tensor:
        return self.forward_potential.value(x)

    def _to_dual(self, x: Tensor) -> Tensor:
        return self.forward_potential.gradient(x)

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.backward_potential.gradient(y)


class Conjugate(MirrorMap):
    """ψ = (M*)*, the conjugate of one learned potential M*:  ∇ψ* = ∇M*,  ∇ψ = (∇M*)⁻¹.

    The map is exact. Dual-stored methods (SMD, AMD, ASMD) apply ∇M* only, and ∇ψ at most once, for
    the first dual point y⁰. Primal-stored methods invert ∇M* in every step, by
    :func:`~mirrordescent.mirrors.inverse.invert` with its default tolerance; M* must be smooth for
    that. By Fenchel's equality, ψ(x) = ⟨y, x⟩ − M*(y) at y = ∇ψ(x), and
    B_ψ(x, x0) = M*(y0) − M*(y) − ⟨x, y0 − y⟩.

    ψ is 1/L-strongly convex if ∇M* is L-Lipschitz. In general L is unknown, so no constant is
    stated.

    Args:
        potential: Potential M*.
        start: First dual point y⁰ of dual-stored methods. ``"exact"`` is ∇ψ(x0), so that they start
            at x0. ``"scaled"`` is a·x0 with a learned number a > 0, initially 1; they start at
            ∇M*(a·x0), which learning may make a better point than x0.
    """

    proven = True

    log_scale: nn.Parameter | None

    def __init__(self, potential: Potential, start: Start = "exact") -> None:
        super().__init__()
        require_known(start, get_args(Start), "start")
        self.dual_potential = potential
        self.start = start
        # Learning log a keeps a > 0 without a constraint.
        zero = next(potential.parameters(), torch.zeros(())).new_zeros(())
        self.register_parameter("log_scale", nn.Parameter(zero) if start == "scaled" else None)

    @property
    def continuous(self) -> bool | None:
        return self.dual_potential.smooth

    def config(self) -> Config:
        return {"potential": self.dual_potential, "start": self.start}

    def dual_value(self, y: Tree) -> Tensor:
        """M*(y) per sample: (batch,)."""
        return add_over_leaves(self.dual_potential.value, y)

    def dual_start(self, x0: Tree) -> Tree:
        """Return the first dual point of dual-stored methods: ∇ψ(x0), or a·x0."""
        if self.log_scale is None:
            return self.to_dual(x0)
        scale = self.log_scale.exp()
        return tree_map(lambda leaf: scale * leaf, x0)

    def _potential(self, x: Tensor) -> Tensor:
        y = self._to_dual(x)
        return sum_per_sample(x * y) - self.dual_potential.value(y)

    def _to_dual(self, x: Tensor) -> Tensor:
        return invert(self.dual_potential, x).x

    def _to_primal(self, y: Tensor) -> Tensor:
        return self.dual_potential.gradient(y)

    def _divergence(self, x: Tensor, x0: Tensor) -> Tensor:
        y = self._to_dual(x)
        y0 = self._to_dual(x0)
        change = self.dual_potential.value(y0) - self.dual_potential.value(y)
        return change - sum_per_sample(x * (y0 - y))


def _distance(first: Tree, second: Tree, norm: NormName) -> Tensor:
    require_known(norm, get_args(NormName), "norm")
    differences = tree_map(torch.sub, first, second)
    # Unlike the square root of a sum of squares, vector_norm has a finite derivative at 0.
    entries = torch.cat([leaf.flatten(1) for leaf in leaves(differences)], 1)
    if norm == "mean":
        return entries.abs().mean(1)
    return torch.linalg.vector_norm(entries, ord=1 if norm == "l1" else 2, dim=1)
